"""The parts of a mover that seal puts, over a log in memory, without sockets."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from mover_nodes import Content
from samples import N1
from tensorcast.log.follower import Follower
from tensorcast.log.memory import MemoryLog
from tensorcast.movers.journal import Journal
from tensorcast.movers.memory.handover import Lifelines
from tensorcast.movers.memory.pool import Pool
from tensorcast.movers.pending import Pending
from tensorcast.movers.puts import Put, Puts
from tensorcast.movers.reports import Life, Reporter
from tensorcast.movers.residents import Residents
from tensorcast.movers.room import Room
from tensorcast.movers.sealing import Sealing
from tensorcast.movers.tiers.disk import DiskTier
from tensorcast.schema.envelope import Draft
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.ids import Epoch, Key, Seq
from tensorcast.schema.socket import SealPut

CONTENT = Content([1 << 20, 7])
OWNER = object()


class SilentLog(MemoryLog):
    """Takes an append, or loses it, and does not say which."""

    loses = False
    is_silent = True

    async def append(self, drafts: Sequence[Draft]) -> tuple[Seq, ...]:
        if not self.loses:
            await super().append(drafts)
        raise Unavailable("no answer")

    async def last_seq(self) -> Seq:
        if self.is_silent:
            raise Unavailable("no answer")
        return await super().last_seq()


class Bench:
    """One life of a node; `epoch` counts them."""

    def __init__(self, folder: Path, log: MemoryLog, epoch: int = 1) -> None:
        folder.mkdir(exist_ok=True)
        life = Life(N1)
        life.epoch = Epoch(epoch)
        self.log = log
        self.follower = Follower(log)
        self.pool = Pool(64 << 20)
        self.journal = Journal(folder / "journal.db")
        self.residents = Residents(N1, self.pool, self.journal, DiskTier(folder / "disk"))
        lifelines, reporter = Lifelines(), Reporter(self.journal, life)
        room = Room(self.pool, self.residents, lifelines, reporter, self.follower, life, wait_s=0.0)
        self.sealing = Sealing(self.residents, self.pool, self.journal, log, self.follower, life)
        self.pending = Pending(
            self.sealing, self.pool, self.journal, folder / "accepted", finish_s=0.2
        )
        self.puts = Puts(
            room,
            _nothing_idle,
            self.pool,
            self.sealing,
            self.pending,
            self.follower,
            life,
            puts_max=2,
        )
        lifelines.close()

    async def write(self) -> Put:
        put = await self.puts.open(CONTENT.manifest.size_bytes, OWNER)
        os.pwrite(put.segment.fd, CONTENT.bytes, 0)
        return put


async def _nothing_idle() -> None:
    pass


@asynccontextmanager
async def bench(folder: Path, log: MemoryLog, epoch: int = 1) -> AsyncIterator[Bench]:
    """Such a life, from its start to a stop in good order."""
    bench = Bench(folder, log, epoch)
    following = asyncio.ensure_future(bench.follower.run())
    try:
        yield bench
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError, Unavailable):
            await following
        await bench.puts.finished()
        bench.journal.close()
        bench.pool.close()


def seal(put: Put) -> SealPut:
    return SealPut(
        session=put.session,
        artifact=CONTENT.id,
        kind="weights",
        manifest=CONTENT.manifest,
        key=Key("m"),
    )
