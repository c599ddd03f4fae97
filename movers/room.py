"""Memory for new content: from the pool, or after a call for eviction and some patience."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from tensorcast.log.follower import Follower
from tensorcast.movers.core.eviction import Occupant, order_candidates
from tensorcast.movers.core.holdings import is_claimed
from tensorcast.movers.memory.handover import Lifelines
from tensorcast.movers.memory.memfd import round_up
from tensorcast.movers.memory.pool import Lent, Pool
from tensorcast.movers.reports import Life, Reporter
from tensorcast.movers.residents import Phase, Residents
from tensorcast.schema.commands import ReportPressure
from tensorcast.schema.errors import OutOfCapacity
from tensorcast.schema.ids import Tier

LOOK_AGAIN_S: Final = 0.05
TELL_AGAIN_S: Final = 3.0


class Room:
    """Finds segments. `wait_s` is how long it waits for others to give memory up."""

    def __init__(
        self,
        pool: Pool,
        residents: Residents,
        lifelines: Lifelines,
        reporter: Reporter,
        follower: Follower,
        life: Life,
        *,
        wait_s: float,
    ) -> None:
        self._pool = pool
        self._residents = residents
        self._lifelines = lifelines
        self._reporter = reporter
        self._follower = follower
        self._life = life
        self._wait_s = wait_s
        self._told_at = -TELL_AGAIN_S

    async def find(self, size_bytes: int, drop_idle: Callable[[], Awaitable[None]]) -> Lent:
        """A segment of at least `size_bytes`; the caller releases it. When there is no room it has
        what is idle dropped, reports pressure and waits. Raises OutOfCapacity."""
        if round_up(size_bytes) > self._pool.capacity_bytes:
            raise OutOfCapacity(
                f"{size_bytes} bytes never fit: node {self._life.node} has "
                f"{self._pool.capacity_bytes} bytes of memory for artifacts.",
                hint="Raise its memory budget (`tcctl up --dram`), or split the artifact.",
                node=self._life.node,
            )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait_s
        while True:
            try:
                return await self._allocate(size_bytes)
            except OutOfCapacity as error:
                if loop.time() > deadline:
                    error.node = self._life.node
                    raise
            await drop_idle()
            await self._tell(size_bytes)
            await self._wait_for_room(size_bytes, deadline)

    async def _allocate(self, size_bytes: int) -> Lent:
        """Allocation may take long, so a thread does it; a caller that is gone by then must not
        leak the segment."""
        work = asyncio.ensure_future(asyncio.to_thread(self._pool.allocate, size_bytes))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(self._give_back)
            raise

    def _give_back(self, work: asyncio.Future[Lent]) -> None:
        if not work.cancelled() and work.exception() is None:
            self._pool.release(work.result().segment)

    async def _wait_for_room(self, size_bytes: int, deadline: float) -> None:
        """Until there is room, or it is time to call again: what was called for before may have
        gone to somebody else."""
        loop = asyncio.get_running_loop()
        until = min(deadline, loop.time() + TELL_AGAIN_S)
        while loop.time() <= until:
            await asyncio.sleep(LOOK_AGAIN_S)
            if not self._pool.shortfall(size_bytes):
                return

    async def _tell(self, size_bytes: int) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._told_at < TELL_AGAIN_S:
            return
        self._told_at = now
        needed_bytes = self._pool.shortfall(size_bytes)
        candidates = order_candidates(self.occupants())
        pressure = ReportPressure(
            node=self._life.node,
            epoch=self._life.epoch,
            tier=Tier.DRAM,
            needed_bytes=needed_bytes,
            candidates=tuple(candidate.replica for candidate in candidates),
        )
        await self._reporter.report([pressure], None)

    def occupants(self) -> list[Occupant]:
        """The ready residents, as candidates for eviction."""
        view = self._follower.view
        return [
            Occupant(
                replica=resident.replica,
                size_bytes=resident.segment.capacity_bytes,
                readers=self._lifelines.readers(resident.segment.name),
                used_at=resident.used_at,
                claimed=is_claimed(view, resident.id, self._life.node),
            )
            for resident in self._residents.all()
            if resident.phase is Phase.READY
        ]
