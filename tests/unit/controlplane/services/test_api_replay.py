import pytest

from samples import BEGIN, artifact_id
from tensorcast.controlplane.services.api_replay import summarize
from tensorcast.schema.engine_events import EngineServing
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.events import KeyMoved, KeyRemoved
from tensorcast.schema.ids import EngineId, Key
from tensorcast.schema.work import Materialize
from worlds import World

A, B = artifact_id("a"), artifact_id("b")


@pytest.fixture
def world():
    world = World()
    for name in ("n1", "n2", "n3"):
        world.node(name)
    world.artifact("a", "n1")
    world.artifact("b", "n2")
    for name, artifact in (("ka", A), ("kb", B), ("gone", B)):
        world.then(KeyMoved(key=Key(name), artifact=artifact, previous=None, version=1))
    world.then(KeyRemoved(key=Key("gone"), previous=B, version=2))
    world.issue("op-aaaaaa", "n3", Materialize(artifact=A))
    world.issue("op-bbbbbb", "n1", Materialize(artifact=B))
    return world


def names(world, kind=None, what=None):
    found = summarize(world.view, kind=kind, what=what)
    assert found.at_seq == world.view.at
    return (
        {artifact.id for artifact in found.artifacts},
        {key.key for key in found.keys},
        {node.node for node in found.nodes},
        {operation.id for operation in found.operations},
    )


def test_all_of_it(world):
    assert names(world) == (
        {A, B},
        {"ka", "kb"},
        {"n1", "n2", "n3"},
        {"op-aaaaaa", "op-bbbbbb"},
    )


def test_what_concerns_one_thing(world):
    assert names(world, "artifact", "ka") == ({A}, {"ka"}, {"n1"}, {"op-aaaaaa"})
    assert names(world, "node", "n1") == ({A}, {"ka"}, {"n1"}, {"op-bbbbbb"})
    assert names(world, "operation", "bbbbbb") == ({B}, {"kb"}, {"n1"}, {"op-bbbbbb"})


@pytest.mark.parametrize(
    ("kind", "what"), [("artifact", None), (None, "ka"), ("lease", "x"), ("", "")]
)
def test_a_part_needs_a_kind_and_a_name(world, kind, what):
    with pytest.raises(InvalidArgument):
        names(world, kind, what)


def test_what_was_not_there(world):
    with pytest.raises(NotFound):
        names(world, "node", "n9")


def test_engines_are_part_of_the_past(world):
    world.engine("e1", node="n2")
    world.then(
        EngineServing(engine=EngineId("e1"), life="one", version="ka", artifact=A, since=BEGIN)
    )
    (found,) = summarize(world.view, kind=None, what=None).engines
    assert (found.engine, found.state, found.version, found.artifact) == ("e1", "up", "ka", A)
    assert names(world, "engine", "e1") == ({A}, {"ka"}, {"n2"}, set())
    assert summarize(world.view, kind="node", what="n2").engines == (found,)
    assert summarize(world.view, kind="node", what="n1").engines == ()
