"""The counts of a mover that applications may ask for."""

from __future__ import annotations

import os
from pathlib import Path

from tensorcast.log.follower import Follower
from tensorcast.movers.budget import read_space
from tensorcast.movers.disk_room import DiskRoom
from tensorcast.movers.journal import Journal
from tensorcast.movers.memory.pool import Pool
from tensorcast.movers.reports import Life
from tensorcast.movers.residents import Residents
from tensorcast.schema.api import PeerInfo
from tensorcast.schema.socket import Stats


def count(
    life: Life,
    pool: Pool,
    residents: Residents,
    journal: Journal,
    follower: Follower,
    disk_room: DiskRoom,
    folder: Path,
    *,
    puts_open: int,
    readers: int,
    unsaved_bytes: int,
    waiting: int,
    peers: tuple[PeerInfo, ...],
) -> Stats:
    """The state now."""
    stats = pool.stats()
    return Stats(
        node=life.node,
        epoch=life.epoch,
        capacity_bytes=stats.capacity_bytes,
        used_bytes=stats.used_bytes + stats.retired_bytes,
        segments=stats.segments,
        segments_free=stats.segments_free,
        replicas=len(residents.all()),
        puts_open=puts_open,
        readers=readers,
        journal_pending=journal.pending,
        trouble=journal.trouble,
        log_seq=follower.view.at,
        descriptors=len(os.listdir("/proc/self/fd")),
        unsaved_bytes=unsaved_bytes,
        disk_free_bytes=read_space(folder).free_bytes,
        free_bytes=stats.free_bytes,
        disk_capacity_bytes=disk_room.capacity_bytes,
        disk_used_bytes=disk_room.used_bytes,
        waiting=waiting,
        peers=peers,
    )
