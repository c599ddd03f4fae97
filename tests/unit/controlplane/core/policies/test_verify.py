from tensorcast.controlplane.core.policies.verify import VerifyReplicas
from tensorcast.schema.events import NodeLeft, VerificationRequested
from tensorcast.schema.ids import Epoch, NodeId, Tier
from tensorcast.schema.work import Verify
from worlds import World


def react(world):
    commands = VerifyReplicas().react(world.view, world.last)
    return [(str(command.node), command.work) for command in commands]


def doubt(world, artifact, *replicas):
    return world.then(VerificationRequested(artifact=artifact, replicas=replicas))


def test_each_complete_replica_is_checked_once():
    world = World()
    for name in ("n1", "n2", "n3", "n4"):
        world.node(name)
    a = world.artifact("a", "n1", "n2")
    b = world.artifact("b", "n1")
    world.ready(a, "n1", Tier.DISK)
    world.filling(a, "n3")
    world.issue("op-1", "n2", Verify(artifact=a, tier=Tier.DRAM), policy="verify")
    world.ready(a, "n4")
    world.then(NodeLeft(node=NodeId("n4"), epoch=Epoch(1)))
    doubt(
        world,
        a,
        world.replica(a, "n1"),
        world.replica(a, "n1"),
        world.replica(a, "n1", Tier.DISK),
        world.replica(a, "n2"),
        world.replica(a, "n3"),
        world.replica(a, "n4"),
        world.replica(a, "n9"),
        world.replica(b, "n1"),
    )
    assert react(world) == [
        ("n1", Verify(artifact=a, tier=Tier.DRAM)),
        ("n1", Verify(artifact=a, tier=Tier.DISK)),
    ]


def test_other_events_are_ignored():
    world = World()
    world.node("n1")
    assert react(world) == []
