"""The whole log folded into one value: what schedulers, movers, the API and `replay` know.

`project(view, recorded)` is the only fold; the read models in Postgres hold the same states. The
maps are persistent (a changed copy shares all the rest), so a view can be kept at no cost.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec
from immutables import Map

from tensorcast.schema.aggregates import (
    artifact,
    engine,
    key,
    lease,
    namespace,
    node,
    operation,
    plan,
    replica,
    signal,
)
from tensorcast.schema.aggregates.artifact import Artifact
from tensorcast.schema.aggregates.engine import Engine, EngineStatus
from tensorcast.schema.aggregates.key import KeyState, KeyStatus
from tensorcast.schema.aggregates.lease import Lease, LeaseStatus
from tensorcast.schema.aggregates.namespace import NamespaceRules
from tensorcast.schema.aggregates.node import Node
from tensorcast.schema.aggregates.operation import OPEN, Operation
from tensorcast.schema.aggregates.plan import OPEN as OPEN_PLANS
from tensorcast.schema.aggregates.plan import Plan
from tensorcast.schema.aggregates.replica import Replica
from tensorcast.schema.aggregates.signal import SignalTopic
from tensorcast.schema.commands import (
    ArtifactCommand,
    Command,
    EngineCommand,
    KeyCommand,
    LeaseCommand,
    NamespaceCommand,
    NodeCommand,
    OperationCommand,
    ReplicaCommand,
    SignalCommand,
    aggregate_of,
)
from tensorcast.schema.engine_events import EngineEvent
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import Rejected
from tensorcast.schema.events import (
    ArtifactEvent,
    Event,
    KeyEvent,
    LeaseEvent,
    NodeEvent,
    OperationEvent,
    ReplicaEvent,
    UnknownEvent,
)
from tensorcast.schema.events import aggregate_of as event_aggregate
from tensorcast.schema.ids import (
    ArtifactId,
    EngineId,
    Key,
    LeaseId,
    NodeId,
    OperationId,
    PlanId,
    ReplicaId,
    Seq,
)
from tensorcast.schema.namespaces import Namespace, NamespaceEvent
from tensorcast.schema.parking import (
    FAULTS,
    Parked,
    explain,
    is_blocked,
    park_one,
    parked_id,
)
from tensorcast.schema.plan_commands import PlanCommand
from tensorcast.schema.plan_events import PlanEvent
from tensorcast.schema.signals import Topic

State = (
    Artifact
    | KeyState
    | Replica
    | Operation
    | Node
    | Lease
    | Engine
    | SignalTopic
    | Plan
    | NamespaceRules
)
FOLD_VERSION = 2
"""To be raised when the same events lead to other states than before: what was kept of the older
fold is then made anew. `tests/replay` fails when they do."""
K = TypeVar("K")
V = TypeVar("V")
Members = Map[V, None]
"""A set that grows without bound: a copy with one member more or less shares all the rest."""


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """The states of all aggregates after event `at`, and the indexes that readers need.

    `open_operations` are those issued or running; `operations_by_artifact` are all those of an
    artifact; `leases_by_artifact` holds the leases in force; `keys_by_artifact` the keys that
    point to it now; `engines_up` the engines that run, `open_plans` the plans that are not over.
    `parked` are the things that stand still because an event of theirs could not be taken, and
    `skipped` counts those events (it stays 0 as long as every writer decides before it appends).
    """

    at: Seq = Seq(0)
    artifacts: Map[ArtifactId, Artifact] = Map()
    keys: Map[Key, KeyState] = Map()
    replicas: Map[ReplicaId, Replica] = Map()
    operations: Map[OperationId, Operation] = Map()
    nodes: Map[NodeId, Node] = Map()
    leases: Map[LeaseId, Lease] = Map()
    engines: Map[EngineId, Engine] = Map()
    signals: Map[Topic, SignalTopic] = Map()
    plans: Map[PlanId, Plan] = Map()
    parked: Map[str, Parked] = Map()
    namespaces: Map[Namespace, NamespaceRules] = Map()
    replicas_by_artifact: Map[ArtifactId, frozenset[ReplicaId]] = Map()
    replicas_by_node: Map[NodeId, Members[ReplicaId]] = Map()
    keys_by_artifact: Map[ArtifactId, frozenset[Key]] = Map()
    leases_by_artifact: Map[ArtifactId, frozenset[LeaseId]] = Map()
    operations_by_artifact: Map[ArtifactId, frozenset[OperationId]] = Map()
    open_operations: Members[OperationId] = Map()
    engines_up: frozenset[EngineId] = frozenset()
    open_plans: frozenset[PlanId] = frozenset()
    skipped: int = 0


def project(view: ClusterView, recorded: Recorded) -> ClusterView:
    """The view after one more event. Events must come in the order of the log; one at or before
    `view.at` changes nothing, so redelivery is harmless."""
    if recorded.seq <= view.at:
        return view
    event = recorded.event
    if isinstance(event, UnknownEvent):
        return msgspec.structs.replace(view, at=recorded.seq)
    reason = ""
    if not view.parked or not is_blocked(view.parked, *event_aggregate(event)):
        try:
            changes = _placed(view, evolve(view, recorded, event))
        except FAULTS as error:
            reason = explain(error)
        else:
            return msgspec.structs.replace(view, at=recorded.seq, **changes)
    return park(view, recorded.seq, parked_id(*event_aggregate(event)), reason)


def park(view: ClusterView, seq: Seq, name: str, reason: str) -> ClusterView:
    """The view after an event that is not taken: it is parked with those of the thing `name`."""
    parked = view.parked.set(name, park_one(view.parked, name, seq, reason))
    return msgspec.structs.replace(view, at=seq, parked=parked, skipped=view.skipped + 1)


def release(view: ClusterView, name: str, state: State | None) -> ClusterView:
    """The view with all that was parked of a thing taken: `state` is what follows from all of its
    events."""
    held = view.parked.get(name)
    if held is None:
        return view
    view = msgspec.structs.replace(
        view, parked=view.parked.delete(name), skipped=view.skipped - held.events
    )
    return view if state is None else place(view, state)


def place(view: ClusterView, state: State) -> ClusterView:
    """The view with the state of one aggregate in it, indexes and all: so a view is read back from
    where its states were kept."""
    return msgspec.structs.replace(view, **_placed(view, state))


def assemble(states: Iterable[State | Parked], *, at: Seq) -> ClusterView:
    """The view after event `at`, of all its states and all that is parked at once; of several of
    one aggregate the last counts. Much faster than to `place` them one by one."""
    fields: dict[type[State | Parked], tuple[str, dict[str, State | Parked]]] = {
        Artifact: ("artifacts", {}),
        KeyState: ("keys", {}),
        Replica: ("replicas", {}),
        Operation: ("operations", {}),
        Node: ("nodes", {}),
        Lease: ("leases", {}),
        Engine: ("engines", {}),
        SignalTopic: ("signals", {}),
        Plan: ("plans", {}),
        Parked: ("parked", {}),
        NamespaceRules: ("namespaces", {}),
    }
    for state in states:
        name = state.key if isinstance(state, KeyState) else state.id
        fields[type(state)][1][name] = state
    view = ClusterView(at=at)
    maps = {name: Map(found) for name, found in fields.values()}
    view = msgspec.structs.replace(view, **maps)
    return msgspec.structs.replace(view, **_indexes(view))


def _indexes(view: ClusterView) -> dict[str, object]:
    """The indexes that follow from the states of a view."""
    keys = (k for k in view.keys.values() if k.status is KeyStatus.SET)
    leases = (one for one in view.leases.values() if one.status is LeaseStatus.HELD)
    operations = view.operations.values()
    engines = view.engines.values()
    by_node = _listed((r.node, r.id) for r in view.replicas.values())
    return {
        "replicas_by_artifact": _grouped((r.artifact, r.id) for r in view.replicas.values()),
        "replicas_by_node": Map({at: Map(dict.fromkeys(ids)) for at, ids in by_node.items()}),
        "keys_by_artifact": _grouped((k.artifact, k.key) for k in keys),
        "leases_by_artifact": _grouped((one.artifact, one.id) for one in leases),
        "operations_by_artifact": _grouped((op.work.artifact, op.id) for op in operations),
        "open_operations": Map(dict.fromkeys(op.id for op in operations if op.status in OPEN)),
        "engines_up": frozenset(e.id for e in engines if e.status is EngineStatus.UP),
        "open_plans": frozenset(p.id for p in view.plans.values() if p.status in OPEN_PLANS),
        "skipped": sum(one.events for one in view.parked.values()),
    }


def _grouped(pairs: Iterable[tuple[K, V]]) -> Map[K, frozenset[V]]:
    return Map({at: frozenset(members) for at, members in _listed(pairs).items()})


def _listed(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    groups: dict[K, list[V]] = {}
    for at, member in pairs:
        groups.setdefault(at, []).append(member)
    return groups


def evolve(view: ClusterView, recorded: Recorded, event: Event) -> State:
    """The new state of the aggregate that `event` belongs to. Raises Rejected."""
    if isinstance(event, ArtifactEvent):
        return artifact.evolve(view.artifacts.get(event.artifact), recorded, event)
    if isinstance(event, KeyEvent):
        return key.evolve(view.keys.get(event.key), recorded, event)
    if isinstance(event, ReplicaEvent):
        return replica.evolve(view.replicas.get(event.replica), recorded, event)
    if isinstance(event, OperationEvent):
        return operation.evolve(view.operations.get(event.operation), recorded, event)
    if isinstance(event, NodeEvent):
        return node.evolve(view.nodes.get(event.node), recorded, event)
    if isinstance(event, LeaseEvent):
        return lease.evolve(view.leases.get(event.lease), recorded, event)
    if isinstance(event, EngineEvent):
        return engine.evolve(view.engines.get(event.engine), recorded, event)
    if isinstance(event, PlanEvent):
        return plan.evolve(view.plans.get(event.plan), recorded, event)
    if isinstance(event, NamespaceEvent):
        return namespace.evolve(view.namespaces.get(event.namespace), recorded, event)
    return signal.evolve(view.signals.get(event.topic), recorded, event)


def decide(view: ClusterView, command: Command) -> tuple[tuple[Event, ...], Seq]:
    """The events of a command against the view, and the position that the append must expect of
    the aggregate (0: it must be new). Raises what the aggregate's `decide` raises, and Rejected
    for one that stands still."""
    if view.parked:
        _check_open(view, command)
    events: tuple[Event, ...]
    state: State | None
    if isinstance(command, ArtifactCommand):
        state = view.artifacts.get(command.artifact)
        events = artifact.decide(state, command)
    elif isinstance(command, KeyCommand):
        state = view.keys.get(command.key)
        events = key.decide(state, command)
    elif isinstance(command, ReplicaCommand):
        state = view.replicas.get(command.replica)
        events = replica.decide(state, command)
    elif isinstance(command, OperationCommand):
        state = view.operations.get(command.operation)
        events = operation.decide(state, command)
    elif isinstance(command, NodeCommand):
        state = view.nodes.get(command.node)
        events = node.decide(state, command)
    elif isinstance(command, LeaseCommand):
        state = view.leases.get(command.lease)
        events = lease.decide(state, command)
    elif isinstance(command, EngineCommand):
        state = view.engines.get(command.engine)
        events = engine.decide(state, command)
    elif isinstance(command, PlanCommand):
        state = view.plans.get(command.plan)
        events = plan.decide(state, command)
    elif isinstance(command, NamespaceCommand):
        state = view.namespaces.get(command.namespace)
        events = namespace.decide(state, command)
    else:
        assert isinstance(command, SignalCommand), aggregate_of(command)
        state = view.signals.get(command.topic)
        events = signal.decide(state, command)
    return events, state.version if state else Seq(0)


def _check_open(view: ClusterView, command: Command) -> None:
    kind, name = aggregate_of(command)
    if is_blocked(view.parked, kind, name):
        held = view.parked[parked_id(kind, name)]
        raise Rejected(
            f"The {kind} {name} stands still: its event {held.first} cannot be taken"
            f" ({held.reason.rstrip('.')}).",
            hint="`tcctl audit dead ls` shows what waits; a release that can take it goes on.",
        )


def _placed(view: ClusterView, state: State) -> dict[str, object]:
    match state:
        case Artifact():
            return {"artifacts": view.artifacts.set(state.id, state)}
        case KeyState():
            return _key_changes(view, state)
        case Replica():
            return {
                "replicas": view.replicas.set(state.id, state),
                "replicas_by_artifact": _with(view.replicas_by_artifact, state.artifact, state.id),
                "replicas_by_node": _joined(view.replicas_by_node, state.node, state.id),
            }
        case Operation():
            opened = view.open_operations
            by_artifact = view.operations_by_artifact
            return {
                "operations": view.operations.set(state.id, state),
                "operations_by_artifact": _with(by_artifact, state.work.artifact, state.id),
                "open_operations": _member(opened, state.id, is_in=state.status in OPEN),
            }
        case Node():
            return {"nodes": view.nodes.set(state.id, state)}
        case SignalTopic():
            return {"signals": view.signals.set(state.id, state)}
        case Plan():
            still_open = view.open_plans - {state.id}
            return {
                "plans": view.plans.set(state.id, state),
                "open_plans": still_open | {state.id} if state.status in OPEN_PLANS else still_open,
            }
        case NamespaceRules():
            return {"namespaces": view.namespaces.set(state.id, state)}
        case Engine():
            up = view.engines_up - {state.id}
            return {
                "engines": view.engines.set(state.id, state),
                "engines_up": up | {state.id} if state.status is EngineStatus.UP else up,
            }
        case Lease():
            change = _with if state.status is LeaseStatus.HELD else _without
            return {
                "leases": view.leases.set(state.id, state),
                "leases_by_artifact": change(view.leases_by_artifact, state.artifact, state.id),
            }


def _key_changes(view: ClusterView, state: KeyState) -> dict[str, object]:
    by_artifact = view.keys_by_artifact
    before = view.keys.get(state.key)
    if before is not None:
        by_artifact = _without(by_artifact, before.artifact, state.key)
    if state.status is KeyStatus.SET:
        by_artifact = _with(by_artifact, state.artifact, state.key)
    return {"keys": view.keys.set(state.key, state), "keys_by_artifact": by_artifact}


def _with(index: Map[K, frozenset[V]], at: K, member: V) -> Map[K, frozenset[V]]:
    members = index.get(at, frozenset())
    return index if member in members else index.set(at, members | {member})


def _joined(index: Map[K, Members[V]], at: K, member: V) -> Map[K, Members[V]]:
    before: Members[V] = index.get(at, Map())
    members = _member(before, member, is_in=True)
    return index if members is before else index.set(at, members)


def _member(members: Members[V], member: V, *, is_in: bool) -> Members[V]:
    if is_in == (member in members):
        return members
    return members.set(member, None) if is_in else members.delete(member)


def _without(index: Map[K, frozenset[V]], at: K, member: V) -> Map[K, frozenset[V]]:
    members = index.get(at, frozenset()) - {member}
    if members:
        return index.set(at, members)
    return index.delete(at) if at in index else index
