import msgspec
import pytest

from samples import artifact_id, manifest
from tensorcast.controlplane.core.names import (
    find_key,
    resolve_artifact,
    resolve_engine,
    resolve_node,
    resolve_operation,
)
from tensorcast.schema.engine_events import EngineLeft
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.events import ArtifactSealed, KeyMoved, KeyRemoved
from tensorcast.schema.ids import ArtifactId, EngineId, Key
from tensorcast.schema.work import Materialize
from worlds import World


@pytest.fixture
def world():
    world = World()
    world.node("n1")
    world.artifact("a", "n1")
    return world


def key(world, name, artifact, version=1):
    world.then(KeyMoved(key=Key(name), artifact=artifact, previous=None, version=version))


def test_a_key_an_id_and_a_beginning_of_an_id(world):
    a = artifact_id("a")
    key(world, "llama@1", a)
    for text in ("llama@1", a, a[:6], a[:20]):
        assert resolve_artifact(world.view, text) == a


def test_a_key_is_tried_before_the_beginning_of_an_id(world):
    a, b = artifact_id("a"), world.artifact("b", "n1")
    key(world, a[:8], b)
    assert resolve_artifact(world.view, a[:8]) == b


def test_a_beginning_that_is_too_short_is_told(world):
    with pytest.raises(NotFound, match="Give 6 characters or more"):
        resolve_operation(world.view, "op-0f7ce")
    with pytest.raises(NotFound, match="op ls"):
        resolve_operation(world.view, "op-0f7ce1")


def test_a_full_id_always_means_that_artifact(world):
    """Logs may hold such a key from before they were refused."""
    a, b, unknown = artifact_id("a"), world.artifact("b", "n1"), artifact_id("unknown")
    key(world, a, b)
    key(world, unknown, b)
    assert resolve_artifact(world.view, a) == a
    with pytest.raises(NotFound):
        resolve_artifact(world.view, unknown)


def test_a_removed_key_is_no_key(world):
    a = artifact_id("a")
    key(world, "k", a)
    world.then(KeyRemoved(key=Key("k"), previous=a, version=2))
    assert find_key(world.view, "k") is None
    with pytest.raises(NotFound, match="no key and no artifact 'k'"):
        resolve_artifact(world.view, "k")


@pytest.mark.parametrize("text", ["", "a", artifact_id("a")[:5], "f" * 40])
def test_what_stands_for_nothing(world, text):
    with pytest.raises(NotFound):
        resolve_artifact(world.view, text)


def test_an_ambiguous_beginning_names_the_candidates(world):
    for tail in ("1" * 34, "2" * 34):
        artifact = ArtifactId("abcdef" + tail)
        world.then(ArtifactSealed(artifact=artifact, kind="generic", manifest=manifest(1)))
    with pytest.raises(InvalidArgument, match=r"abcdef1+, abcdef2+"):
        resolve_artifact(world.view, "abcdef")
    assert resolve_artifact(world.view, "abcdef2") == "abcdef" + "2" * 34


def test_operations_with_and_without_their_prefix(world):
    operation = world.issue("op-0123456789", "n1", Materialize(artifact=artifact_id("a")))
    for text in (operation, "op-012345", "012345", "0123456789"):
        assert resolve_operation(world.view, text) == operation
    for text in ("op-", "op-01", "nothing"):
        with pytest.raises(NotFound):
            resolve_operation(world.view, text)


def test_nodes(world):
    assert resolve_node(world.view, "n1") == "n1"
    with pytest.raises(NotFound, match="no node 'n2'"):
        resolve_node(world.view, "n2")
    with pytest.raises(InvalidArgument):
        resolve_node(world.view, "no.such*node")


def test_engines_by_name_and_by_address(world):
    world.engine("e1")
    for text in ("e1", "http://e1", "http://e1/"):
        assert resolve_engine(world.view, text).id == "e1"
    for text in ("e2", "", "http://e2"):
        with pytest.raises(NotFound, match="no engine"):
            resolve_engine(world.view, text)


def test_an_address_stands_for_the_engine_that_runs_there_else_for_the_last_that_did(world):
    for name in ("old", "new", "gone"):
        registered = world.engine(name).event
        moved = msgspec.structs.replace(registered, url="http://h:1")
        world.then(moved)
        if name != "new":
            world.then(EngineLeft(engine=registered.engine, life="one"))
    assert resolve_engine(world.view, "http://h:1").id == "new"
    world.then(EngineLeft(engine=EngineId("new"), life="one"))
    assert resolve_engine(world.view, "http://h:1").id == "new"
