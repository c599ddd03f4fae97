"""An engine: a process that serves a model; its lives, and the weights that each serves."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import assert_never

import msgspec

from tensorcast.schema.aggregates.machine import next_status
from tensorcast.schema.commands import (
    EngineCommand,
    LeaveEngine,
    LoseEngine,
    RegisterEngine,
    ServeWeights,
)
from tensorcast.schema.engine_events import (
    EngineEvent,
    EngineLeft,
    EngineLost,
    EngineRegistered,
    EngineServing,
)
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import InvalidArgument, NotFound, Rejected
from tensorcast.schema.events import Event
from tensorcast.schema.ids import (
    ArtifactId,
    EngineId,
    NodeId,
    Seq,
    is_artifact_id,
    parse_engine,
)

TTL_S_MIN = 1.0
TTL_S_MAX = 3600.0
TEXT_CHARS_MAX = 1024
LABELS_MAX = 64


class EngineStatus(StrEnum):
    UP = "up"
    LEFT = "left"
    LOST = "lost"


TRANSITIONS: Mapping[tuple[EngineStatus | None, type[Event]], EngineStatus] = {
    (None, EngineRegistered): EngineStatus.UP,
    (EngineStatus.UP, EngineRegistered): EngineStatus.UP,
    (EngineStatus.LEFT, EngineRegistered): EngineStatus.UP,
    (EngineStatus.LOST, EngineRegistered): EngineStatus.UP,
    (EngineStatus.UP, EngineServing): EngineStatus.UP,
    (EngineStatus.UP, EngineLeft): EngineStatus.LEFT,
    (EngineStatus.LOST, EngineLeft): EngineStatus.LEFT,
    (EngineStatus.UP, EngineLost): EngineStatus.LOST,
}


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """`weights` is the version of the weights that it serves or, when it is not up, served last
    (empty: it has not said), `artifact` has their bytes, `since` when they began to serve. Signs of
    life are not events: a timer watches for silence."""

    id: EngineId
    status: EngineStatus
    life: str
    kind: str
    node: NodeId | None
    model: str
    url: str
    ttl_s: float
    labels: dict[str, str]
    registered_at: datetime
    weights: str = ""
    artifact: ArtifactId | None = None
    since: datetime | None = None
    version: Seq = Seq(0)


def decide(state: Engine | None, command: EngineCommand) -> tuple[EngineEvent, ...]:
    """The events that the command leads to. Raises NotFound, Rejected or InvalidArgument."""
    if isinstance(command, RegisterEngine):
        return _register(state, command)
    if state is None:
        raise NotFound(
            f"There is no engine {command.engine!r}.", hint="`tcctl engine ls` shows what there is."
        )
    match command:
        case ServeWeights():
            return _serve(state, command)
        case LeaveEngine():
            if state.status is EngineStatus.LEFT or state.life != command.life:
                return ()
            return (EngineLeft(engine=state.id, life=state.life),)
        case LoseEngine():
            if state.status is not EngineStatus.UP or state.life != command.life:
                return ()
            return (EngineLost(engine=state.id, life=state.life, last_seen=command.last_seen),)
        case _:
            assert_never(command)


def _register(state: Engine | None, command: RegisterEngine) -> tuple[EngineEvent, ...]:
    """The same life may register again: what it leaves empty stays as it said before."""
    _check_description(command)
    before = state if state and state.life == command.life else None
    event = EngineRegistered(
        engine=command.engine,
        life=command.life,
        kind=command.kind or (before.kind if before else ""),
        node=command.node or (before.node if before else None),
        model=command.model or (before.model if before else ""),
        url=command.url or (before.url if before else ""),
        ttl_s=command.ttl_s,
        labels={**(before.labels if before else {}), **command.labels},
    )
    if before and before.status is EngineStatus.UP and _describes(event, before):
        return ()
    return (event,)


def _describes(event: EngineRegistered, state: Engine) -> bool:
    return (event.kind, event.node, event.model, event.url, event.ttl_s, event.labels) == (
        state.kind,
        state.node,
        state.model,
        state.url,
        state.ttl_s,
        state.labels,
    )


def _check_description(command: RegisterEngine) -> None:
    parse_engine(command.engine)
    if not TTL_S_MIN <= command.ttl_s <= TTL_S_MAX:
        raise InvalidArgument(
            f"An engine cannot be watched with a limit of {command.ttl_s} s.",
            hint=f"Choose {TTL_S_MIN:g} to {TTL_S_MAX:g} seconds.",
        )
    _check_text("life", command.life)
    for name in ("kind", "model", "url"):
        if getattr(command, name):
            _check_text(name, getattr(command, name))
    if len(command.labels) > LABELS_MAX:
        raise InvalidArgument(f"An engine has at most {LABELS_MAX} labels.")
    for label in (*command.labels, *command.labels.values()):
        _check_text("label", label)


def _check_text(what: str, text: str) -> None:
    if not 0 < len(text) <= TEXT_CHARS_MAX or not text.isprintable():
        raise InvalidArgument(
            f"The {what} of an engine is 1 to {TEXT_CHARS_MAX} printable characters.",
            hint=f"Not {text[:40]!r}.",
        )


def _serve(state: Engine, command: ServeWeights) -> tuple[EngineEvent, ...]:
    _check_text("weights' version", command.version)
    if command.since.tzinfo is None:
        raise InvalidArgument("The time has no zone.", hint="As in 2026-01-31T12:00:00Z.")
    if command.artifact is not None and not is_artifact_id(command.artifact):
        raise InvalidArgument(f"{command.artifact!r} is not the id of an artifact.")
    if state.life != command.life:
        raise Rejected(
            f"Engine {state.id} lives another life since {state.registered_at.isoformat()}.",
            hint="Two engines may run under this name: give each its own (TENSORCAST_ENGINE).",
        )
    event = EngineServing(
        engine=state.id,
        life=state.life,
        version=command.version,
        artifact=command.artifact,
        since=command.since,
    )
    next_status(TRANSITIONS, state.status, event, f"engine {state.id}")
    said = (state.weights, state.artifact, state.since)
    return () if said == (event.version, event.artifact, event.since) else (event,)


def evolve(state: Engine | None, recorded: Recorded, event: EngineEvent) -> Engine:
    """The state after `event`. Raises Rejected when the event cannot follow."""
    status = next_status(
        TRANSITIONS, state.status if state else None, event, f"engine {event.engine}"
    )
    if isinstance(event, EngineRegistered):
        return _registered(state, status, recorded, event)
    assert state is not None
    changed = msgspec.structs.replace(state, status=status, version=recorded.seq)
    if not isinstance(event, EngineServing):
        return changed
    return msgspec.structs.replace(
        changed, weights=event.version, artifact=event.artifact, since=event.since
    )


def _registered(
    state: Engine | None, status: EngineStatus, recorded: Recorded, event: EngineRegistered
) -> Engine:
    """A life that goes on keeps its weights; one that was lost or is new has to tell them."""
    goes_on = state and state.life == event.life and state.status is EngineStatus.UP
    return Engine(
        id=event.engine,
        status=status,
        life=event.life,
        kind=event.kind,
        node=event.node,
        model=event.model,
        url=event.url,
        ttl_s=event.ttl_s,
        labels=event.labels,
        registered_at=recorded.at,
        weights=state.weights if state and goes_on else "",
        artifact=state.artifact if state and goes_on else None,
        since=state.since if state and goes_on else None,
        version=recorded.seq,
    )
