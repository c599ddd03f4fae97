"""Which replicas a node would give up first when it is full, how full it may be, and what is read
so often that it belongs into memory. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tensorcast.schema.ids import ReplicaId

CANDIDATES_MAX = 64
HALF_LIFE_S = 300.0
APART_S = 1.0
POPULAR = 1.5


class Occupant(msgspec.Struct, frozen=True, kw_only=True):
    """A ready replica: its size in bytes, how many read it here, when it was last handed out
    (seconds on any steady clock), whether a pin or lease keeps it, and whether another complete
    copy is somewhere."""

    replica: ReplicaId
    size_bytes: int
    readers: int
    used_at: float
    claimed: bool
    has_copy: bool = False


def order_candidates(occupants: Iterable[Occupant]) -> tuple[Occupant, ...]:
    """Those that nobody reads or claims, the coldest first; ties by id, so it is repeatable. When
    there are many, the coldest of those that have a copy are among them all the same: perhaps
    nothing else may go."""
    free = (found for found in occupants if not found.readers and not found.claimed)
    coldest = sorted(free, key=lambda found: (found.used_at, found.replica))
    first, rest = coldest[:CANDIDATES_MAX], coldest[CANDIDATES_MAX:]
    with_copy = [found for found in rest if found.has_copy]
    return (*first, *with_copy[:CANDIDATES_MAX])


class Watermarks(msgspec.Struct, frozen=True, kw_only=True):
    """How full a tier may become before it is cleared in the background, and down to where:
    0 < `low` < `high` <= 1, as shares of its capacity."""

    high: float
    low: float

    def excess(self, taken_bytes: int, capacity_bytes: int) -> int:
        """Bytes that should go: 0 as long as the high mark is not passed."""
        if taken_bytes <= self.high * capacity_bytes:
            return 0
        return taken_bytes - int(self.low * capacity_bytes)

    def spare(self, taken_bytes: int, capacity_bytes: int) -> int:
        """Bytes that can be taken without passing the low mark."""
        return max(0, int(self.low * capacity_bytes) - taken_bytes)


class Heat(msgspec.Struct, frozen=True):
    """How often something is used: each use counts 1, and half of that `HALF_LIFE_S` later."""

    score: float = 0.0
    at: float = float("-inf")

    def now(self, at: float) -> float:
        """The score at a later time."""
        return self.score * 0.5 ** ((at - self.at) / HALF_LIFE_S) if self.score else 0.0

    def warmed(self, at: float) -> Heat:
        """The heat after a use. Uses within `APART_S` are one: a pull asks many times."""
        if at - self.at < APART_S:
            return self
        return Heat(self.now(at) + 1.0, at)
