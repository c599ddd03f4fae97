from collections import Counter
from contextlib import suppress
from functools import reduce

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import story
from samples import BEGIN, N1, N2, artifact_id, event_id, manifest, record, record_all
from strategies import chunk_sets, values
from tensorcast.schema import cluster, codec, commands
from tensorcast.schema import plan_commands as commands_of_plans
from tensorcast.schema.aggregates.engine import EngineStatus
from tensorcast.schema.aggregates.key import KeyStatus
from tensorcast.schema.aggregates.lease import LeaseStatus
from tensorcast.schema.aggregates.operation import OPEN
from tensorcast.schema.aggregates.replica import ReplicaStatus
from tensorcast.schema.cluster import (
    LIVE,
    SETTLED,
    ClusterView,
    assemble,
    decide,
    place,
    project,
)
from tensorcast.schema.envelope import Draft, Recorded
from tensorcast.schema.errors import InvalidArgument, Rejected, TensorCastError
from tensorcast.schema.events import (
    EVENT_TYPES,
    ArtifactPinned,
    ArtifactSealed,
    KeyMoved,
    KeyRemoved,
    UnknownEvent,
    aggregate_of,
)
from tensorcast.schema.faults import Detour, Fault, FaultKind
from tensorcast.schema.ids import NodeId, Overflow, PlanId, Seq, Tier, family_of, replica_id
from tensorcast.schema.namespaces import Right
from tensorcast.schema.plan_commands import StepCommand
from tensorcast.schema.plan_values import ValueType
from tensorcast.schema.plans import EmitStep, Input, PlanSpec
from tensorcast.schema.signals import Topic
from tensorcast.schema.work import Evict, Materialize, Persist

A, B = artifact_id("a"), artifact_id("b")
CHUNKS = 3
SEALED = ArtifactSealed(artifact=A, kind="weights", manifest=manifest(CHUNKS))


# ---- any intent of a small cluster -----------------------------------------------------------

ARTIFACTS = st.sampled_from([A, B])
NODES = st.sampled_from([N1, N2])
EPOCHS = st.integers(1, 3)
KEYS = st.sampled_from(["k1", "k2"])
LEASES = st.sampled_from(["l1", "l2"])
OPERATIONS = st.sampled_from(["op-1", "op-2", "op-3"])
TIERS = st.sampled_from(Tier)
REPLICAS = st.builds(replica_id, ARTIFACTS, NODES, TIERS)
FAULTS = st.just(Fault(kind=FaultKind.UNAVAILABLE, detail="gone"))
WORK = (
    st.builds(Materialize, artifact=ARTIFACTS, sources=st.lists(NODES, max_size=2).map(tuple))
    | st.builds(Persist, artifact=ARTIFACTS)
    | st.builds(Evict, artifact=ARTIFACTS, tier=TIERS)
)
FIELDS = {
    "topic": st.sampled_from(["a", "a.b", "no topic"]),
    "data": st.just({"n": 1}),
    "artifact": ARTIFACTS,
    "kind": st.just("weights"),
    "manifest": st.just(manifest(CHUNKS)),
    "labels": st.just({}),
    "nodes": st.lists(NODES, max_size=2).map(tuple),
    "node": NODES,
    "tier": TIERS,
    "replicas": st.lists(REPLICAS, max_size=2).map(tuple),
    "key": KEYS,
    "expect": st.none() | ARTIFACTS,
    "replica": REPLICAS,
    "epoch": EPOCHS,
    "chunks": chunk_sets(CHUNKS),
    "chunks_total": st.just(CHUNKS),
    "detail": st.just("d"),
    "reason": st.just("r"),
    "operation": OPERATIONS,
    "work": WORK,
    "policy": st.just("replicate"),
    "bytes_moved": st.integers(0, 9),
    "transports": st.just({"tcp": 1}),
    "detours": st.just((Detour(peer=NodeId("n1"), before="rdma", after="tcp", why="It broke."),)),
    "fault": FAULTS,
    "attempt": st.none() | st.integers(1, 4),
    "address": st.just("h:1"),
    "tiers": st.just({Tier.DRAM: 9}),
    "silent_s": st.just(5.0),
    "needed_bytes": st.integers(0, 9),
    "free_bytes": st.integers(0, 9),
    "overflow": st.sampled_from(Overflow),
    "candidates": st.just(()),
    "bandwidth": st.integers(0, 9),
    "namespace": st.sampled_from(["", "team", "a/b"]),
    "who": st.sampled_from(["*", "ada", "not a user"]),
    "rights": st.sets(st.sampled_from(Right), max_size=3).map(tuple),
    "ticket_key": st.sampled_from(["", "ab" * 32]),
    "sources": st.lists(NODES, max_size=2).map(tuple),
    "instead_of": NODES,
    "lease": LEASES,
    "holder": st.just("user:ada@desk"),
    "ttl_s": st.just(30.0),
    "last_seen": st.just(BEGIN),
    "engine": st.sampled_from(["e1", "e2"]),
    "life": st.sampled_from(["one", "two"]),
    "model": st.just("m"),
    "url": st.just("http://h:1"),
    "version": st.sampled_from(["m@1", "m@2"]),
    "since": st.just(BEGIN),
    "plan": st.sampled_from(["plan-1", "plan-2"]),
    "spec": st.just(PlanSpec(name="p", steps=(EmitStep(id="a", topic="t"),))),
    "inputs": st.just({}),
    "outputs": st.just({}),
    "step": st.sampled_from(["a", "b/0/c"]),
    "operations": st.just(("op-1",)),
    "retry_at": st.none() | st.just(BEGIN),
    "parameters": st.sampled_from([{}, {"versions": 3}]),
}


def intents(cls):
    """Any command of a class about the few names above."""
    special = {"transports": st.just(("tcp",))} if cls is commands.JoinNode else {}
    if issubclass(cls, StepCommand):
        special["attempt"] = st.integers(1, 2)
    return st.builds(cls, **{f: special.get(f, FIELDS[f]) for f in cls.__struct_fields__})


COMMANDS = st.sampled_from(commands.Command.__args__).flatmap(intents)


def same_replica(command):
    """Whether a replica command that carries the identity of its replica tells the truth."""
    if isinstance(command, commands.StartReplica | commands.CompleteReplica):
        return command.replica == replica_id(command.artifact, command.node, command.tier)
    return True


HISTORIES = st.lists(COMMANDS.filter(same_replica), max_size=40)


def run(history):
    """The log that comes of some commands, and the view after each of its events."""
    view, log = ClusterView(), []
    for command in history:
        try:
            events, expected = decide(view, command)
        except TensorCastError:
            continue
        for event in events:
            log.append(record(event, len(log) + 1, cause=event_id(expected)))
            view = project(view, log[-1])
    return view, log


def grouped(pairs):
    found = {}
    for at, member in pairs:
        found.setdefault(at, set()).add(member)
    return {at: frozenset(members) for at, members in found.items()}


# ---- what holds for every history ------------------------------------------------------------


@given(HISTORIES)
def test_what_is_decided_can_always_be_folded(history):
    view, log = run(history)
    assert view.skipped == 0
    assert view.at == len(log)


def sets_of(index):
    return {at: frozenset(members) for at, members in index.items()}


def is_open(operation):
    return operation.status in OPEN


@given(HISTORIES)
def test_the_indexes_say_what_the_states_say(history):
    view, _ = run(history)
    replicas, keys, leases = view.replicas.values(), view.keys.values(), view.leases.values()
    operations = view.operations.values()
    assert dict(view.replicas_by_artifact) == grouped((r.artifact, r.id) for r in replicas)
    by_node = {node: frozenset(members) for node, members in view.replicas_by_node.items()}
    assert by_node == grouped((r.node, r.id) for r in replicas)
    assert dict(view.keys_by_artifact) == grouped(
        (k.artifact, k.key) for k in keys if k.status is KeyStatus.SET
    )
    assert dict(view.leases_by_artifact) == grouped(
        (x.artifact, x.id) for x in leases if x.status is LeaseStatus.HELD
    )
    assert dict(view.filling_by_artifact) == grouped(
        (r.artifact, r.id) for r in replicas if r.status is ReplicaStatus.FILLING
    )
    by_artifact = sets_of(view.operations_by_artifact)
    assert by_artifact == grouped((o.work.artifact, o.id) for o in operations)
    assert dict(view.unsettled_by_artifact) == grouped(
        (o.work.artifact, o.id) for o in operations if o.status not in SETTLED
    )
    assert set(view.open_operations) == {o.id for o in operations if o.status in OPEN}
    assert sets_of(view.open_by_node) == grouped((o.node, o.id) for o in operations if is_open(o))
    assert sets_of(view.keys_by_family) == grouped(
        (family_of(k.key), k.key) for k in keys if k.status is KeyStatus.SET
    )
    asked = ((node, a.id) for a in view.artifacts.values() for node, _ in a.requests)
    assert sets_of(view.requests_by_node) == grouped(asked)
    assert view.draining == {node.id for node in view.nodes.values() if node.draining}
    used = Counter()
    for one in replicas:
        if one.status in LIVE and one.artifact in view.artifacts:
            used[f"{one.node}:{one.tier}"] += view.artifacts[one.artifact].manifest.size_bytes
    assert dict(view.used_bytes) == dict(used)
    engines = view.engines.values()
    assert view.engines_up == {e.id for e in engines if e.status is EngineStatus.UP}


@given(HISTORIES)
def test_a_view_can_be_put_together_from_its_states(history):
    view, _ = run(history)
    maps = (
        *(view.artifacts, view.keys, view.replicas, view.operations),
        *(view.nodes, view.leases, view.engines, view.signals, view.plans, view.namespaces),
        view.policies,
    )
    states = [state for one in maps for state in one.values()]
    assert reduce(place, states, ClusterView(at=view.at)) == view


@given(HISTORIES, st.data())
def test_redelivery_changes_nothing(history, data):
    view, log = run(history)
    repeats = data.draw(st.lists(st.sampled_from(log), max_size=5)) if log else []
    assert reduce(project, repeats, view) is view


@given(HISTORIES)
def test_a_fold_from_bytes_is_the_same_view(history):
    """What a restart reads back is what the process knew."""
    view, log = run(history)
    payloads = [codec.encode(to_draft(recorded)) for recorded in log]
    again = [codec.decode(payload, Seq(i)) for i, payload in enumerate(payloads, 1)]
    assert reduce(project, again, ClusterView()) == view


def to_draft(recorded):
    return Draft(
        id=recorded.id,
        at=recorded.at,
        actor=recorded.actor,
        cause=recorded.cause,
        event=recorded.event,
    )


@given(HISTORIES, st.integers(0, 40))
def test_a_view_is_kept_at_no_cost_and_never_changes(history, cut):
    _, log = run(history)
    early = reduce(project, log[:cut], ClusterView())
    kept = msgspec.structs.asdict(early)
    reduce(project, log[cut:], early)
    assert msgspec.structs.asdict(early) == kept


@given(HISTORIES, COMMANDS.filter(same_replica))
def test_a_decision_names_the_version_that_it_saw(history, command):
    view, log = run(history)
    try:
        _, expected = decide(view, command)
    except TensorCastError:
        return
    kind, aggregate = commands.aggregate_of(command)
    own = [r.seq for r in log if (kind, aggregate) == aggregate_of(r.event)]
    assert expected == (own[-1] if own else 0)


REPEATABLE = (
    commands.RequestReplicas,
    commands.RequestVerification,
    commands.DrainNode,
    commands.ReportPressure,
    commands.ReportRelief,
    commands.RetryOperation,
    commands.EmitSignal,
)


@given(HISTORIES, COMMANDS.filter(lambda c: same_replica(c) and not isinstance(c, REPEATABLE)))
def test_a_repeated_command_leads_to_no_event(history, command):
    """Duplicates and redelivery need no code of their own; asking again is the exception."""
    before, _ = run(history)
    try:
        decide(before, command)
    except TensorCastError:
        return
    view, _ = run([*history, command])
    with suppress(Rejected):
        assert decide(view, command)[0] == ()


# ---- single facts ----------------------------------------------------------------------------


def test_an_event_that_cannot_follow_is_counted_and_skipped():
    view = project(ClusterView(), record(ArtifactPinned(artifact=A)))
    assert (view.skipped, view.at, len(view.artifacts)) == (1, 1, 0)


def test_an_event_of_a_newer_release_only_moves_the_position():
    unknown = UnknownEvent(type="plan.applied", v=1, data=msgspec.Raw(b"{}"))
    view = project(ClusterView(), record(SEALED))
    recorded = Recorded(
        seq=2, id=event_id(2), type="plan.applied", v=1, at=BEGIN, actor="timers", event=unknown
    )
    after = project(view, recorded)
    assert after == msgspec.structs.replace(view, at=2)


def test_a_key_that_moves_leaves_its_old_artifact():
    moves = (
        KeyMoved(key="k", artifact=A, previous=None, version=1),
        KeyMoved(key="k", artifact=B, previous=A, version=2),
        KeyRemoved(key="k", previous=B, version=3),
    )
    views = [reduce(project, record_all(moves[:n]), ClusterView()) for n in range(1, 4)]
    assert [dict(v.keys_by_artifact) for v in views] == [
        {A: frozenset({"k"})},
        {B: frozenset({"k"})},
        {},
    ]


def test_an_artifact_keeps_its_other_keys():
    moves = (
        KeyMoved(key="k1", artifact=A, previous=None, version=1),
        KeyMoved(key="k2", artifact=A, previous=None, version=1),
        KeyRemoved(key="k1", previous=A, version=2),
    )
    assert dict(reduce(project, record_all(moves), ClusterView()).keys_by_artifact) == {
        A: frozenset({"k2"})
    }


@pytest.mark.parametrize("cls", EVENT_TYPES.values())
@given(data=st.data())
def test_any_event_can_meet_any_view(cls, data):
    """It follows or it is skipped; whatever it holds, the fold never stops."""
    view, log = run(data.draw(HISTORIES))
    after = project(view, record(data.draw(values(cls)), len(log) + 1))
    assert after.at == len(log) + 1


def test_evolve_gives_the_state_alone():
    state = cluster.evolve(ClusterView(), record(SEALED), SEALED)
    assert state.id == A


def test_a_view_is_assembled_from_its_states_at_once():
    """As if each had been placed; of two states of one aggregate the later counts."""
    view = reduce(project, story.record(), ClusterView())
    maps = (view.artifacts, view.keys, view.replicas, view.operations)
    maps += (view.nodes, view.leases, view.engines, view.signals, view.plans, view.namespaces)
    maps += (view.policies,)
    states = [state for states in maps for state in states.values()]
    assert assemble(states, at=view.at) == view
    older = [msgspec.structs.replace(state, version=Seq(0)) for state in states]
    assert assemble([*older, *states], at=view.at) == view
    assert assemble([], at=Seq(0)) == ClusterView()


LONG = 1 << 64
SPEC = PlanSpec(
    name="p",
    steps=(EmitStep(id="e", topic="t", data={"x": 1}),),
    inputs={"n": Input(type=ValueType.INTEGER)},
)
LONG_SPEC = msgspec.structs.replace(SPEC, steps=(EmitStep(id="e", topic="t", data={"x": LONG}),))
TOO_LONG = {
    "input of a plan": commands_of_plans.SubmitPlan(
        plan=PlanId("plan-1"), spec=SPEC, inputs={"n": LONG}
    ),
    "step of a plan": commands_of_plans.SubmitPlan(
        plan=PlanId("plan-1"), spec=LONG_SPEC, inputs={"n": 1}
    ),
    "parameter": commands.EnablePolicy(policy="keep-last", parameters={"versions": LONG}),
    "parameter, deep": commands.ConfigurePolicy(
        policy="topics", parameters={"shapes": {"a": {"minimum": -LONG}}}
    ),
    "signal": commands.EmitSignal(topic=Topic("t"), data={"x": [LONG]}),
}


@pytest.mark.parametrize("command", TOO_LONG.values(), ids=TOO_LONG)
def test_no_command_brings_an_integer_beyond_64_bits_into_the_log(command):
    with pytest.raises(InvalidArgument, match="an integer beyond 64 bits"):
        decide(ClusterView(), command)
