"""Memory for new content: from the pool, or after a call for eviction and some patience."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from tensorcast.log.follower import Follower
from tensorcast.movers.core.eviction import Occupant, order_candidates
from tensorcast.movers.core.holdings import has_copy, is_claimed
from tensorcast.movers.memory.handover import Lifelines
from tensorcast.movers.memory.memfd import round_up
from tensorcast.movers.memory.pool import Lent, Pool
from tensorcast.movers.reports import Life, Reporter
from tensorcast.movers.residents import Phase, Residents
from tensorcast.schema.commands import ReportPressure
from tensorcast.schema.errors import OutOfCapacity
from tensorcast.schema.ids import Overflow, Tier

LOOK_AGAIN_S: Final = 0.03
TELL_APART_S: Final = 0.1
TELL_AGAIN_S: Final = 3.0
PASS_S: Final = 0.5
WAITS_MAX: Final = 12


class _Need:
    """A request for memory, in the order of asking. `is_told`: a report of pressure has counted
    it; `is_waiting`: it found no room."""

    def __init__(self, size_bytes: int, at: float, is_touched: bool = True) -> None:
        self.size_bytes = round_up(size_bytes)
        self.is_touched = is_touched
        self.asked_at = at
        self.is_told = False
        self.is_waiting = False


class Room:
    """Finds segments. `wait_s` is how long a request waits for others to give memory up, from the
    last time that any did so (and `WAITS_MAX` times as long at most); with `overflow` REJECT it
    does not wait at all.

    First come, first served: while one waits that could get its memory, later ones may take theirs
    only for `PASS_S`; so a large request is not starved by many small ones."""

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
        overflow: Overflow = Overflow.SPILL,
    ) -> None:
        self._pool = pool
        self._residents = residents
        self._lifelines = lifelines
        self._reporter = reporter
        self._follower = follower
        self._life = life
        self._wait_s = wait_s
        self._overflow = overflow
        self._line: list[_Need] = []
        self._told_at = -TELL_AGAIN_S
        self._held = (float("-inf"), 0)

    @property
    def waiting(self) -> int:
        """How many requests wait for memory."""
        return sum(need.is_waiting for need in self._line)

    def fits(self, size_bytes: int) -> bool:
        """Whether there is room for that much without eviction. Raises OutOfCapacity when there
        never is."""
        self.check_possible(size_bytes)
        return not self._pool.shortfall(size_bytes)

    async def find(
        self,
        size_bytes: int,
        drop_idle: Callable[[], Awaitable[None]],
        *,
        is_touched: bool = True,
    ) -> Lent:
        """A segment of at least `size_bytes` (`is_touched`: see `Pool.allocate`); the caller
        releases it. When there is no room it has what is idle dropped, reports pressure and waits.
        Raises OutOfCapacity."""
        self.check_possible(size_bytes)
        need = _Need(size_bytes, asyncio.get_running_loop().time(), is_touched)
        self._line.append(need)
        try:
            return await self._find(need, drop_idle)
        finally:
            self._line.remove(need)

    async def _find(self, need: _Need, drop_idle: Callable[[], Awaitable[None]]) -> Lent:
        clock = asyncio.get_running_loop().time
        patience = _Patience(self._pool, self._wait_s, clock())
        while True:
            error: OutOfCapacity | None = None
            if self._is_turn(need):
                try:
                    lent = await self._allocate(need.size_bytes, need.is_touched)
                except OutOfCapacity as refusal:
                    error = refusal
                else:
                    self._note_taken(need)
                    return lent
            if self._overflow is Overflow.REJECT or patience.is_over(clock()):
                raise self._refuse(need, error)
            await self._wait_for_room(need, patience, drop_idle)

    def check_possible(self, size_bytes: int) -> None:
        """Raises OutOfCapacity, for ever, for what is larger than all the memory."""
        if round_up(size_bytes) > self._pool.capacity_bytes:
            raise OutOfCapacity(
                f"{size_bytes} bytes never fit: node {self._life.node} has "
                f"{self._pool.capacity_bytes} bytes of memory for artifacts.",
                hint="Raise its memory budget (`tcctl down`, then `tcctl up --dram`) or split the "
                "artifact; one that another node has may be on this node's disk alone "
                "(`tcctl replicate ... --tier disk`).",
                node=self._life.node,
                retryable=False,
            )

    # ---- whose turn it is ------------------------------------------------------------------

    def _is_turn(self, need: _Need) -> bool:
        """Whether nobody who came before has waited long for what can be given to him."""
        now = asyncio.get_running_loop().time()
        for other in self._line:
            if other is need:
                return True
            if other.is_waiting and now - other.asked_at > PASS_S and self._is_possible(other):
                return False
        return True

    def _is_possible(self, need: _Need) -> bool:
        return need.size_bytes <= self._pool.capacity_bytes - self._held_bytes()

    def _held_bytes(self) -> int:
        """Memory that will not become free by eviction: mapped by readers, pinned or leased."""
        at, held = self._held
        now = asyncio.get_running_loop().time()
        if now - at > 5 * LOOK_AGAIN_S:
            kept = (o.size_bytes for o in self.occupants() if o.readers or o.claimed)
            held = sum(kept) + self._pool.stats().retired_bytes
            self._held = (now, held)
        return held

    def _note_taken(self, need: _Need) -> None:
        """What no report had counted may have taken what others had called for: they call anew."""
        need.is_waiting = False
        if not need.is_told:
            for other in self._line:
                other.is_told = False

    async def _allocate(self, size_bytes: int, is_touched: bool) -> Lent:
        """Allocation may take long, so a thread does it; a caller that is gone by then must not
        leak the segment."""
        work = asyncio.ensure_future(
            asyncio.to_thread(self._pool.allocate, size_bytes, is_touched=is_touched)
        )
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(self._give_back)
            raise

    def _give_back(self, work: asyncio.Future[Lent]) -> None:
        if not work.cancelled() and work.exception() is None:
            self._pool.release(work.result().segment)

    # ---- waiting ---------------------------------------------------------------------------

    async def _wait_for_room(
        self, need: _Need, patience: _Patience, drop_idle: Callable[[], Awaitable[None]]
    ) -> None:
        """Until there is room, or patience ends; sees to it that the need is reported."""
        clock = asyncio.get_running_loop().time
        need.is_waiting = True
        while not patience.is_over(clock()):
            await self._call(drop_idle)
            await asyncio.sleep(LOOK_AGAIN_S)
            if not self._pool.shortfall(need.size_bytes):
                return

    async def _call(self, drop_idle: Callable[[], Awaitable[None]]) -> None:
        """Reports what all who wait need together: soon after a new one came, else now and then.
        So a burst of requests leads to few reports, and none waits for the report of another."""
        now = asyncio.get_running_loop().time()
        waiting = [need for need in self._line if need.is_waiting]
        is_news = any(not need.is_told for need in waiting)
        if now - self._told_at < (TELL_APART_S if is_news else TELL_AGAIN_S):
            return
        self._told_at = now
        await drop_idle()
        needed_bytes = self._pool.shortfall(sum(need.size_bytes for need in waiting))
        for need in waiting:
            need.is_told = True
        if needed_bytes:
            await self.report_pressure(needed_bytes)

    async def report_pressure(self, needed_bytes: int, *, spare_hottest: bool = False) -> bool:
        """Asks the cluster to make room. `spare_hottest` keeps what was used last from being a
        candidate. False: there is no candidate, and nothing was said."""
        candidates = order_candidates(self.occupants())
        if spare_hottest:
            candidates = candidates[:-1]
            if not candidates:
                return False
        report = ReportPressure(
            node=self._life.node,
            epoch=self._life.epoch,
            tier=Tier.DRAM,
            needed_bytes=needed_bytes,
            candidates=tuple(candidate.replica for candidate in candidates),
        )
        await self._reporter.report([report], None)
        return True

    def _refuse(self, need: _Need, error: OutOfCapacity | None) -> OutOfCapacity:
        """Why there was no room: one sentence, and what can be done."""
        stats, occupants = self._pool.stats(), self.occupants()
        read = sum(o.size_bytes for o in occupants if o.readers) + stats.retired_bytes
        kept = sum(o.size_bytes for o in occupants if o.claimed and not o.readers)
        held = f"of its {stats.capacity_bytes}, {read} are read and {kept} are pinned or leased"
        waited = "" if self._overflow is Overflow.REJECT else " in time"
        why = "" if error is None else f" {error.message}"
        return OutOfCapacity(
            f"No room for {need.size_bytes} bytes in the memory of node {self._life.node}"
            f"{waited}: {held}.{why}",
            hint=HINTS[self._overflow],
            node=self._life.node,
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
                has_copy=has_copy(view, resident.id, resident.replica),
            )
            for resident in self._residents.all()
            if resident.phase is Phase.READY
        ]


HINTS: Final = {
    Overflow.SPILL: "Close readers, unpin or remove artifacts, give the disk tier room "
    "(`tcctl node ls`), or raise the memory budget.",
    Overflow.EVICT: "This node drops only what has another copy: replicate or remove artifacts, "
    "or let it spill to disk (TENSORCAST_OVERFLOW).",
    Overflow.REJECT: "This node evicts nothing by itself (TENSORCAST_OVERFLOW): remove artifacts, "
    "or put elsewhere.",
}


class _Patience:
    """Ends when no memory was given back for `wait_s`, and after `WAITS_MAX` times that anyway."""

    def __init__(self, pool: Pool, wait_s: float, now: float) -> None:
        self._pool = pool
        self._wait_s = wait_s
        self._began = self._moved_at = now
        self._released = pool.released_bytes

    def is_over(self, now: float) -> bool:
        if self._pool.released_bytes != self._released:
            self._released, self._moved_at = self._pool.released_bytes, now
        is_long = now - self._began > WAITS_MAX * self._wait_s
        return is_long or now - self._moved_at > self._wait_s
