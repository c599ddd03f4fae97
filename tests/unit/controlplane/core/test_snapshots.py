"""Snapshots: layers of any numbers make up the fold, and bytes that are not as written are met."""

import functools
import zlib
from itertools import chain as joined

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from histories import Dice
from samples import artifact_id, manifest, record
from tensorcast.controlplane.core.snapshots import (
    PART_STATES_MAX,
    Layer,
    base_of,
    chain,
    digest,
    pack,
    unpack,
)
from tensorcast.log.identity import new_event_id
from tensorcast.schema.cluster import ClusterView, assemble, project
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.events import ArtifactPinned, ArtifactSealed, NodeCordoned
from tensorcast.schema.folds import fold_name
from tensorcast.schema.ids import NodeId, PlanId, Seq
from tensorcast.schema.plan_events import PlanSubmitted
from tensorcast.schema.plans import EmitStep, PlanSpec
from tensorcast.schema.policy_events import PolicyConfigured

EMPTY = ClusterView()


def views_of(events):
    """The view after each of the events, and the empty one first."""
    views = [EMPTY]
    for seq, event in enumerate(events, 1):
        views.append(project(views[-1], record(event, seq)))
    return views


@functools.cache
def history(seed: int, count: int) -> tuple[ClusterView, ...]:
    """The views of a random legal history, after each of its events."""
    dice, views = Dice(seed), [EMPTY]
    while len(views) <= count:
        for draft in dice.drafts(views[-1]):
            one = record(draft.event, len(views), cause=draft.cause)
            one = msgspec.structs.replace(one, id=new_event_id())
            views.append(project(views[-1], one))
    return tuple(views)


@pytest.mark.parametrize(
    ("number", "layers"),
    [(0, ()), (1, (1,)), (2, (2,)), (3, (2, 3)), (6, (4, 6)), (7, (4, 6, 7)), (8, (8,))],
)
def test_the_layers_of_a_snapshot(number, layers):
    assert chain(number) == layers


@given(st.integers(1, 10**9))
def test_layers_follow_on_each_other_and_are_few(number):
    layers = chain(number)
    assert [base_of(one) for one in layers] == [0, *layers[:-1]]
    assert layers[-1] == number
    assert len(layers) <= number.bit_length()


@settings(deadline=None)
@given(
    seed=st.integers(0, 5),
    cuts=st.lists(st.integers(1, 400), min_size=1, max_size=12, unique=True).map(sorted),
)
def test_a_snapshot_and_the_tail_are_the_whole_fold_at_every_event(seed, cuts):
    """Snapshots after any events: each is the fold there, so every later moment follows from it."""
    views = history(seed, 400)
    packed = {}
    for number, seq in enumerate(cuts, 1):
        base = base_of(number)
        after = Seq(cuts[base - 1]) if base else Seq(0)
        packed[number] = [part for part, _ in pack(views[seq], after)]
        parts = joined.from_iterable(packed[one] for one in chain(number))
        states = joined.from_iterable(map(unpack, parts))
        opened = assemble(states, at=Seq(seq))
        assert opened == views[seq]


def test_one_index_is_kept_once_and_comes_back_to_each():
    events = [
        ArtifactSealed(artifact=artifact_id(name), kind="weights", manifest=manifest(size))
        for name, size in (("a", 3), ("b", 3), ("c", 5))
    ]
    view = views_of(events)[-1]
    [(part, states)] = pack(view, Seq(0))
    assert states == 3
    assert len(msgspec.msgpack.decode(zlib.decompress(part))[2]) == 2
    assert set(map(str, unpack(part))) == set(map(str, view.artifacts.values()))


def test_only_what_changed_is_packed():
    events = [
        ArtifactSealed(artifact=artifact_id("a"), kind="weights", manifest=manifest()),
        NodeCordoned(node=NodeId("n1")),
        ArtifactPinned(artifact=artifact_id("a")),
    ]
    views = views_of(events)
    assert [states for _, states in pack(views[2], Seq(2))] == []
    [(part, _)] = pack(views[3], Seq(2))
    assert list(unpack(part)) == [views[3].artifacts[artifact_id("a")]]


def test_many_states_are_cut_into_parts():
    nodes = history(0, 400)[-1].leases
    lease = next(iter(nodes.values()))
    many = [
        msgspec.structs.replace(lease, id=f"lease-{n}", version=Seq(1))
        for n in range(2 * PART_STATES_MAX + 1)
    ]
    view = assemble(many, at=Seq(1))
    parts = list(pack(view, Seq(0)))
    assert [states for _, states in parts] == [PART_STATES_MAX, PART_STATES_MAX, 1]
    assert assemble(joined.from_iterable(unpack(p) for p, _ in parts), at=Seq(1)) == view


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.integers(10**18, 10**40).flatmap(lambda n: st.sampled_from([n, -n])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(), JSON, max_size=4), JSON)
def test_what_json_holds_comes_back(parameters, value):
    """Also integers beyond 64 bits, which older releases took into the log."""
    policy = PolicyConfigured(policy="keep-last", parameters=parameters)
    spec = PlanSpec(name="p", steps=(EmitStep(id="e", topic="t", data={"x": value}),))
    plan = PlanSubmitted(plan=PlanId("plan-1"), spec=spec, inputs={"n": value})
    view = views_of([NodeCordoned(node=NodeId("n1")), policy, plan])[-1]
    states = joined.from_iterable(unpack(part) for part, _ in pack(view, Seq(0)))
    assert assemble(states, at=view.at) == view


def test_an_artifact_with_an_odd_state_keeps_its_index():
    event = ArtifactSealed(artifact=artifact_id("a"), kind="weights", manifest=manifest(3))
    view = views_of([event])[-1]
    odd = msgspec.structs.replace(view.artifacts[event.artifact], version=Seq(1 << 70))
    view = assemble([odd], at=Seq(1))
    [(part, _)] = pack(view, Seq(0))
    assert unpack(part) == [odd]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda part: b"",
        lambda part: part[:-1],
        lambda part: b"no zlib",
        lambda part: zlib.compress(b"no msgpack"),
        lambda part: zlib.compress(msgspec.msgpack.encode(("nodes", [], [], [], ["{}"]))),
        lambda part: zlib.compress(msgspec.msgpack.encode(("unknown", [], [], []))),
        lambda part: zlib.compress(msgspec.msgpack.encode(("artifacts", [{}], [], [7]))),
    ],
)
def test_bytes_that_are_no_part(spoil):
    [(part, _), *_] = pack(history(1, 400)[-1], Seq(0))
    with pytest.raises(Corrupt):
        unpack(spoil(part))


def test_a_digest_vouches_for_every_word():
    layer = Layer(
        fold=fold_name(),
        log_epoch=1,
        number=2,
        after=Seq(0),
        seq=Seq(9),
        event_id=new_event_id(),
        skipped=0,
        states=1,
        parts=2,
    )
    whole = digest(layer, [b"ab", b"c"])
    assert digest(layer, [b"a", b"bc"]) != whole
    for name, value in (("seq", Seq(8)), ("number", 3), ("fold", "other"), ("skipped", 1)):
        other = msgspec.structs.replace(layer, **{name: value})
        assert digest(other, [b"ab", b"c"]) != whole


def test_the_name_of_the_fold_is_the_same_in_every_process():
    assert fold_name() == fold_name.__wrapped__()
