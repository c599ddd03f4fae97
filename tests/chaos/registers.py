"""Whether what clients saw of a key can be explained by one register that they shared. Pure.

A key is a register with compare-and-set. Its history is linearizable when each operation can be
given one moment between its call and its answer, so that in the order of these moments each saw
what the ones before it left behind (Herlihy and Wing, "Linearizability: a correctness condition for
concurrent objects", 1990). The search is that of Wing and Gong ("Testing and verifying concurrent
objects", 1993) with Lowe's memory of configurations ("Testing for linearizability", 2017): which
operations are done, and what the register holds. Linearizability is local, so each key is looked
at alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf

STEPS_MAX = 500_000


class Kind(Enum):
    """READ saw `value`. MOVED set it to `value`, from `expect` (or found it so already). CLEARED
    took away what was there. REFUSED found neither `expect` nor `value`; MISSING found nothing to
    clear."""

    READ = "read"
    MOVED = "moved"
    CLEARED = "cleared"
    REFUSED = "refused"
    MISSING = "missing"


@dataclass(frozen=True)
class Operation:
    """What a client did between two moments of one clock. Without an answer `ended` is infinite,
    and with `is_sure` unset it may never have happened."""

    kind: Kind
    began: float
    ended: float = inf
    value: str | None = None
    expect: str | None = None
    is_sure: bool = True

    def fits(self, held: str | None) -> bool:
        """Whether it can happen to a register that holds this."""
        match self.kind:
            case Kind.READ:
                return held == self.value
            case Kind.MOVED:
                return held in (self.expect, self.value)
            case Kind.REFUSED:
                return held not in (self.expect, self.value)
            case Kind.CLEARED:
                return held is not None
            case Kind.MISSING:
                return held is None

    def leave(self, held: str | None) -> str | None:
        """What the register holds afterwards."""
        match self.kind:
            case Kind.MOVED:
                return self.value
            case Kind.CLEARED:
                return None
            case _:
                return held


def is_linearizable(operations: Sequence[Operation], steps_max: int = STEPS_MAX) -> bool | None:
    """Whether one register, empty at first, explains them all; None when that was not found out in
    so many steps."""
    found = sorted(operations, key=lambda one: (one.began, one.ended))
    sure = sum(1 << index for index, one in enumerate(found) if one.is_sure)
    stack: list[tuple[int, str | None, int]] = [(0, None, 0)]
    seen: set[tuple[int, str | None]] = {(0, None)}
    while stack:
        done, held, low = stack.pop()
        if done & sure == sure:
            return True
        if len(seen) > steps_max:
            return None
        while done >> low & 1:
            low += 1
        for index in sorted(_next(found, done, low), key=lambda i: found[i].is_sure):
            if found[index].fits(held):
                after = (done | 1 << index, found[index].leave(held))
                if after not in seen:
                    seen.add(after)
                    stack.append((*after, low))
    return False


def _next(found: Sequence[Operation], done: int, low: int) -> Iterator[int]:
    """Those that may be the next: none of the others was answered before they were called."""
    answered = inf
    for index in range(low, len(found)):
        one = found[index]
        if one.began > answered:
            return
        if not done >> index & 1:
            answered = min(answered, one.ended)
            yield index
