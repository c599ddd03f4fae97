"""Which replicas a node would give up first when its memory is full."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tensorcast.schema.ids import ReplicaId

CANDIDATES_MAX = 64


class Occupant(msgspec.Struct, frozen=True, kw_only=True):
    """A ready replica: its size in bytes, how many read it here, when it was last handed out
    (seconds on any steady clock), and whether a pin or lease keeps it."""

    replica: ReplicaId
    size_bytes: int
    readers: int
    used_at: float
    claimed: bool


def order_candidates(occupants: Iterable[Occupant]) -> tuple[Occupant, ...]:
    """Those that nobody reads or claims, the coldest first; ties by id, so it is repeatable."""
    free = (found for found in occupants if not found.readers and not found.claimed)
    return tuple(sorted(free, key=lambda found: (found.used_at, found.replica)))[:CANDIDATES_MAX]
