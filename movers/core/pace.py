"""How fast a source delivers: an estimate that follows what arrives. Pure: time comes as a value.

Arrivals are gathered over short windows of busy time, whose rates are averaged with weights that
decay exponentially, as TCP estimates its round trip (RFC 6298). Idle time does not count.
"""

from __future__ import annotations

import msgspec

WINDOW_S = 0.05
"""Shorter windows measure the bursts of the network, not its rate."""

MEMORY_S = 0.5
"""A change of rate is known by about so many seconds later."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """`rate` in bytes a second (0: not known yet); `fresh_bytes` came since the window began at
    `since_s`; `heard_s` is when something was last heard, or asked for after a rest."""

    rate: float = 0.0
    fresh_bytes: int = 0
    since_s: float = 0.0
    heard_s: float = 0.0


def resume(pace: Pace, at_s: float) -> Pace:
    """It is asked for something after it had nothing to do."""
    return Pace(rate=pace.rate, since_s=at_s, heard_s=at_s)


def hear(pace: Pace, size_bytes: int, at_s: float) -> Pace:
    """So many bytes have come from it (0: it only said something)."""
    fresh = pace.fresh_bytes + size_bytes
    window_s = at_s - pace.since_s
    if window_s < WINDOW_S:
        return Pace(rate=pace.rate, fresh_bytes=fresh, since_s=pace.since_s, heard_s=at_s)
    found = fresh / window_s
    weight = window_s / (window_s + MEMORY_S)
    rate = pace.rate + weight * (found - pace.rate) if pace.rate else found
    return Pace(rate=rate, since_s=at_s, heard_s=at_s)


def silent_s(pace: Pace, at_s: float) -> float:
    """For how long nothing was heard while it owed something."""
    return max(0.0, at_s - pace.heard_s)


def time_for(pace: Pace, size_bytes: int, at_s: float, part_bytes: int) -> float:
    """The seconds that it will take for so many bytes, as far as is known; infinite when nothing
    is. A source that has not delivered even one part of `part_bytes` for a while is as slow as
    that."""
    silent = silent_s(pace, at_s)
    rate = min(pace.rate, part_bytes / silent) if silent else pace.rate
    return size_bytes / rate if rate else float("inf")
