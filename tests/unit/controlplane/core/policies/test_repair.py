from samples import MIB
from tensorcast.controlplane.core.policies.repair import Repair
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.events import (
    NodeCordoned,
    NodeDrained,
    NodeLeft,
    NodeLost,
    ReplicaCorrupted,
    ReplicaLost,
)
from tensorcast.schema.faults import FaultKind
from tensorcast.schema.ids import Epoch, NodeId, Tier
from tensorcast.schema.work import Load, Materialize, Persist
from worlds import World


def react(world):
    return [(str(command.node), command.work) for command in Repair().react(world.view, world.last)]


def pull(artifact, *sources, tier=Tier.DRAM):
    return Materialize(artifact=artifact, sources=tuple(map(NodeId, sources)), tier=tier)


def nodes(*names, **capacity):
    world = World()
    for name in names:
        world.node(name, **capacity)
    return world


def lose(world, node):
    epoch = world.view.nodes[NodeId(node)].epoch
    return world.then(NodeLost(node=NodeId(node), epoch=epoch, silent_s=5.0))


def corrupt(world, artifact, node, tier=Tier.DRAM):
    return world.then(
        ReplicaCorrupted(
            replica=world.replica(artifact, node, tier),
            epoch=Epoch(1),
            chunks=ChunkSet.of([1]),
            detail="digest",
        )
    )


def vanish(world, artifact, node, tier=Tier.DRAM):
    return world.then(
        ReplicaLost(replica=world.replica(artifact, node, tier), epoch=Epoch(1), detail="wiped")
    )


# ---- elsewhere


def test_a_requested_replica_of_a_lost_node_is_made_where_most_room_is():
    world = nodes("n1", "n2", "n3")
    world.node("n4", dram=128 * MIB)
    a = world.artifact("a", "n1")
    world.request(a, "n2")
    world.ready(a, "n2")
    lose(world, "n2")
    assert react(world) == [("n4", pull(a, "n1"))]


def test_a_replica_that_nobody_asked_for_is_not():
    world = nodes("n1", "n2", "n3")
    world.artifact("a", "n1", "n2")
    lose(world, "n2")
    assert react(world) == []


def test_never_without_a_source():
    world = nodes("n1", "n2")
    a = world.artifact("a")
    world.request(a, "n1")
    world.ready(a, "n1")
    lose(world, "n1")
    assert react(world) == []


def test_what_had_no_source_is_made_when_one_joins():
    world = nodes("n1", "n2", "n3")
    a = world.artifact("a", "n1")
    world.request(a, "n2")
    world.ready(a, "n2")
    world.then(NodeLeft(node=NodeId("n1"), epoch=Epoch(1)))
    lose(world, "n2")
    assert react(world) == []
    world.node("n1", epoch=2)
    assert react(world) == [("n3", pull(a, "n1"))]


def test_one_substitute_is_enough():
    world = nodes("n1", "n2", "n3", "n4")
    a = world.artifact("a", "n1")
    world.request(a, "n2")
    world.ready(a, "n2")
    lose(world, "n2")
    operation = world.issue("op-1", "n3", pull(a, "n1"), policy="repair")
    world.node("n2", epoch=2)
    lose(world, "n2")
    assert react(world) == [], "it is on its way"
    world.ready(a, "n3")
    world.succeed(operation)
    world.node("n2", epoch=3)
    lose(world, "n2")
    assert react(world) == [], "it is there"
    lose(world, "n3")
    world.node("n5")
    assert react(world) == [("n4", pull(a, "n1"))], "it is lost too"


def test_full_and_cordoned_nodes_get_nothing():
    world = nodes("n1", "n2", dram=8 * MIB)
    world.node("n3", dram=3 * MIB)
    world.node("n4")
    world.then(NodeCordoned(node=NodeId("n4")))
    a = world.artifact("a", "n1")
    world.request(a, "n2")
    world.ready(a, "n2")
    lose(world, "n2")
    assert react(world) == []


def test_many_replicas_are_spread_over_the_room_there_is():
    world = nodes("n1", "n2", dram=64 * MIB)
    world.node("n3", dram=9 * MIB)
    world.node("n4", dram=8 * MIB)
    lost = [world.artifact(name, "n1") for name in "abcd"]
    for artifact in lost:
        world.request(artifact, "n2")
        world.ready(artifact, "n2")
    lose(world, "n2")
    assert sorted(node for node, _ in react(world)) == ["n3", "n3", "n4", "n4"]


def test_each_missing_copy_of_one_artifact_gets_a_node_of_its_own():
    world = nodes("n1", "n2", "n3", "n4", "n5")
    a = world.artifact("a", "n1")
    world.request(a, "n2", "n3")
    world.then(NodeLeft(node=NodeId("n1"), epoch=Epoch(1)))
    lose(world, "n2")
    lose(world, "n3")
    assert react(world) == [], "there is no source"
    world.node("n1", epoch=2)
    assert react(world) == [("n4", pull(a, "n1")), ("n5", pull(a, "n1"))]


def test_many_lost_disk_replicas_fit_one_node():
    world = nodes("n1", "n2", "n3")
    lost = [world.artifact(name, "n1") for name in "abc"]
    for artifact in lost:
        world.request(artifact, "n2", tier=Tier.DISK)
        world.ready(artifact, "n2", Tier.DISK)
    lose(world, "n2")
    assert sorted(react(world), key=str) == sorted(
        (("n1", Persist(artifact=artifact)) for artifact in lost), key=str
    )


def test_a_lost_disk_replica_is_written_where_the_bytes_are():
    world = nodes("n1", "n2", "n3")
    a = world.artifact("a", "n1")
    world.request(a, "n2", tier=Tier.DISK)
    world.ready(a, "n2", Tier.DISK)
    lose(world, "n2")
    assert react(world) == [("n1", Persist(artifact=a))]


def test_a_lost_disk_replica_is_pulled_to_another_disk():
    world = nodes("n1", "n2", "n3")
    a = world.artifact("a", "n1")
    world.request(a, "n1", "n2", tier=Tier.DISK)
    world.ready(a, "n1", Tier.DISK)
    world.ready(a, "n2", Tier.DISK)
    lose(world, "n2")
    assert react(world) == [("n3", pull(a, "n1", tier=Tier.DISK))]
    world.issue("op-1", "n3", pull(a, "n1", tier=Tier.DISK), policy="repair")
    world.node("n9")
    assert react(world) == []


def test_a_disk_replica_that_is_on_its_way_through_dram_is_written_from_there():
    world = nodes("n1", "n2", "n3")
    a = world.artifact("a", "n1")
    world.request(a, "n1", "n2", tier=Tier.DISK)
    world.ready(a, "n1", Tier.DISK)
    world.ready(a, "n2", Tier.DISK)
    lose(world, "n2")
    operation = world.issue("op-1", "n3", pull(a, "n1"), policy="repair")
    world.start(operation)
    world.filling(a, "n3")
    world.ready(a, "n3")
    assert react(world) == [("n3", Persist(artifact=a))]
    world.issue("op-2", "n3", Persist(artifact=a), policy="repair")
    world.node("n9")
    assert react(world) == []


def test_the_last_copy_of_a_draining_node_is_made_elsewhere():
    world = nodes("n1", "n2")
    a = world.artifact("a", "n1")
    b = world.artifact("b", "n1", "n2")
    world.then(NodeDrained(node=NodeId("n1")))
    assert react(world) == [("n2", pull(a, "n1"))]
    assert b in world.view.artifacts
    world.issue("op-1", "n2", pull(a, "n1"), policy="repair")
    world.node("n3")
    assert react(world) == []


def test_the_last_copy_on_the_disk_of_a_draining_node_gets_to_a_disk():
    world = nodes("n1", "n2")
    a = world.artifact("a", "n1", tier=Tier.DISK)
    world.then(NodeDrained(node=NodeId("n1")))
    assert react(world) == [("n2", pull(a, "n1", tier=Tier.DISK))]
    world.start(world.issue("op-1", "n2", pull(a, "n1"), policy="repair"))
    world.ready(a, "n2")
    assert react(world) == [("n2", Persist(artifact=a))]


# ---- on the same node


def test_a_corrupt_replica_is_filled_again_from_another_node():
    world = nodes("n1", "n2")
    a = world.artifact("a", "n1", "n2")
    corrupt(world, a, "n2")
    assert react(world) == [("n2", pull(a, "n1"))]


def test_a_corrupt_replica_is_filled_again_from_the_own_disk():
    world = nodes("n1")
    a = world.artifact("a", "n1")
    world.ready(a, "n1", Tier.DISK)
    corrupt(world, a, "n1")
    assert react(world) == [("n1", Load(artifact=a))]


def test_a_corrupt_last_copy_waits():
    world = nodes("n1", "n2")
    a = world.artifact("a", "n1")
    corrupt(world, a, "n1")
    assert react(world) == []


def test_a_corrupt_last_copy_is_filled_as_soon_as_there_is_a_source():
    world = nodes("n1", "n2")
    a = world.artifact("a", "n1", "n2")
    world.then(NodeLost(node=NodeId("n2"), epoch=Epoch(1), silent_s=5))
    corrupt(world, a, "n1")
    assert react(world) == []
    world.node("n2", epoch=2)
    assert react(world) == [("n1", pull(a, "n2"))]
    world.node("n3")
    world.ready(a, "n3")
    assert react(world) == [("n1", pull(a, "n2", "n3"))]


def test_what_was_given_up_for_want_of_a_source_goes_on_with_the_next_one():
    world = nodes("n1", "n2", "n3")
    a = world.artifact("a", "n1")
    world.filling(a, "n2")
    world.fail(world.issue("op-1", "n2", pull(a, "n1")), FaultKind.NOT_FOUND)
    corrupt(world, a, "n1")
    assert react(world) == []
    world.ready(a, "n3")
    assert react(world) == [("n1", pull(a, "n3")), ("n2", pull(a, "n3"))]


def test_a_replica_that_is_being_filled_is_left_to_its_operation():
    world = nodes("n1", "n2")
    a = world.artifact("a", "n1")
    world.issue("op-1", "n2", pull(a, "n1"))
    world.filling(a, "n2")
    corrupt(world, a, "n2")
    assert react(world) == []


def test_a_corrupt_disk_replica_is_written_again():
    world = nodes("n1", "n2")
    a = world.artifact("a", "n1")
    world.ready(a, "n1", Tier.DISK)
    corrupt(world, a, "n1", Tier.DISK)
    assert react(world) == [("n1", Persist(artifact=a))]


def test_a_corrupt_disk_replica_without_dram_is_pulled_again():
    world = nodes("n1", "n2")
    a = world.artifact("a", "n1")
    world.ready(a, "n2", Tier.DISK)
    corrupt(world, a, "n2", Tier.DISK)
    assert react(world) == [("n2", pull(a, "n1", tier=Tier.DISK))]
    world.ready(a, "n2")
    assert react(world) == [("n2", Persist(artifact=a))]


def test_a_requested_replica_that_vanished_is_made_again():
    world = nodes("n1", "n2")
    a = world.artifact("a", "n1")
    world.request(a, "n2")
    world.ready(a, "n2")
    vanish(world, a, "n2")
    assert react(world) == [("n2", pull(a, "n1"))]


def test_one_that_nobody_asked_for_is_not():
    world = nodes("n1", "n2")
    a = world.artifact("a", "n1", "n2")
    vanish(world, a, "n2")
    assert react(world) == []


def test_a_cordoned_node_does_not_get_it_back():
    world = nodes("n1", "n2")
    a = world.artifact("a", "n1")
    world.request(a, "n2")
    world.ready(a, "n2")
    world.then(NodeCordoned(node=NodeId("n2")))
    vanish(world, a, "n2")
    assert react(world) == []


def test_what_a_pull_to_a_gpu_brings_through_dram_is_nobody_elses_work():
    world = nodes("n1", "n2", gpu=64 * MIB)
    a = world.artifact("a", "n1")
    world.issue("o", "n2", pull(a, "n1", tier=Tier.GPU))
    world.filling(a, "n2")
    world.ready(a, "n1", Tier.GPU)
    assert react(world) == []
