from tensorcast.controlplane.core.policies.drain import Drain
from tensorcast.controlplane.core.view import DRAINED
from tensorcast.schema.events import (
    ArtifactPinned,
    ArtifactUnpinned,
    LeaseReleased,
    NodeDrained,
    NodeLeft,
)
from tensorcast.schema.ids import Epoch, LeaseId, NodeId, Tier
from tensorcast.schema.work import Evict, Materialize
from worlds import World


def react(world):
    return [(str(command.node), command.work) for command in Drain().react(world.view, world.last)]


def drop(artifact, tier=Tier.DRAM):
    return "n1", Evict(artifact=artifact, tier=tier, reason=DRAINED)


def two_nodes():
    world = World()
    world.node("n1")
    world.node("n2")
    return world


def drain(world):
    return world.then(NodeDrained(node=NodeId("n1")))


def test_what_others_have_goes_at_once_and_last_copies_wait():
    world = two_nodes()
    a = world.artifact("a", "n1", "n2")
    b = world.artifact("b", "n1")
    drain(world)
    assert react(world) == [drop(a)]
    world.ready(b, "n2")
    assert react(world) == [drop(b)]


def test_a_copy_on_another_draining_node_does_not_stay():
    world = two_nodes()
    world.artifact("a", "n1", "n2")
    world.then(NodeDrained(node=NodeId("n2")))
    drain(world)
    assert react(world) == []


def test_a_disk_replica_waits_for_another_disk():
    world = two_nodes()
    a = world.artifact("a", "n1", tier=Tier.DISK)
    drain(world)
    world.ready(a, "n2")
    assert react(world) == []
    world.ready(a, "n2", Tier.DISK)
    assert react(world) == [drop(a, Tier.DISK)]


def test_claims_keep_replicas_until_they_end():
    world = two_nodes()
    a = world.artifact("a", "n1", "n2")
    b = world.artifact("b", "n1", "n2")
    world.lease(a)
    world.then(ArtifactPinned(artifact=b))
    drain(world)
    assert react(world) == []
    world.then(LeaseReleased(lease=LeaseId("l1")))
    assert react(world) == [drop(a)]
    world.then(ArtifactUnpinned(artifact=b))
    assert react(world) == [drop(b)]


def test_a_replica_in_use_by_an_operation_stays():
    world = two_nodes()
    a = world.artifact("a", "n1", "n2")
    world.issue("op-1", "n1", Materialize(artifact=a))
    drain(world)
    assert react(world) == []


def test_a_node_that_was_away_gives_its_replicas_when_it_joins():
    world = two_nodes()
    a = world.artifact("a", "n1", "n2")
    world.then(NodeLeft(node=NodeId("n1"), epoch=Epoch(1)))
    drain(world)
    assert react(world) == []
    world.node("n1", epoch=2)
    assert react(world) == [drop(a)]


def test_nothing_happens_where_nobody_drains():
    world = two_nodes()
    a = world.artifact("a", "n1")
    world.ready(a, "n2")
    assert react(world) == []
