"""Events and states as rows. Pure; the order of the values is that of `tables`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, assert_never

import msgspec

from tensorcast.controlplane.store.cells import (
    as_checked_json,
    as_integer,
    as_json,
    as_moment,
    as_text,
    as_uuid,
)
from tensorcast.controlplane.store.tables import READ_MODELS
from tensorcast.log.port import Stored
from tensorcast.schema.aggregates.artifact import Artifact
from tensorcast.schema.aggregates.engine import Engine
from tensorcast.schema.aggregates.key import KeyState
from tensorcast.schema.aggregates.lease import Lease
from tensorcast.schema.aggregates.namespace import NamespaceRules
from tensorcast.schema.aggregates.node import Node
from tensorcast.schema.aggregates.operation import Operation
from tensorcast.schema.aggregates.plan import Plan
from tensorcast.schema.aggregates.policy import PolicyState
from tensorcast.schema.aggregates.replica import Replica
from tensorcast.schema.aggregates.signal import SignalTopic
from tensorcast.schema.cluster import ClusterView, State
from tensorcast.schema.codec import decode
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.events import AggregateKind, UnknownEvent, aggregate_of
from tensorcast.schema.ids import derive_event_id
from tensorcast.schema.subjects import parse_log_subject
from tensorcast.schema.work import kind_of

UNREADABLE: Final = "unreadable"
"""The type of an event whose bytes are none; its row keeps the bytes."""
Row = tuple[object, ...]

STATE_TYPES: Final[dict[AggregateKind, type[State]]] = {
    AggregateKind.ARTIFACT: Artifact,
    AggregateKind.KEY: KeyState,
    AggregateKind.REPLICA: Replica,
    AggregateKind.OPERATION: Operation,
    AggregateKind.NODE: Node,
    AggregateKind.LEASE: Lease,
    AggregateKind.ENGINE: Engine,
    AggregateKind.SIGNAL: SignalTopic,
    AggregateKind.PLAN: Plan,
    AggregateKind.NAMESPACE: NamespaceRules,
    AggregateKind.POLICY: PolicyState,
}
_MAPS: Final[dict[str, str]] = {kind: table.name for kind, table in READ_MODELS.items()}
"""The field of the view that holds the states of a kind has the name of their table."""


class _Data(msgspec.Struct):
    data: msgspec.Raw


_data_decoder = msgspec.json.Decoder(_Data)
_encoder = msgspec.json.Encoder()


def read_event(
    stored: Stored, seen_at: datetime, read: Callable[[Stored], Recorded] | None = None
) -> Recorded:
    """The event, or for bytes that are none an event of type `unreadable` that stands for them:
    it changes no state, and its time is that at which it was seen."""
    try:
        return read(stored) if read else decode(stored.payload, stored.seq)
    except Corrupt:
        return Recorded(
            seq=stored.seq,
            id=derive_event_id(stored.subject, stored.payload.hex(), stored.seq),
            type=UNREADABLE,
            v=0,
            at=seen_at,
            actor="",
            event=UnknownEvent(type=UNREADABLE, v=0, data=msgspec.Raw(b"null")),
        )


def event_row(epoch: int, stored: Stored, recorded: Recorded, view: ClusterView) -> Row:
    """A row of `events`. `view` includes the event: it knows whose replica or operation it is
    about."""
    kind, aggregate_id = _aggregate(stored, recorded)
    artifact, node = about(view, kind, aggregate_id, recorded)
    return (
        epoch,
        stored.seq,
        as_uuid(recorded.id),
        as_text(stored.subject),
        kind,
        as_text(aggregate_id),
        as_text(recorded.type),
        as_integer(recorded.v),
        as_moment(recorded.at),
        as_text(recorded.actor),
        None if recorded.cause is None else as_uuid(recorded.cause),
        None if recorded.trace is None else as_text(recorded.trace),
        None if artifact is None else as_text(artifact),
        None if node is None else as_text(node),
        "null" if recorded.type == UNREADABLE else as_checked_json(data_of(stored.payload)),
        stored.payload,
    )


def data_of(payload: bytes) -> msgspec.Raw:
    """The `data` of an event as it was written. Raises msgspec.MsgspecError."""
    return _data_decoder.decode(payload).data


def _aggregate(stored: Stored, recorded: Recorded) -> tuple[str, str]:
    if not isinstance(recorded.event, UnknownEvent):
        return aggregate_of(recorded.event)
    try:
        return parse_log_subject(stored.subject)
    except ValueError:
        return "unknown", stored.subject


def about(
    view: ClusterView, kind: str, aggregate_id: str, recorded: Recorded
) -> tuple[str | None, str | None]:
    """The artifact and the node that an event concerns, where there is one of them."""
    state = find_state(view, kind, aggregate_id)
    match state:
        case Artifact():
            return state.id, None
        case Node():
            return None, state.id
        case Operation():
            return state.work.artifact, state.node
        case Replica() | Lease():
            return state.artifact, state.node
        case Engine():  # its weights may have changed again since
            return getattr(recorded.event, "artifact", None), state.node
        case _:
            removed = getattr(recorded.event, "previous", None)
            artifact = getattr(recorded.event, "artifact", removed)
            return artifact, getattr(recorded.event, "node", None)


def find_state(view: ClusterView, kind: str, aggregate_id: str) -> State | None:
    """The state of an aggregate, if the view has it."""
    name = _MAPS.get(kind)
    if name is None:
        return None
    states: Mapping[str, State] = getattr(view, name)
    return states.get(aggregate_id)


def state_id(state: State) -> str:
    """The id of the aggregate whose state it is."""
    return state.key if isinstance(state, KeyState) else state.id


def kind_of_state(state: State) -> AggregateKind:
    """The kind of the aggregate whose state it is."""
    return next(kind for kind, cls in STATE_TYPES.items() if isinstance(state, cls))


def state_row(state: State) -> Row:
    """A row of the read model of the state's kind."""
    return (
        as_text(state_id(state)),
        state.status.value,
        *_columns(state),
        state.version,
        as_json(_encoder.encode(state)),
    )


def _columns(state: State) -> Row:
    match state:
        case Artifact():
            return (
                as_text(state.kind),
                as_integer(state.manifest.size_bytes),
                len(state.manifest.index),
                state.pinned,
                as_json(_encoder.encode(state.labels)),
                as_moment(state.sealed_at),
            )
        case KeyState():
            return as_text(state.artifact), as_integer(state.moves), as_moment(state.moved_at)
        case Replica():
            return (
                as_text(state.artifact),
                as_text(state.node),
                state.tier.value,
                as_integer(state.epoch),
                as_integer(len(state.chunks)),
                as_integer(state.chunks_total),
            )
        case Operation():
            return _operation_columns(state)
        case Node():
            return (
                as_integer(state.epoch),
                as_text(state.address),
                state.cordoned,
                state.draining,
                as_json(_encoder.encode(state.labels)),
                as_moment(state.joined_at),
            )
        case Engine():
            return _engine_columns(state)
        case Lease():
            return (
                as_text(state.artifact),
                as_text(state.node) if state.node is not None else None,
                as_text(state.holder),
                state.ttl_s,
                as_moment(state.acquired_at),
            )
        case Plan():
            return _plan_columns(state)
        case SignalTopic():
            return (
                as_integer(state.emitted),
                as_text(state.actor),
                as_moment(state.first_at),
                as_moment(state.last_at),
            )
        case NamespaceRules():
            return (as_moment(state.changed_at),)
        case PolicyState():
            return _policy_columns(state)
        case _:
            assert_never(state)


def _plan_columns(state: Plan) -> Row:
    return (
        as_text(state.spec.name),
        as_text(state.actor),
        len(state.steps),
        state.fault.kind.value if state.fault is not None else None,
        as_moment(state.submitted_at),
        as_moment(state.ended_at) if state.ended_at is not None else None,
    )


def _policy_columns(state: PolicyState) -> Row:
    return (
        as_json(_encoder.encode(state.parameters)),
        as_text(state.reason),
        as_text(state.actor),
        as_moment(state.changed_at),
    )


def _engine_columns(state: Engine) -> Row:
    return (
        as_text(state.kind),
        as_text(state.node) if state.node is not None else None,
        as_text(state.life),
        as_text(state.model),
        as_text(state.url),
        as_text(state.weights),
        as_text(state.artifact) if state.artifact is not None else None,
        as_moment(state.since) if state.since is not None else None,
        as_moment(state.registered_at),
    )


def _operation_columns(state: Operation) -> Row:
    return (
        kind_of(state.work),
        as_text(state.work.artifact),
        as_text(state.node),
        as_text(state.policy),
        as_uuid(state.cause) if state.cause is not None else None,
        as_integer(state.attempt),
        as_integer(state.bytes_moved),
        state.fault.kind.value if state.fault is not None else None,
        as_moment(state.issued_at),
        as_moment(state.ended_at) if state.ended_at is not None else None,
    )
