"""What is different between two views. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, assert_never

import msgspec

from tensorcast.schema.aggregates.artifact import Artifact, ArtifactStatus
from tensorcast.schema.aggregates.engine import Engine
from tensorcast.schema.aggregates.key import KeyState, KeyStatus
from tensorcast.schema.aggregates.lease import Lease, LeaseStatus
from tensorcast.schema.aggregates.namespace import NamespaceRules
from tensorcast.schema.aggregates.node import Node
from tensorcast.schema.aggregates.operation import Operation
from tensorcast.schema.aggregates.plan import Plan
from tensorcast.schema.aggregates.policy import PolicyState
from tensorcast.schema.aggregates.replica import Replica
from tensorcast.schema.aggregates.signal import SignalTopic
from tensorcast.schema.api_past import Change, FieldChange
from tensorcast.schema.cluster import LIVE, ClusterView, State
from tensorcast.schema.folds import MAPS
from tensorcast.schema.work import kind_of

Fields = Mapping[str, object]
Scope = tuple[str, str]
"""A kind (artifact, key, node, operation, engine, plan) and a whole id: only what concerns it."""


def compare(
    before: ClusterView, after: ClusterView, scope: Scope | None = None
) -> tuple[Change, ...]:
    """All that is different in `after`, a later view of the same history: kind by kind, within one
    in the order of their last events. What came and went meanwhile is not different."""
    found: list[Change] = []
    for kind, name in MAPS.items():
        old_states: Mapping[str, State] = getattr(before, name)
        changed = [
            (key, state) for key, state in getattr(after, name).items() if state.version > before.at
        ]
        changed.sort(key=lambda pair: pair[1].version)
        for key, state in changed:
            old = old_states.get(key)
            if scope is not None and not _concerns(scope, state, old):
                continue
            change = _compare_one(kind, key, old, state)
            if change is not None:
                found.append(change)
    return tuple(found)


def _compare_one(kind: str, key: str, old: State | None, new: State) -> Change | None:
    was = old is not None and is_there(old)
    is_now = is_there(new)
    if not was and not is_now:
        return None
    before = describe(old) if was and old is not None else {}
    after = describe(new) if is_now or was else {}
    fields = tuple(_differences(before, after))
    if not fields:
        return None
    change = "changed" if was and is_now else "added" if is_now else "removed"
    return Change(kind=kind, id=key, change=change, fields=fields, seq=new.version)


def _differences(before: Fields, after: Fields) -> Iterator[FieldChange]:
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if old != new:
            yield FieldChange(name=name, before=old, after=new)


def is_there(state: State) -> bool:
    """Whether the thing exists: an artifact that is not removed, a key that points to something, a
    replica that takes room, a lease in force; all others for ever."""
    match state:
        case Artifact():
            return state.status is ArtifactStatus.SEALED
        case KeyState():
            return state.status is KeyStatus.SET
        case Replica():
            return state.status in LIVE
        case Lease():
            return state.status is LeaseStatus.HELD
        case Operation() | Node() | Engine() | SignalTopic() | Plan():
            return True
        case NamespaceRules() | PolicyState():
            return True


def describe(state: State) -> Fields:
    """The fields of a thing that may be different, as JSON, in the words of the API."""
    found: object = msgspec.to_builtins(_describe(state))
    assert isinstance(found, dict)
    return found


def _describe(state: State) -> Fields:
    match state:
        case Artifact():
            return {
                "state": state.status,
                "kind": state.kind,
                "bytes": state.manifest.size_bytes,
                "tensors": len(state.manifest.index),
                "labels": state.labels,
                "pinned": state.pinned,
                "requests": [f"{node}/{tier}" for node, tier in state.requests],
            }
        case KeyState():
            points = state.artifact if state.status is KeyStatus.SET else None
            return {"artifact": points, "version": state.moves}
        case Replica():
            return {
                "state": state.status,
                "artifact": state.artifact,
                "node": state.node,
                "tier": state.tier,
                "epoch": state.epoch,
                "chunks_ready": len(state.chunks),
                "chunks_total": state.chunks_total,
            }
        case Operation():
            return _of_operation(state)
        case Node():
            return {
                "state": state.status,
                "epoch": state.epoch,
                "address": state.address,
                "cordoned": state.cordoned,
                "draining": state.draining,
                "tiers": state.tiers,
                "transports": list(state.transports),
                "labels": state.labels,
            }
        case Lease():
            return {
                "state": state.status,
                "artifact": state.artifact,
                "node": state.node,
                "holder": state.holder,
                "ttl_s": state.ttl_s,
            }
        case Engine():
            return _of_engine(state)
        case Plan():
            return _of_plan(state)
        case PolicyState():
            return {"state": state.status, "parameters": state.parameters, "reason": state.reason}
        case SignalTopic():
            return {"emitted": state.emitted, "actor": state.actor, "last_at": state.last_at}
        case NamespaceRules():
            return {who: list(rights) for who, rights in state.rules.items()}
        case _:
            assert_never(state)


def _of_engine(state: Engine) -> Fields:
    return {
        "state": state.status,
        "node": state.node,
        "life": state.life,
        "kind": state.kind,
        "model": state.model,
        "url": state.url,
        "version": state.weights,
        "artifact": state.artifact,
        "since": state.since,
    }


def _of_plan(state: Plan) -> Fields:
    return {
        "state": state.status,
        "name": state.spec.name,
        "fault": state.fault.detail if state.fault is not None else None,
        "steps": {path: step.status for path, step in state.steps.items()},
        "ended_at": state.ended_at,
    }


def _of_operation(state: Operation) -> Fields:
    return {
        "status": state.status,
        "kind": kind_of(state.work),
        "artifact": state.work.artifact,
        "node": state.node,
        "policy": state.policy,
        "attempt": state.attempt,
        "bytes_moved": state.bytes_moved,
        "fault": state.fault.detail if state.fault is not None else None,
        "ended_at": state.ended_at,
    }


def _concerns(scope: Scope, *states: State | None) -> bool:
    kind, name = scope
    return any(name in _names(kind, state) for state in states if state is not None)


def _names(kind: str, state: State) -> tuple[str | None, ...]:
    """What of this kind a thing is, or has to do with."""
    own = state.key if isinstance(state, KeyState) else state.id
    is_own = isinstance(state, _OWN[kind])
    match kind:
        case "artifact":
            other = state.work.artifact if isinstance(state, Operation) else None
            return (own if is_own else None, getattr(state, "artifact", other))
        case "node":
            return (own if is_own else None, getattr(state, "node", None))
        case _:
            return (own if is_own else None,)


_OWN: Final[Mapping[str, type[State]]] = {
    "artifact": Artifact,
    "key": KeyState,
    "node": Node,
    "operation": Operation,
    "engine": Engine,
    "plan": Plan,
}
