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

LOOK_AGAIN_S: Final = 0.03
TELL_APART_S: Final = 0.1
TELL_AGAIN_S: Final = 3.0


class _Need:
    """A request that found no room. `is_told`: a report of pressure has counted it."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = round_up(size_bytes)
        self.is_told = False


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
        self._waiting: set[_Need] = set()
        self._told_at = -TELL_AGAIN_S

    def fits(self, size_bytes: int) -> bool:
        """Whether there is room for that much without eviction. Raises OutOfCapacity when there
        never is."""
        self._check_possible(size_bytes)
        return not self._pool.shortfall(size_bytes)

    async def find(self, size_bytes: int, drop_idle: Callable[[], Awaitable[None]]) -> Lent:
        """A segment of at least `size_bytes`; the caller releases it. When there is no room it has
        what is idle dropped, reports pressure and waits. Raises OutOfCapacity."""
        self._check_possible(size_bytes)
        need = _Need(size_bytes)
        deadline = asyncio.get_running_loop().time() + self._wait_s
        while True:
            try:
                lent = await self._allocate(size_bytes)
            except OutOfCapacity as error:
                if asyncio.get_running_loop().time() > deadline:
                    error.node = self._life.node
                    raise
            else:
                self._note_taken(need)
                return lent
            await self._wait_for_room(need, deadline, drop_idle)

    def _check_possible(self, size_bytes: int) -> None:
        if round_up(size_bytes) > self._pool.capacity_bytes:
            raise OutOfCapacity(
                f"{size_bytes} bytes never fit: node {self._life.node} has "
                f"{self._pool.capacity_bytes} bytes of memory for artifacts.",
                hint="Raise its memory budget (`tcctl up --dram`), or split the artifact.",
                node=self._life.node,
            )

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

    def _note_taken(self, need: _Need) -> None:
        """What no report had counted may have taken what others had called for: they call anew."""
        if not need.is_told:
            for other in self._waiting:
                other.is_told = False

    async def _wait_for_room(
        self, need: _Need, deadline: float, drop_idle: Callable[[], Awaitable[None]]
    ) -> None:
        """Until there is room, or the deadline; sees to it that the need is reported."""
        loop = asyncio.get_running_loop()
        self._waiting.add(need)
        try:
            while loop.time() <= deadline:
                await self._call(drop_idle)
                await asyncio.sleep(LOOK_AGAIN_S)
                if not self._pool.shortfall(need.size_bytes):
                    return
        finally:
            self._waiting.discard(need)

    async def _call(self, drop_idle: Callable[[], Awaitable[None]]) -> None:
        """Reports what all who wait need together: soon after a new one came, else now and then.
        So a burst of requests leads to few reports, and none waits for the report of another."""
        now = asyncio.get_running_loop().time()
        is_news = any(not need.is_told for need in self._waiting)
        if now - self._told_at < (TELL_APART_S if is_news else TELL_AGAIN_S):
            return
        self._told_at = now
        await drop_idle()
        needed_bytes = self._pool.shortfall(sum(need.size_bytes for need in self._waiting))
        for need in self._waiting:
            need.is_told = True
        if needed_bytes:
            await self._reporter.report([self._pressure(needed_bytes)], None)

    def _pressure(self, needed_bytes: int) -> ReportPressure:
        candidates = order_candidates(self.occupants())
        return ReportPressure(
            node=self._life.node,
            epoch=self._life.epoch,
            tier=Tier.DRAM,
            needed_bytes=needed_bytes,
            candidates=tuple(candidate.replica for candidate in candidates),
        )

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
