"""Which sources a transfer leaves because it would wait for them. Pure.

A source that owes chunks is left when it says nothing for long while another has what it owes, and,
at the end of a transfer, when a source that has nothing left to do would bring them much sooner.
Its pulls are given up first, and asked again when nothing of them writes any more: no chunk is ever
written by two at once, so a verified one cannot be spoiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from tensorcast.movers.core.pace import silent_s, time_for
from tensorcast.movers.core.sources import Limits, Source
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.ids import Epoch, NodeId

Owed = Mapping[tuple[NodeId, Epoch], ChunkSet]
"""What each life of a peer was asked for and has not delivered."""

SLOWNESS = 8.0
"""Who takes so many times longer than another is slow, and not only the last."""

GAIN = 2.0
GAIN_S = 0.05
"""A source is left when another needs less than half of its time and saves more than this: giving
it up costs its connection."""


class Reason(StrEnum):
    SILENT = "silent"
    SLOW = "slow"
    LATE = "late"


class Laggard(msgspec.Struct, frozen=True, kw_only=True):
    """A life of a peer that is left. SILENT and SLOW are its own fault; LATE: others are ready
    before it."""

    node: NodeId
    epoch: Epoch
    reason: Reason

    @property
    def life(self) -> tuple[NodeId, Epoch]:
        return self.node, self.epoch


def may_lag(sources: Sequence[Source], limits: Limits, at_s: float, *, is_all_asked: bool) -> bool:
    """Whether it is worth looking for laggards: a glance, for every chunk that comes."""
    if is_all_asked and len(sources) > 1 and any(not source.in_flight for source in sources):
        return True
    return any(s.in_flight and silent_s(s.pace, at_s) > limits.stall_s for s in sources)


def find_laggards(
    sources: Sequence[Source],
    owed: Owed,
    *,
    is_all_asked: bool,
    chunk_bytes: int,
    limits: Limits,
    at_s: float,
) -> tuple[Laggard, ...]:
    """The sources to leave now; at most one for each idle source that takes over."""
    idle = [s for s in sources if not s.in_flight and s.is_trusted and s.pace.rate]
    found: list[Laggard] = []
    for source in sources:
        rest = owed.get(source.life, ChunkSet())
        if not rest.ranges:
            continue
        reason = None
        if _is_silent(source, sources, rest, limits, at_s):
            reason = Reason.SILENT
        elif is_all_asked:
            reason = _is_late(source, idle, rest, chunk_bytes, at_s)
        if reason is not None:
            found.append(Laggard(node=source.node, epoch=source.epoch, reason=reason))
    return tuple(found)


def _is_silent(
    source: Source, sources: Sequence[Source], rest: ChunkSet, limits: Limits, at_s: float
) -> bool:
    """Whether it has said nothing for long, and another that has not can do its work."""
    if silent_s(source.pace, at_s) <= limits.stall_s:
        return False
    return any(
        other.life != source.life
        and other.is_trusted
        and (not other.in_flight or silent_s(other.pace, at_s) <= limits.stall_s)
        and ((rest & other.chunks).ranges or other.is_promising(limits))
        for other in sources
    )


def _is_late(
    source: Source, idle: list[Source], rest: ChunkSet, chunk_bytes: int, at_s: float
) -> Reason | None:
    """Whether an idle source of no worse rank would do the rest much sooner. Takes that one out of
    `idle`."""
    size_bytes = len(rest) * chunk_bytes
    own_s = time_for(source.pace, size_bytes, at_s, chunk_bytes)
    for other in idle:
        if other.rank > source.rank or (rest - other.chunks).ranges:
            continue
        other_s = size_bytes / other.pace.rate
        if own_s == float("inf") and silent_s(source.pace, at_s) < max(GAIN_S, GAIN * other_s):
            continue  # it was only just asked
        if own_s > GAIN * other_s + GAIN_S:
            idle.remove(other)
            is_slow = own_s > SLOWNESS * other_s and not source.is_filling
            return Reason.SLOW if is_slow and own_s > 1.0 else Reason.LATE
    return None
