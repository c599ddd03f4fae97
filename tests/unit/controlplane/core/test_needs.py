from tensorcast.controlplane.core.needs import REPAIR, count_needs, requested_nodes, stays
from tensorcast.schema.events import NodeDrained, NodeLeft, NodeLost
from tensorcast.schema.ids import Epoch, NodeId, Tier
from tensorcast.schema.work import Materialize
from worlds import World


def needs(world, artifact, tier=Tier.DRAM):
    return count_needs(world.view, world.view.artifacts[artifact], tier)


def four_nodes():
    world = World()
    for name in ("n1", "n2", "n3", "n4"):
        world.node(name)
    return world


def test_each_request_on_a_lost_node_is_owed():
    world = four_nodes()
    a = world.artifact("a", "n1")
    world.request(a, "n2", "n3")
    assert requested_nodes(world.view.artifacts[a], Tier.DRAM) == {"n2", "n3"}
    assert needs(world, a) == 0
    for name in ("n2", "n3"):
        world.then(NodeLost(node=NodeId(name), epoch=Epoch(1), silent_s=5))
    assert needs(world, a) == 2
    assert needs(world, a, Tier.DISK) == 0


def test_a_node_that_left_in_good_order_is_owed_nothing():
    world = four_nodes()
    a = world.artifact("a", "n1")
    world.request(a, "n2")
    world.then(NodeLeft(node=NodeId("n2"), epoch=Epoch(1)))
    assert needs(world, a) == 0


def test_substitutes_count_only_when_repair_made_them():
    world = four_nodes()
    a = world.artifact("a", "n1", "n4")
    world.request(a, "n2")
    world.then(NodeLost(node=NodeId("n2"), epoch=Epoch(1), silent_s=5))
    assert needs(world, a) == 1
    world.issue("op-1", "n3", Materialize(artifact=a), policy=REPAIR)
    assert needs(world, a) == 0


def test_a_last_copy_on_a_draining_node_is_owed_once():
    world = four_nodes()
    a = world.artifact("a", "n1")
    world.then(NodeDrained(node=NodeId("n1")))
    assert needs(world, a) == 1
    world.issue("op-1", "n3", Materialize(artifact=a), policy=REPAIR)
    assert needs(world, a) == 0


def test_a_copy_stays_where_it_is_kept():
    world = four_nodes()
    a = world.artifact("a", "n1")
    assert stays(world.view, a, Tier.DRAM)
    assert not stays(world.view, a, Tier.DISK)
    world.ready(a, "n2", Tier.DISK)
    world.then(NodeDrained(node=NodeId("n1")))
    assert stays(world.view, a, Tier.DRAM)
    assert stays(world.view, a, Tier.DISK)
