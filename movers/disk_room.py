"""Room on the node's disk for new replicas: within its budget, after a call for eviction and some
patience."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Protocol

from tensorcast.log.follower import Follower
from tensorcast.movers.core.eviction import Occupant, order_candidates
from tensorcast.movers.core.holdings import has_copy, is_claimed, is_requested
from tensorcast.movers.replicas import on_disk
from tensorcast.movers.reports import Life, Reporter
from tensorcast.movers.residents import Residents
from tensorcast.schema.commands import ReportPressure
from tensorcast.schema.errors import OutOfCapacity
from tensorcast.schema.ids import Tier

LOOK_AGAIN_S: Final = 0.05
TELL_AGAIN_S: Final = 3.0


class Budget(Protocol):
    """How many bytes may lie on the disk now, given those that do, and how many ever could."""

    def capacity(self, used_bytes: int) -> int: ...

    def most(self) -> int: ...


class DiskRoom:
    """Counts what is written against the budget before it is written. `wait_s` is how long a write
    waits for others to go. First come, first served."""

    def __init__(
        self,
        budget: Budget,
        residents: Residents,
        reporter: Reporter,
        follower: Follower,
        life: Life,
        *,
        wait_s: float,
    ) -> None:
        self._budget = budget
        self._residents = residents
        self._reporter = reporter
        self._follower = follower
        self._life = life
        self._wait_s = wait_s
        self._reserved_bytes = 0
        self._turn = asyncio.Lock()

    @property
    def used_bytes(self) -> int:
        """What lies on the disk, half-written replicas and reservations included."""
        return self._residents.disk_bytes() + self._reserved_bytes

    @property
    def capacity_bytes(self) -> int:
        """How much may lie there."""
        return self._budget.capacity(self._residents.disk_bytes())

    @asynccontextmanager
    async def reserve(self, size_bytes: int) -> AsyncIterator[None]:
        """Room for so many bytes as long as the context lasts: what is written by then must be
        known to the residents before it ends. Reports pressure and waits when there is none.
        Raises OutOfCapacity."""
        async with self._turn:
            await self._wait(size_bytes)
            self._reserved_bytes += size_bytes
        try:
            yield
        finally:
            self._reserved_bytes -= size_bytes

    async def _wait(self, size_bytes: int) -> None:
        clock = asyncio.get_running_loop().time
        deadline, told_at = clock() + self._wait_s, -TELL_AGAIN_S
        while (missing := self.used_bytes + size_bytes - self.capacity_bytes) > 0:
            if size_bytes > self.capacity_bytes or clock() > deadline:
                raise self._refuse(size_bytes)
            if clock() - told_at >= TELL_AGAIN_S:
                told_at = clock()
                if not await self.report_pressure(missing):
                    raise self._refuse(size_bytes)
            await asyncio.sleep(LOOK_AGAIN_S)

    def _refuse(self, size_bytes: int) -> OutOfCapacity:
        node, used = self._life.node, self.used_bytes
        what = f"{used} of the {self.capacity_bytes} bytes that it may hold are taken"
        why = ", and nothing there may go: it is the last copy, pinned, leased or asked for"
        return OutOfCapacity(
            f"The disk is full: node {node} has no room for {size_bytes} bytes there; {what}"
            f"{why if used else ''}.",
            hint="Remove or unpin artifacts, replicate them elsewhere, or give the disk tier more "
            "(`tcctl up --disk`).",
            node=node,
            retryable=False if size_bytes > self._budget.most() else None,
        )

    async def report_pressure(self, needed_bytes: int) -> bool:
        """Asks the cluster to make room. False: nothing may go, and nothing was said."""
        candidates = order_candidates(one for one in self.occupants() if one.has_copy)
        if not candidates:
            return False
        report = ReportPressure(
            node=self._life.node,
            epoch=self._life.epoch,
            tier=Tier.DISK,
            needed_bytes=needed_bytes,
            candidates=tuple(candidate.replica for candidate in candidates),
        )
        await self._reporter.report([report], None)
        return True

    def occupants(self) -> list[Occupant]:
        """The disk replicas, as candidates for eviction. What was asked for there is claimed."""
        view, node = self._follower.view, self._life.node
        return [
            Occupant(
                replica=on_disk(artifact, self._life),
                size_bytes=size_bytes,
                readers=0,
                used_at=self._residents.uses.used_at(artifact),
                claimed=is_claimed(view, artifact, node)
                or is_requested(view, artifact, node, Tier.DISK),
                has_copy=has_copy(view, artifact, on_disk(artifact, self._life)),
            )
            for artifact, size_bytes in self._residents.stored().items()
        ]
