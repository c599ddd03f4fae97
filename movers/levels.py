"""How full the tiers of the node are: what is too much is told before anybody has to wait for it,
and room to spare is told when there is use for it."""

from __future__ import annotations

import asyncio
from typing import Final

from tensorcast.movers.core.eviction import Watermarks
from tensorcast.movers.disk_room import DiskRoom
from tensorcast.movers.memory.pool import Pool
from tensorcast.movers.replicas import on_disk
from tensorcast.movers.reports import Life, Reporter
from tensorcast.movers.residents import Residents
from tensorcast.movers.room import Room
from tensorcast.schema.commands import ReportRelief
from tensorcast.schema.ids import ArtifactId, Overflow, Tier

LOOK_S: Final = 0.25
AGAIN_S: Final = 3.0
AGAIN_S_MAX: Final = 60.0
RELIEF_S: Final = 10.0
CANDIDATES_MAX: Final = 16


class _Pause:
    """When the same may be said again: soon if it has changed, else later and later."""

    def __init__(self, again_s: float) -> None:
        self._least_s = self._again_s = again_s
        self._told_at = float("-inf")
        self._told: object = None

    def is_due(self, what: object, now: float) -> bool:
        if what != self._told and now - self._told_at >= self._least_s / 3:
            self._again_s = self._least_s
            return True
        return now - self._told_at >= self._again_s

    def note(self, what: object, now: float) -> None:
        self._again_s = min(AGAIN_S_MAX, 2 * self._again_s) if what == self._told else self._least_s
        self._told, self._told_at = what, now


class Levels:
    """Looks at the marks, for ever. With overflow REJECT nothing goes from memory."""

    def __init__(
        self,
        pool: Pool,
        room: Room,
        disk_room: DiskRoom,
        residents: Residents,
        reporter: Reporter,
        life: Life,
        *,
        dram: Watermarks,
        disk: Watermarks,
        overflow: Overflow,
    ) -> None:
        self._pool = pool
        self._room = room
        self._disk_room = disk_room
        self._residents = residents
        self._reporter = reporter
        self._life = life
        self._dram = dram
        self._disk = disk
        self._overflow = overflow
        self._dram_pause, self._disk_pause = _Pause(AGAIN_S), _Pause(AGAIN_S)
        self._relief_pause = _Pause(RELIEF_S)

    async def run(self) -> None:
        """Looks now and then."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Reports what is to be said now."""
        now = asyncio.get_running_loop().time()
        stats = self._pool.stats()
        taken = stats.used_bytes + stats.retired_bytes
        await self._look_at_memory(taken, now)
        await self._look_at_disk(now)
        await self._relieve(self._dram.spare(taken, stats.capacity_bytes), now)

    async def _look_at_memory(self, taken: int, now: float) -> None:
        excess = self._dram.excess(taken, self._pool.capacity_bytes)
        if excess and self._overflow is not Overflow.REJECT and self._dram_pause.is_due(taken, now):
            self._dram_pause.note(taken, now)
            await self._room.report_pressure(excess, spare_hottest=True)

    async def _look_at_disk(self, now: float) -> None:
        taken = self._disk_room.used_bytes
        excess = self._disk.excess(taken, self._disk_room.capacity_bytes)
        if excess and self._disk_pause.is_due(taken, now):
            self._disk_pause.note(taken, now)
            await self._disk_room.report_pressure(excess)

    async def _relieve(self, spare: int, now: float) -> None:
        """What is popular and only on the disk may come into memory that nobody needs."""
        wanted = self._find_popular(spare)
        if not wanted or not self._relief_pause.is_due(wanted, now):
            return
        self._relief_pause.note(wanted, now)
        report = ReportRelief(
            node=self._life.node,
            epoch=self._life.epoch,
            tier=Tier.DRAM,
            free_bytes=spare,
            candidates=tuple(on_disk(artifact, self._life) for artifact in wanted),
        )
        await self._reporter.report([report], None)

    def _find_popular(self, spare: int) -> tuple[ArtifactId, ...]:
        stored = self._residents.stored()
        lying = [a for a in stored if stored[a] <= spare and self._residents.find(a) is None]
        return self._residents.uses.popular(lying)[:CANDIDATES_MAX]

    def forget(self) -> None:
        """Remembers no longer how often it was used what is not here any more."""
        here = {resident.id for resident in self._residents.all()}
        self._residents.uses.keep(here | self._residents.stored().keys())
