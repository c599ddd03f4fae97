from samples import MIB
from tensorcast.controlplane.core.policies.admission import Admission, AdmissionParameters
from tensorcast.schema.commands import CordonNode, UncordonNode
from tensorcast.schema.events import NodeCordoned, NodePressured, ReplicaEvicting, ReplicaGone
from tensorcast.schema.ids import Epoch, NodeId, Tier
from worlds import World

N1 = NodeId("n1")
CLOSE, OPEN = CordonNode(node=N1), UncordonNode(node=N1)


def react(world, **parameters):
    return Admission(AdmissionParameters(**parameters)).react(world.view, world.last)


def press(world, *candidates, tier=Tier.DRAM):
    names = tuple(world.replica(artifact, "n1") for artifact in candidates)
    world.then(
        NodePressured(node=N1, epoch=Epoch(1), tier=tier, needed_bytes=4 * MIB, candidates=names)
    )


def full_node():
    world = World()
    world.node("n1", dram=16 * MIB)
    return world, [world.artifact(name, "n1") for name in "abcd"]


def drop(world, artifact):
    replica = world.replica(artifact, "n1")
    world.then(ReplicaEvicting(replica=replica, epoch=Epoch(1), reason="pressure"))
    world.then(ReplicaGone(replica=replica, epoch=Epoch(1)))


def test_a_full_node_that_can_make_no_room_is_closed():
    world, artifacts = full_node()
    press(world)
    assert react(world) == (CLOSE,)
    press(world, artifacts[0])
    assert react(world) == (), "what nobody uses makes the room"
    press(world, tier=Tier.DISK)
    assert react(world) == ()
    drop(world, artifacts[0])
    press(world)
    assert react(world) == ()


def test_it_is_opened_again_once_it_has_room_and_only_by_who_closed_it():
    world, artifacts = full_node()
    world.then(NodeCordoned(node=N1), actor="policy:admission")
    drop(world, artifacts[0])
    assert react(world) == (OPEN,)
    assert react(world, high=0.5) == ()
    world, artifacts = full_node()
    world.then(NodeCordoned(node=N1))
    drop(world, artifacts[0])
    assert react(world) == ()
