"""Which peers a mover relies on. Pure: time and jitter come as values.

One circuit breaker for each peer, shared by all transfers of a mover: a failure, a time-out or
slowness puts the peer into quarantine, for longer each time (exponential backoff with jitter).
Nobody asks it meanwhile if anybody else has the bytes. Then it is on probation: it gets a chunk to
prove itself, and is good again when it delivers. A new life of a peer begins with a clean record.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from tensorcast.schema.ids import Epoch, NodeId


class HealthLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The first quarantine lasts `quarantine_s`, each further one twice as long, up to
    `quarantine_s_max`, and up to a quarter more or less by jitter. At most `peers_max` are
    remembered, the ones that failed last."""

    quarantine_s: float = 1.0
    quarantine_s_max: float = 60.0
    peers_max: int = 4096


class Standing(StrEnum):
    GOOD = "good"
    QUARANTINED = "quarantined"
    PROBATION = "probation"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one life of a peer: its failures in a row, until when it is quarantined and
    why, and the rate at which it delivered last, in bytes a second (0: not known)."""

    epoch: Epoch
    failures: int = 0
    until_s: float = 0.0
    reason: str = ""
    rate: float = 0.0


Health = Mapping[NodeId, Record]
"""The records of all peers; who is not in it is good."""


def standing(health: Health, node: NodeId, epoch: Epoch, at_s: float) -> Standing:
    """Whether this life of the peer can be relied on now."""
    record = health.get(node)
    if record is None or record.epoch != epoch or not record.failures:
        return Standing.GOOD
    return Standing.QUARANTINED if at_s < record.until_s else Standing.PROBATION


def rate_of(health: Health, node: NodeId, epoch: Epoch) -> float:
    """The rate at which this life delivered last; 0 when it is not known."""
    record = health.get(node)
    return record.rate if record is not None and record.epoch == epoch else 0.0


def fail(
    health: Health,
    node: NodeId,
    epoch: Epoch,
    reason: str,
    at_s: float,
    jitter: float,
    limits: HealthLimits = HealthLimits(),  # noqa: B008  (a frozen value)
) -> Health:
    """After a failure of this life; `jitter` in 0 .. 1. Several transfers that meet the same
    failure count it once: while it is quarantined nothing new is learned. An old life's end says
    nothing about a newer one."""
    known = health.get(node)
    if known is not None and known.epoch > epoch:
        return health
    if standing(health, node, epoch, at_s) is Standing.QUARANTINED:
        return health
    failures = known.failures + 1 if known is not None and known.epoch == epoch else 1
    backoff_s = min(limits.quarantine_s * 2.0 ** min(failures - 1, 32), limits.quarantine_s_max)
    record = Record(
        epoch=epoch,
        failures=failures,
        until_s=at_s + backoff_s * (0.75 + 0.5 * jitter),
        reason=reason,
        rate=rate_of(health, node, epoch),
    )
    return _with(health, node, record, limits)


def succeed(
    health: Health,
    node: NodeId,
    epoch: Epoch,
    rate: float,
    at_s: float,
    limits: HealthLimits = HealthLimits(),  # noqa: B008  (a frozen value)
) -> Health:
    """After this life has delivered. It is good again, unless it is in quarantine (for slowness,
    say): what was still under way does not shorten that."""
    known = health.get(node)
    if known is not None and known.epoch > epoch:
        return health
    if standing(health, node, epoch, at_s) is Standing.QUARANTINED:
        return health
    return _with(health, node, Record(epoch=epoch, rate=rate), limits)


def _with(health: Health, node: NodeId, record: Record, limits: HealthLimits) -> Health:
    others = {name: one for name, one in health.items() if name != node}
    while len(others) >= limits.peers_max:
        del others[min(others, key=lambda name: (others[name].until_s, name))]
    return {**others, node: record}


def forgiven(health: Health, at_s: float) -> frozenset[tuple[NodeId, Epoch]]:
    """The lives that failed and may be tried again."""
    return frozenset(
        (node, record.epoch)
        for node, record in health.items()
        if record.failures and at_s >= record.until_s
    )
