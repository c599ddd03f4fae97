"""The whole log folded into one value: what schedulers, movers, the API and `replay` know.

`project(view, recorded)` is the only fold; the read models in Postgres hold the same states. The
maps are persistent (a changed copy shares all the rest), so a view can be kept at no cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NewType, Protocol

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
    policy,
    replica,
    signal,
)
from tensorcast.schema.aggregates.artifact import Artifact
from tensorcast.schema.aggregates.engine import Engine, EngineStatus
from tensorcast.schema.aggregates.key import KeyState, KeyStatus
from tensorcast.schema.aggregates.lease import Lease, LeaseStatus
from tensorcast.schema.aggregates.namespace import NamespaceRules
from tensorcast.schema.aggregates.node import Node
from tensorcast.schema.aggregates.operation import OPEN, Operation, OperationStatus
from tensorcast.schema.aggregates.plan import OPEN as OPEN_PLANS
from tensorcast.schema.aggregates.plan import Plan
from tensorcast.schema.aggregates.policy import PolicyState
from tensorcast.schema.aggregates.replica import Replica, ReplicaStatus
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
    PolicyCommand,
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
    Tier,
    family_of,
)
from tensorcast.schema.indexes import Members, add, group, group_members, join, mark, remove
from tensorcast.schema.namespaces import Namespace, NamespaceEvent
from tensorcast.schema.parking import (
    FAULTS,
    Parked,
    explain,
    is_blocked,
    park_one,
    parked_id,
)
from tensorcast.schema.plain import check_events
from tensorcast.schema.plan_commands import PlanCommand
from tensorcast.schema.plan_events import PlanEvent
from tensorcast.schema.policy_events import PolicyEvent
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
    | PolicyState
)
FOLD_VERSION = 2
"""To be raised when the same events lead to other states than before: what was kept of the older
fold is then made anew. `tests/replay` fails when they do."""
SETTLED = frozenset({OperationStatus.SUCCEEDED, OperationStatus.CANCELLED})
"""Statuses of an operation that is over for good, unless somebody asks for another try."""
LIVE = frozenset({ReplicaStatus.FILLING, ReplicaStatus.READY, ReplicaStatus.EVICTING})
"""Statuses of a replica that takes room."""
Place = NewType("Place", str)
"""A tier of a node (`place_of`)."""


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """The states of all aggregates after event `at`, and the indexes that readers need.

    `open_operations` are those issued or running; `operations_by_artifact` are all those of an
    artifact, `unsettled_by_artifact` those that have not succeeded and were not cancelled;
    `filling_by_artifact` its replicas that fill; `leases_by_artifact` holds the leases in force;
    `keys_by_artifact` the keys that point to it now, `keys_by_family` those of one name
    (`family_of`); `requests_by_node` the artifacts that were asked for on a node; `used_bytes` what
    the replicas in a tier of a node take; `draining` the nodes that give theirs away; `engines_up`
    the engines that run,
    `open_plans` the plans that are not over. `parked` are the things that stand still because an
    event of theirs could not be taken, and `skipped` counts those events (it stays 0 as long as
    every writer decides before it appends).
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
    policies: Map[str, PolicyState] = Map()
    replicas_by_artifact: Map[ArtifactId, frozenset[ReplicaId]] = Map()
    filling_by_artifact: Map[ArtifactId, frozenset[ReplicaId]] = Map()
    replicas_by_node: Map[NodeId, Members[ReplicaId]] = Map()
    keys_by_artifact: Map[ArtifactId, frozenset[Key]] = Map()
    keys_by_family: Map[str, Members[Key]] = Map()
    leases_by_artifact: Map[ArtifactId, frozenset[LeaseId]] = Map()
    operations_by_artifact: Map[ArtifactId, Members[OperationId]] = Map()
    unsettled_by_artifact: Map[ArtifactId, frozenset[OperationId]] = Map()
    open_operations: Members[OperationId] = Map()
    open_by_node: Map[NodeId, Members[OperationId]] = Map()
    requests_by_node: Map[NodeId, Members[ArtifactId]] = Map()
    used_bytes: Map[Place, int] = Map()
    draining: frozenset[NodeId] = frozenset()
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
        PolicyState: ("policies", {}),
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
    keys = [k for k in view.keys.values() if k.status is KeyStatus.SET]
    leases = (one for one in view.leases.values() if one.status is LeaseStatus.HELD)
    operations = view.operations.values()
    engines = view.engines.values()
    opened = [op for op in operations if op.status in OPEN]
    used: dict[Place, int] = {}
    for one in view.replicas.values():
        if one.status in LIVE and one.artifact in view.artifacts:
            size = view.artifacts[one.artifact].manifest.size_bytes
            place = place_of(one.node, one.tier)
            used[place] = used.get(place, 0) + size
    return {
        "filling_by_artifact": group(
            (r.artifact, r.id) for r in view.replicas.values() if r.status is ReplicaStatus.FILLING
        ),
        "keys_by_family": group_members((family_of(k.key), k.key) for k in keys),
        "open_by_node": group_members((op.node, op.id) for op in opened),
        "requests_by_node": group_members(
            (node, a.id) for a in view.artifacts.values() for node, _ in a.requests
        ),
        "used_bytes": Map((place, size) for place, size in used.items() if size),
        "draining": frozenset(node.id for node in view.nodes.values() if node.draining),
        "replicas_by_artifact": group((r.artifact, r.id) for r in view.replicas.values()),
        "replicas_by_node": group_members((r.node, r.id) for r in view.replicas.values()),
        "keys_by_artifact": group((k.artifact, k.key) for k in keys),
        "leases_by_artifact": group((one.artifact, one.id) for one in leases),
        "operations_by_artifact": group_members((op.work.artifact, op.id) for op in operations),
        "unsettled_by_artifact": group(
            (op.work.artifact, op.id) for op in operations if op.status not in SETTLED
        ),
        "open_operations": Map(dict.fromkeys(op.id for op in opened)),
        "engines_up": frozenset(e.id for e in engines if e.status is EngineStatus.UP),
        "open_plans": frozenset(p.id for p in view.plans.values() if p.status in OPEN_PLANS),
        "skipped": sum(one.events for one in view.parked.values()),
    }


class States(Protocol):
    """The states of all aggregates: a view has them, and whoever folds without one."""

    @property
    def artifacts(self) -> Mapping[ArtifactId, Artifact]: ...
    @property
    def keys(self) -> Mapping[Key, KeyState]: ...
    @property
    def replicas(self) -> Mapping[ReplicaId, Replica]: ...
    @property
    def operations(self) -> Mapping[OperationId, Operation]: ...
    @property
    def nodes(self) -> Mapping[NodeId, Node]: ...
    @property
    def leases(self) -> Mapping[LeaseId, Lease]: ...
    @property
    def engines(self) -> Mapping[EngineId, Engine]: ...
    @property
    def signals(self) -> Mapping[Topic, SignalTopic]: ...
    @property
    def plans(self) -> Mapping[PlanId, Plan]: ...
    @property
    def namespaces(self) -> Mapping[Namespace, NamespaceRules]: ...
    @property
    def policies(self) -> Mapping[str, PolicyState]: ...


def evolve(view: States, recorded: Recorded, event: Event) -> State:
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
    if isinstance(event, PolicyEvent):
        return policy.evolve(view.policies.get(event.policy), recorded, event)
    return signal.evolve(view.signals.get(event.topic), recorded, event)


def decide(view: ClusterView, command: Command) -> tuple[tuple[Event, ...], Seq]:
    """The events of a command against the view, and the position that the append must expect of
    the aggregate (0: it must be new). Raises what the aggregate's `decide` raises, Rejected for
    one that stands still, and InvalidArgument for integers beyond 64 bits."""
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
    elif isinstance(command, PolicyCommand):
        state = view.policies.get(command.policy)
        events = policy.decide(state, command)
    else:
        assert isinstance(command, SignalCommand), aggregate_of(command)
        state = view.signals.get(command.topic)
        events = signal.decide(state, command)
    check_events(events)
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
            return _artifact_changes(view, state)
        case KeyState():
            return _key_changes(view, state)
        case Replica():
            return {
                "replicas": view.replicas.set(state.id, state),
                "replicas_by_artifact": add(view.replicas_by_artifact, state.artifact, state.id),
                "replicas_by_node": join(view.replicas_by_node, state.node, state.id),
                "filling_by_artifact": (add if state.status is ReplicaStatus.FILLING else remove)(
                    view.filling_by_artifact, state.artifact, state.id
                ),
                "used_bytes": _weighed(view, state),
            }
        case Operation():
            opened = view.open_operations
            by_artifact, artifact = view.operations_by_artifact, state.work.artifact
            settle = remove if state.status in SETTLED else add
            is_open = state.status in OPEN
            return {
                "operations": view.operations.set(state.id, state),
                "operations_by_artifact": join(by_artifact, artifact, state.id),
                "unsettled_by_artifact": settle(view.unsettled_by_artifact, artifact, state.id),
                "open_operations": mark(opened, state.id, is_in=is_open),
                "open_by_node": join(view.open_by_node, state.node, state.id, is_in=is_open),
            }
        case Node():
            others = view.draining - {state.id}
            return {
                "nodes": view.nodes.set(state.id, state),
                "draining": others | {state.id} if state.draining else others,
            }
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
        case PolicyState():
            return {"policies": view.policies.set(state.id, state)}
        case Engine():
            up = view.engines_up - {state.id}
            return {
                "engines": view.engines.set(state.id, state),
                "engines_up": up | {state.id} if state.status is EngineStatus.UP else up,
            }
        case Lease():
            change = add if state.status is LeaseStatus.HELD else remove
            return {
                "leases": view.leases.set(state.id, state),
                "leases_by_artifact": change(view.leases_by_artifact, state.artifact, state.id),
            }


def _artifact_changes(view: ClusterView, state: Artifact) -> dict[str, object]:
    before = view.artifacts.get(state.id)
    changes: dict[str, object] = {"artifacts": view.artifacts.set(state.id, state)}
    was = {node for node, _ in before.requests} if before is not None else set()
    wanted = {node for node, _ in state.requests}
    if was != wanted:
        index = view.requests_by_node
        for node in was ^ wanted:
            index = join(index, node, state.id, is_in=node in wanted)
        changes["requests_by_node"] = index
    if before is None and state.id in view.replicas_by_artifact:  # some came before it was known
        used = view.used_bytes
        for name in view.replicas_by_artifact[state.id]:
            replica = view.replicas[name]
            if replica.status in LIVE:
                used = _weigh(used, place_of(replica.node, replica.tier), state.manifest.size_bytes)
        changes["used_bytes"] = used
    return changes


def _weighed(view: ClusterView, state: Replica) -> Map[Place, int]:
    before = view.replicas.get(state.id)
    was, is_now = before is not None and before.status in LIVE, state.status in LIVE
    artifact = view.artifacts.get(state.artifact)
    if was == is_now or artifact is None:
        return view.used_bytes
    place = place_of(state.node, state.tier)
    size = artifact.manifest.size_bytes
    return _weigh(view.used_bytes, place, size if is_now else -size)


def place_of(node: NodeId, tier: Tier) -> Place:
    """The name of a tier of a node."""
    return Place(f"{node}:{tier}")


def _weigh(used: Map[Place, int], place: Place, change: int) -> Map[Place, int]:
    total = used.get(place, 0) + change
    if total:
        return used.set(place, total)
    return used.delete(place) if place in used else used


def _key_changes(view: ClusterView, state: KeyState) -> dict[str, object]:
    by_artifact = view.keys_by_artifact
    before = view.keys.get(state.key)
    if before is not None:
        by_artifact = remove(by_artifact, before.artifact, state.key)
    if state.status is KeyStatus.SET:
        by_artifact = add(by_artifact, state.artifact, state.key)
    is_set = state.status is KeyStatus.SET
    families = join(view.keys_by_family, family_of(state.key), state.key, is_in=is_set)
    return {
        "keys": view.keys.set(state.key, state),
        "keys_by_artifact": by_artifact,
        "keys_by_family": families,
    }
