"""Memory for new content on a bench: a real pool, and an ear for what is reported of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from samples import MIB, N1
from tensorcast.log.follower import Follower
from tensorcast.log.memory import MemoryLog
from tensorcast.movers.journal import Journal
from tensorcast.movers.memory.handover import Lifelines
from tensorcast.movers.memory.pool import Lent, Pool
from tensorcast.movers.reports import Life, Reporter
from tensorcast.movers.residents import Residents
from tensorcast.movers.room import Room
from tensorcast.movers.tiers.disk import DiskTier
from tensorcast.schema.commands import Command, ReportPressure
from tensorcast.schema.ids import Epoch, EventId, Overflow

POOL = 64 * MIB
WAIT_S = 2.0


class Ear(Reporter):
    """Hears the reports."""

    def __init__(self, journal: Journal, life: Life) -> None:
        super().__init__(journal, life)
        self.needs: list[int] = []
        self.heard = asyncio.Event()

    async def report(self, commands: Sequence[Command], cause: EventId | None) -> EventId:
        for command in commands:
            assert isinstance(command, ReportPressure)
            self.needs.append(command.needed_bytes // MIB)
        self.heard.set()
        self.heard = asyncio.Event()
        return EventId("event")

    async def until(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(self.needs) < count:
                await self.heard.wait()


class Bench:
    def __init__(self, folder: Path, wait_s: float, overflow: Overflow) -> None:
        life = Life(N1)
        life.epoch = Epoch(1)
        self.pool = Pool(POOL)
        self.journal = Journal(folder / "journal.db")
        self.ear = Ear(self.journal, life)
        self.lifelines = Lifelines()
        self.room = Room(
            self.pool,
            Residents(N1, self.pool, self.journal, DiskTier(folder / "disk")),
            self.lifelines,
            self.ear,
            Follower(MemoryLog()),
            life,
            wait_s=wait_s,
            overflow=overflow,
        )

    async def find(self, mib: int) -> Lent:
        return await self.room.find(mib * MIB, nothing_idle)


async def nothing_idle() -> None:
    """There is nothing that could be dropped."""


@asynccontextmanager
async def bench(
    folder: Path, wait_s: float = WAIT_S, overflow: Overflow = Overflow.SPILL
) -> AsyncIterator[Bench]:
    bench = Bench(folder, wait_s, overflow)
    try:
        yield bench
    finally:
        bench.lifelines.close()
        bench.journal.close()
        bench.pool.close()
