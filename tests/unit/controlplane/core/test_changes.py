"""What is different between two views: nothing that is the same, all that is not."""

from __future__ import annotations

import functools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from histories import Dice
from samples import artifact_id, record
from tensorcast.controlplane.core.changes import compare, describe, is_there
from tensorcast.schema.api_past import Change
from tensorcast.schema.cluster import ClusterView, project
from tensorcast.schema.events import (
    ArtifactPinned,
    ArtifactRemoved,
    KeyMoved,
    KeyRemoved,
    NodeCordoned,
    ReplicaEvicting,
    ReplicaGone,
)
from tensorcast.schema.folds import MAPS
from tensorcast.schema.ids import Key, NodeId
from worlds import World

A, B = artifact_id("a"), artifact_id("b")
COUNT = 300


@pytest.fixture
def world():
    world = World()
    world.node("n1")
    world.node("n2")
    world.artifact("a", "n1")
    world.then(KeyMoved(key=Key("k"), artifact=A, previous=None, version=1))
    return world


def told(changes) -> dict[tuple[str, str, str], dict[str, tuple[object, object]]]:
    return {
        (one.change, one.kind, one.id): {f.name: (f.before, f.after) for f in one.fields}
        for one in changes
    }


def test_what_changed_is_told_field_by_field(world):
    before = world.view
    world.then(ArtifactPinned(artifact=A))
    world.then(NodeCordoned(node=NodeId("n1")))
    assert told(compare(before, world.view)) == {
        ("changed", "artifact", A): {"pinned": (False, True)},
        ("changed", "node", "n1"): {"cordoned": (False, True)},
    }


def test_what_came_and_what_went(world):
    before = world.view
    world.artifact("b", "n2")
    world.then(KeyMoved(key=Key("new"), artifact=B, previous=None, version=1))
    world.then(KeyRemoved(key=Key("k"), previous=A, version=2))
    world.then(ArtifactRemoved(artifact=A))
    replica = world.replica(A, "n1")
    world.then(ReplicaEvicting(replica=replica, epoch=1, reason="removed"))
    world.then(ReplicaGone(replica=replica, epoch=1))
    found = told(compare(before, world.view))
    assert set(found) == {
        ("removed", "artifact", A),
        ("added", "artifact", B),
        ("removed", "key", "k"),
        ("added", "key", "new"),
        ("removed", "replica", f"{A}:n1:dram"),
        ("added", "replica", f"{B}:n2:dram"),
    }
    assert found["removed", "key", "k"]["artifact"] == (A, None)
    assert found["added", "key", "new"] == {"artifact": (None, B), "version": (None, 1)}


def test_what_came_and_went_meanwhile_is_not_different(world):
    before = world.view
    world.artifact("b")
    world.then(ArtifactRemoved(artifact=B))
    assert compare(before, world.view) == ()


@pytest.mark.parametrize(
    ("scope", "kinds"),
    [
        (("artifact", A), {"artifact", "key"}),
        (("artifact", B), {"artifact", "key", "replica"}),
        (("node", "n2"), {"replica", "node"}),
        (("key", "k"), {"key"}),
        (("key", "other"), set()),
    ],
)
def test_only_what_concerns_one_thing(world, scope, kinds):
    before = world.view
    world.then(ArtifactPinned(artifact=A))
    world.artifact("b", "n2")
    world.then(KeyMoved(key=Key("k"), artifact=B, previous=A, version=2))
    world.then(NodeCordoned(node=NodeId("n2")))
    assert {one.kind for one in compare(before, world.view, scope)} == kinds


@functools.cache
def history(seed: int) -> tuple[ClusterView, ...]:
    dice, views = Dice(seed), [ClusterView()]
    while len(views) <= COUNT:
        for draft in dice.drafts(views[-1]):
            views.append(project(views[-1], record(draft.event, len(views), cause=draft.cause)))
    return tuple(views)


def things(view: ClusterView) -> dict[tuple[str, str], dict[str, object]]:
    return {
        (kind, name): dict(describe(state))
        for kind, states in MAPS.items()
        for name, state in getattr(view, states).items()
        if is_there(state)
    }


def apply(before, changes: tuple[Change, ...]):
    after = {name: dict(fields) for name, fields in before.items()}
    for one in changes:
        if one.change == "removed":
            del after[one.kind, one.id]
            continue
        fields = after.setdefault((one.kind, one.id), {})
        fields.update((field.name, field.after) for field in one.fields)
    return after


@settings(deadline=None)
@given(seed=st.integers(0, 3), ends=st.tuples(st.integers(0, COUNT), st.integers(0, COUNT)))
def test_the_changes_lead_from_one_state_to_the_other(seed, ends):
    first, last = sorted(ends)
    before, after = history(seed)[first], history(seed)[last]
    changes = compare(before, after)
    reached = apply(things(before), changes)
    wanted = things(after)
    for fields in (*reached.values(), *wanted.values()):
        for name in [name for name, value in fields.items() if value is None]:
            del fields[name]
    assert reached == wanted
    assert all(field.before != field.after for one in changes for field in one.fields)
    assert msgspec.json.decode(msgspec.json.encode(changes), type=tuple[Change, ...]) == changes
