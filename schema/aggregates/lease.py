"""A lease: a holder's time-bound claim that keeps an artifact's replicas from eviction."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import assert_never

import msgspec

from tensorcast.schema.aggregates.machine import next_status
from tensorcast.schema.commands import AcquireLease, ExpireLease, LeaseCommand, ReleaseLease
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.events import (
    Event,
    LeaseAcquired,
    LeaseEvent,
    LeaseExpired,
    LeaseReleased,
)
from tensorcast.schema.ids import ArtifactId, LeaseId, NodeId, Seq

TTL_S_MIN = 1.0
TTL_S_MAX = 86_400.0


class LeaseStatus(StrEnum):
    HELD = "held"
    RELEASED = "released"
    EXPIRED = "expired"


TRANSITIONS: Mapping[tuple[LeaseStatus | None, type[Event]], LeaseStatus] = {
    (None, LeaseAcquired): LeaseStatus.HELD,
    (LeaseStatus.HELD, LeaseReleased): LeaseStatus.RELEASED,
    (LeaseStatus.HELD, LeaseExpired): LeaseStatus.EXPIRED,
}


class Lease(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`node` None: on every node. Renewals are not events: a timer watches for silence."""

    id: LeaseId
    status: LeaseStatus
    artifact: ArtifactId
    node: NodeId | None
    holder: str
    ttl_s: float
    acquired_at: datetime
    version: Seq = Seq(0)


def decide(state: Lease | None, command: LeaseCommand) -> tuple[LeaseEvent, ...]:
    """The events that the command leads to. Raises NotFound, Rejected or InvalidArgument."""
    if isinstance(command, AcquireLease):
        if not TTL_S_MIN <= command.ttl_s <= TTL_S_MAX:
            raise InvalidArgument(
                f"A lease of {command.ttl_s} s is out of range.",
                hint=f"Choose {TTL_S_MIN:g} to {TTL_S_MAX:g} seconds.",
            )
        return _acquire(state, command)
    if state is None:
        raise NotFound(f"There is no lease {command.lease}.")
    if state.status is not LeaseStatus.HELD:
        return ()
    match command:
        case ReleaseLease():
            return (LeaseReleased(lease=state.id),)
        case ExpireLease():
            return (LeaseExpired(lease=state.id, last_seen=command.last_seen),)
        case _:
            assert_never(command)


def _acquire(state: Lease | None, command: AcquireLease) -> tuple[LeaseEvent, ...]:
    if state and state.status is LeaseStatus.HELD:
        return ()
    event = LeaseAcquired(
        lease=command.lease,
        artifact=command.artifact,
        node=command.node,
        holder=command.holder,
        ttl_s=command.ttl_s,
    )
    next_status(TRANSITIONS, state.status if state else None, event, f"lease {command.lease}")
    return (event,)


def evolve(state: Lease | None, recorded: Recorded, event: LeaseEvent) -> Lease:
    """The state after `event`. Raises Rejected when the event cannot follow."""
    status = next_status(
        TRANSITIONS, state.status if state else None, event, f"lease {event.lease}"
    )
    if isinstance(event, LeaseAcquired):
        return Lease(
            id=event.lease,
            status=status,
            artifact=event.artifact,
            node=event.node,
            holder=event.holder,
            ttl_s=event.ttl_s,
            acquired_at=recorded.at,
            version=recorded.seq,
        )
    assert state is not None
    return msgspec.structs.replace(state, status=status, version=recorded.seq)
