"""The health of this mover's peers: the one record that all its transfers share."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from tensorcast.movers.core.health import (
    Health,
    HealthLimits,
    Standing,
    fail,
    forgiven,
    rate_of,
    standing,
    succeed,
)
from tensorcast.schema.api import PeerInfo
from tensorcast.schema.ids import Epoch, NodeId


class Peers:
    """Remembers which peers failed. Belongs to the event loop's thread. `clock` counts seconds and
    never goes back; `jitter` gives numbers in 0 .. 1."""

    def __init__(
        self,
        limits: HealthLimits = HealthLimits(),  # noqa: B008  (a frozen value)
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._jitter = jitter
        self._health: Health = {}

    def now_s(self) -> float:
        """The moment on the clock of all times here."""
        return self._clock()

    def standing(self, node: NodeId, epoch: Epoch) -> Standing:
        """Whether this life of a peer can be relied on now."""
        return standing(self._health, node, epoch, self._clock())

    def rate(self, node: NodeId, epoch: Epoch) -> float:
        """The bytes a second that it delivered last; 0 when that is not known."""
        return rate_of(self._health, node, epoch)

    def fail(self, node: NodeId, epoch: Epoch, reason: str) -> None:
        """It failed, fell silent or is slow: `reason` says what, in a few words."""
        now_s = self._clock()
        self._health = fail(self._health, node, epoch, reason, now_s, self._jitter(), self._limits)

    def succeed(self, node: NodeId, epoch: Epoch, rate: float) -> None:
        """It delivered, at `rate` bytes a second."""
        self._health = succeed(self._health, node, epoch, rate, self._clock(), self._limits)

    def forgiven(self) -> frozenset[tuple[NodeId, Epoch]]:
        """The lives that failed and may be tried again."""
        return forgiven(self._health, self._clock())

    def report(self) -> tuple[PeerInfo, ...]:
        """The peers that have failed and not delivered since, by name."""
        now_s = self._clock()
        return tuple(
            PeerInfo(
                node=node,
                standing=str(standing(self._health, node, record.epoch, now_s)),
                failures=record.failures,
                reason=record.reason,
                quarantined_s=round(max(0.0, record.until_s - now_s), 3),
            )
            for node, record in sorted(self._health.items())
            if record.failures
        )
