"""How many connections a pull from one peer is worth, and which congestion control. Pure.

One connection is enough wherever neither its window nor losses hold it back, unless one CPU cannot
copy what the network brings. So a channel starts with one, and doubles as long as that paid; on
this machine it starts with two, as there the CPUs are the network.
"""

from __future__ import annotations

from typing import Final

import msgspec

STREAMS_MAX: Final = 16
"""Connections to one peer that windows or losses hold back."""

CPU_STREAMS_MAX: Final = 4
"""Connections to one peer that only CPUs hold back."""

CPU_RATE_MIN: Final = 400 << 20
"""Bytes a second that one CPU copies and checks with ease."""

GAIN_MIN: Final = 1.15
"""A doubling that made the pull less faster than this was the last one."""

LOSS_MIN: Final = 0.002
"""The share of lost packets from which on a path counts as lossy: losses of a queue that is full
are rarer over a second."""

LONG_RTT_S: Final = 0.002
"""Loss-based congestion control recovers at once from losses on shorter paths, and fills them
wholly."""


class Path(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the way to a peer: round trip, now and with empty queues (0: not known), the
    share of packets lost on it, the most bytes that one connection may have on their way, and
    whether the peer is on this machine."""

    rtt_s: float
    least_rtt_s: float = 0.0
    loss: float
    window_bytes: int
    is_local: bool

    @property
    def is_long(self) -> bool:
        return (self.least_rtt_s or self.rtt_s) >= LONG_RTT_S

    @property
    def is_lossy(self) -> bool:
        return self.loss >= LOSS_MIN and self.is_long


class Try(msgspec.Struct, frozen=True, kw_only=True):
    """What so many connections brought together, in bytes a second."""

    streams: int
    rate: float


def useful_streams(path: Path, rate: float, cores: int) -> int:
    """The most connections that can help when one of them brings `rate` bytes a second.

    Windows: bandwidth is at most window / round trip (RFC 7323, 1.1). Losses: loss-based control
    slows down with each of them, so its rate is near 1 / (rtt * sqrt(loss)) (Mathis et al., 1997)
    and several connections share the loss. Otherwise one CPU at each end is the limit, and on one
    machine the ends share them; where the network is slower than that, a second connection only
    mixes the order in which chunks come, and who pulls from us while we fill waits for that.
    """
    if path.is_lossy or rate * path.rtt_s > path.window_bytes / 2:
        return STREAMS_MAX
    if rate < CPU_RATE_MIN:
        return 1
    by_cores = max(first_streams(cores, is_local=True), cores // 2) if path.is_local else cores
    return max(1, min(CPU_STREAMS_MAX, by_cores))


def first_streams(cores: int, *, is_local: bool) -> int:
    """With how many connections to begin. On one machine a copy of one of them runs while the other
    one sends: two on two CPUs brought a quarter more than one."""
    return min(2, cores) if is_local else 1


def next_streams(tries: tuple[Try, ...], path: Path, cores: int) -> int:
    """How many connections to use after these tries, the last of which is the present one."""
    now = tries[-1]
    if len(tries) > 1 and now.rate < GAIN_MIN * tries[-2].rate:
        return now.streams
    useful = useful_streams(path, now.rate / now.streams, cores)
    return max(now.streams, min(2 * now.streams, useful))


def choose_congestion(path: Path, present: str) -> str:
    """The congestion control that suits a sender's path: one that does not take each loss for a
    full queue (BBR: Cardwell et al., 2016) where packets are lost at random on a long way; instead
    of it one that does not pace on short ways, as BBR sends 1% less than it believes the way to
    carry, and each node of a chain falls behind the one before it by as much; else the present
    one."""
    if path.is_local or (present == "bbr" and not path.is_long):
        return "cubic"
    return "bbr" if path.is_lossy else present
