"""Retention: old events move into the archive by themselves, and the log is told of every archive.

It stands beside the persister at work. The limits are asked one by one, so whatever is beyond
either of them goes; the work itself is done by a process of its own (`archiver.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import msgspec
from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from tensorcast.controlplane.services.progress import Progress
from tensorcast.controlplane.services.workers import Workers
from tensorcast.controlplane.settings import Settings
from tensorcast.controlplane.store.archives import ROW_COLUMNS, Segment
from tensorcast.controlplane.store.archiving import Limits, plan_archive
from tensorcast.controlplane.store.engine import connecting
from tensorcast.controlplane.store.jobs import ARCHIVE
from tensorcast.controlplane.store.tables import archives
from tensorcast.log.identity import now
from tensorcast.log.port import Log
from tensorcast.schema.envelope import Draft
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.events import SignalEmitted
from tensorcast.schema.ids import Seq, derive_event_id
from tensorcast.schema.signals import Topic
from tensorcast.schema.system_signals import ARCHIVED

TOPIC: Final = Topic(ARCHIVED)
ACTOR: Final = "controlplane"
LOOK_S: Final = 10.0
ARCHIVE_S: Final = 60.0
"""How often it is looked whether events have become old."""
_logger = logging.getLogger(__name__)


class Told(msgspec.Struct, frozen=True):
    """What the signal says: the events from `first` to `last` of a life of the log are in this file
    alone now; `sha256` is that of the file, hexadecimal."""

    log_epoch: int
    first: Seq
    last: Seq
    path: str
    sha256: str


async def run_retention(
    log: Log, engine: AsyncEngine, workers: Workers, progress: Progress, settings: Settings
) -> None:
    """Looks for ever, while this process is the one that persists. Trouble is told in the log of
    the process, and tried again."""
    clock = asyncio.get_running_loop().time
    looked_s = clock() - ARCHIVE_S
    while True:
        await asyncio.sleep(LOOK_S)
        if not progress.is_active:
            continue
        try:
            await tell_archived(log, engine)
            if clock() - looked_s >= ARCHIVE_S:
                looked_s = clock()
                await archive_old(engine, workers, settings)
        except TensorCastError as error:
            _logger.info("retention: %s", error)


async def tell_archived(log: Log, engine: AsyncEngine) -> int:
    """Says in the log which events are in files alone, once for each file; how many it told.
    Raises Unavailable."""
    async with connecting(engine) as connection:
        untold = (archives.c.dropped_at.is_not(None), archives.c.told_at.is_(None))
        found = await connection.execute(
            select(*ROW_COLUMNS).where(*untold).order_by(archives.c.log_epoch, archives.c.first)
        )
        segments = [Segment(*row) for row in found]
        await connection.commit()
        for one in segments:
            digest = one.digest.hex()
            said = Told(one.log_epoch, one.first, one.last, str(one.path), digest)
            once = derive_event_id(f"{TOPIC}/{one.log_epoch}/{one.name}", digest, one.last)
            event = SignalEmitted(topic=TOPIC, data=msgspec.to_builtins(said))
            await log.append([Draft(id=once, at=now(), actor=ACTOR, event=event)])
            of_file = (archives.c.log_epoch == one.log_epoch, archives.c.last == one.last)
            await connection.execute(update(archives).where(*of_file).values(told_at=func.now()))
            await connection.commit()
    return len(segments)


async def archive_old(engine: AsyncEngine, workers: Workers, settings: Settings) -> bool:
    """Has the archiver begin when events are beyond a limit, and waits for it; whether it had to.
    Raises Unavailable."""
    for limits, word in _limits(settings):
        async with connecting(engine) as connection:
            works = await plan_archive(connection, limits)
        if works:
            assert settings.archive_dir is not None
            ending = await workers.start(ARCHIVE, settings.archive_dir, word)
            if await ending:
                _logger.warning("the archive failed: `tcctl store status` says why")
            return True
    return False


def _limits(settings: Settings) -> Iterator[tuple[Limits, str]]:
    """Each limit, and how the archiver is told of it."""
    if settings.retention_s is not None:
        moment = now() - timedelta(seconds=settings.retention_s)
        yield Limits(before_time=moment), f"--before-time={moment.isoformat()}"
    if settings.retention_bytes is not None:
        size = settings.retention_bytes
        yield Limits(keep_bytes=size), f"--keep-bytes={size:d}"
