"""What a mover reads off the log about itself and its peers."""

from __future__ import annotations

import pytest

from samples import artifact_id
from tensorcast.movers.core.holdings import (
    choose_demand,
    doubted_replicas,
    has_copy,
    has_ready,
    is_claimed,
    is_open,
    is_stored,
    is_stored_elsewhere,
    operation_making,
    operations_for,
    replicas_of,
    resolve_artifact,
)
from tensorcast.movers.core.supply import peers_with
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.events import (
    ArtifactPinned,
    ArtifactRemoved,
    ArtifactSealed,
    KeyMoved,
    KeyRemoved,
    NodeLost,
    ReplicaEvicting,
    ReplicaGone,
)
from tensorcast.schema.ids import ArtifactId, Epoch, Key, NodeId, Tier
from tensorcast.schema.work import Evict, Load, Materialize, Persist
from worlds import World

N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")
ONE = Epoch(1)


@pytest.fixture
def world() -> World:
    world = World()
    for name in ("n1", "n2", "n3"):
        world.node(name)
    return world


def move_key(world: World, artifact: ArtifactId, version: int = 1) -> None:
    world.then(KeyMoved(key=Key("m"), artifact=artifact, previous=None, version=version))


def test_a_key_an_id_and_a_beginning_of_an_id_resolve(world: World):
    a = world.artifact("a")
    move_key(world, a)
    for what in ("m", a, a[:6]):
        assert resolve_artifact(world.view, what).id == a


def test_a_full_id_always_means_that_artifact(world: World):
    """Logs may hold such a key from before they were refused."""
    a, b = world.artifact("a"), world.artifact("b")
    world.then(KeyMoved(key=Key(a), artifact=b, previous=None, version=1))
    assert resolve_artifact(world.view, a).id == a


@pytest.mark.parametrize("what", ["", "nothing", artifact_id("a")[:5], artifact_id("b")])
def test_what_is_not_there_is_not_found(world: World, what: str):
    world.artifact("a")
    with pytest.raises(NotFound):
        resolve_artifact(world.view, what)


def test_what_was_asked_for_is_told(world: World):
    with pytest.raises(NotFound) as caught:
        resolve_artifact(world.view, "nothing")
    assert caught.value.artifact == "nothing"


def test_an_ambiguous_beginning_is_refused(world: World):
    a = world.artifact("a")
    sealed = world.view.artifacts[a]
    twin = ArtifactId(a[:8] + "0" * 32)
    world.then(ArtifactSealed(artifact=twin, kind="weights", manifest=sealed.manifest))
    with pytest.raises(InvalidArgument, match="2 artifacts"):
        resolve_artifact(world.view, a[:6])
    assert resolve_artifact(world.view, a[:9]).id == a


def test_removed_artifacts_and_keys_are_not_found(world: World):
    a = world.artifact("a")
    move_key(world, a)
    world.then(KeyRemoved(key=Key("m"), previous=a, version=2))
    with pytest.raises(NotFound, match="no key or artifact"):
        resolve_artifact(world.view, "m")
    world.then(ArtifactRemoved(artifact=a))
    for what in (a, a[:8]):
        with pytest.raises(NotFound):
            resolve_artifact(world.view, what)


def test_replicas_of_a_node_are_those_that_are_there(world: World):
    a, b, c = world.artifact("a", "n1"), world.artifact("b", "n1", "n2"), world.artifact("c", "n1")
    gone, leaving = world.replica(a, "n1"), world.replica(b, "n1")
    for replica in (gone, leaving):
        world.then(ReplicaEvicting(replica=replica, epoch=ONE, reason=""))
    world.then(ReplicaGone(replica=gone, epoch=ONE))
    found = {replica.id for replica in replicas_of(world.view, N1)}
    assert found == {leaving, world.replica(c, "n1")}
    assert not has_ready(world.view, b, N1, Tier.DRAM)
    assert has_ready(world.view, b, N2, Tier.DRAM)


def test_pins_and_leases_claim(world: World):
    a, b, c = world.artifact("a"), world.artifact("b"), world.artifact("c")
    world.then(ArtifactPinned(artifact=a))
    world.lease(b, "n1")
    world.lease(c, name="everywhere")
    assert [is_claimed(world.view, x, N1) for x in (a, b, c)] == [True, True, True]
    assert [is_claimed(world.view, x, N2) for x in (a, b, c)] == [True, False, True]
    assert not is_claimed(world.view, artifact_id("unknown"), N1)


def test_open_operations_of_a_node_come_oldest_first(world: World):
    a = world.artifact("a", "n2")
    world.issue("first", "n1", Evict(artifact=a, tier=Tier.DRAM))
    second = world.issue("second", "n1", Materialize(artifact=a))
    world.issue("other", "n2", Persist(artifact=a))
    world.succeed(world.issue("done", "n1", Persist(artifact=a)))
    assert [o.id for o in operations_for(world.view, N1)] == ["first", "second"]
    assert operation_making(world.view, a, N1, Tier.DRAM) == second
    assert operation_making(world.view, a, N1, Tier.DISK) is None
    assert operation_making(world.view, a, N3, Tier.DRAM) is None
    assert is_open(world.view, second)
    world.succeed(second)
    assert not is_open(world.view, second)


def test_demand_prefers_the_own_disk(world: World):
    a = world.artifact("a", "n2")
    assert choose_demand(world.view, a, N1) == Materialize(artifact=a)
    world.ready(a, "n1", Tier.DISK)
    assert choose_demand(world.view, a, N1) == Load(artifact=a)


def test_only_another_disk_outlives_a_stop_of_all_nodes(world: World):
    a = world.artifact("a", "n1", "n2")
    assert not is_stored_elsewhere(world.view, a, N1)
    world.ready(a, "n1", Tier.DISK)
    assert not is_stored_elsewhere(world.view, a, N1)
    world.ready(a, "n2", Tier.DISK)
    assert is_stored_elsewhere(world.view, a, N1)
    world.then(NodeLost(node=N2, epoch=ONE, silent_s=5.0))
    assert not is_stored_elsewhere(world.view, a, N1)


def test_the_store_is_read_when_nobody_else_has_it(world: World):
    artifact = world.artifact("stored", "n1", tier=Tier.OBJECT)
    from_store = Load(artifact=artifact, tier=Tier.OBJECT)
    pulled = Materialize(artifact=artifact)
    assert choose_demand(world.view, artifact, N2, is_served=False) == pulled, "no access"
    world.node("n9", store=True)
    n9 = NodeId("n9")
    assert choose_demand(world.view, artifact, n9, is_served=False) == from_store
    assert choose_demand(world.view, artifact, n9, is_served=True) == pulled
    world.ready(artifact, "n9", Tier.DISK)
    assert choose_demand(world.view, artifact, n9, is_served=False) == Load(artifact=artifact)


def test_what_is_in_the_store_outlives_every_node(world: World):
    artifact = world.artifact("stored", "n1", tier=Tier.OBJECT)
    world.then(NodeLost(node=N1, epoch=ONE, silent_s=9.0))
    assert is_stored(world.view, artifact)
    assert not is_stored(world.view, artifact, but_by=N1)
    assert is_stored_elsewhere(world.view, artifact, N1)
    assert has_copy(world.view, artifact, world.replica(artifact, "n2"))
    assert doubted_replicas(world.view, artifact, N1) == ()
    assert peers_with(world.view, artifact, N2) == ()


def test_only_complete_replicas_are_doubted(world: World):
    a = world.artifact("a", "n1")
    world.filling(a, "n2")
    assert doubted_replicas(world.view, a, N1) == (f"{a}:n1:dram",)
    world.ready(a, "n1", Tier.DISK)
    assert set(doubted_replicas(world.view, a, N1)) == {f"{a}:n1:dram", f"{a}:n1:disk"}
    assert doubted_replicas(world.view, a, N2) == doubted_replicas(world.view, a, N3) == ()
