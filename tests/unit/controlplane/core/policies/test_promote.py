from samples import MIB
from tensorcast.controlplane.core.policies.promote import Promote
from tensorcast.schema.events import ArtifactRemoved, NodeCordoned, NodeRelieved
from tensorcast.schema.ids import Epoch, NodeId, Tier
from tensorcast.schema.work import Load
from worlds import World


def react(world):
    """What the policy wants done about the last event: (node, work) of each operation."""
    commands = Promote().react(world.view, world.last)
    return [(str(command.node), command.work) for command in commands]


def relieve(world, *artifacts, free=64 * MIB, node="n1", tier=Tier.DRAM):
    """The node's mover has room, and offers these disk replicas, the most popular first."""
    candidates = tuple(world.replica(artifact, node, Tier.DISK) for artifact in artifacts)
    return world.then(
        NodeRelieved(
            node=NodeId(node), epoch=Epoch(1), tier=tier, free_bytes=free, candidates=candidates
        )
    )


def lift(artifact):
    return "n1", Load(artifact=artifact, if_room=True)


def one_node(dram=64 * MIB):
    world = World()
    world.node("n1", dram=dram)
    return world


def test_the_most_popular_that_fit_are_loaded():
    world = one_node()
    a, b, c = (
        world.artifact(name, "n1", chunks=chunks, tier=Tier.DISK)
        for name, chunks in (("a", 4), ("b", 6), ("c", 2))
    )
    relieve(world, b, a, c, free=8 * MIB)
    assert react(world) == [lift(b), lift(c)]


def test_never_more_than_the_log_says_is_free():
    world = one_node(dram=6 * MIB)
    a = world.artifact("a", "n1", tier=Tier.DISK)
    world.artifact("b", "n1")
    relieve(world, a)
    assert react(world) == []


def test_never_what_is_there_or_coming():
    world = one_node()
    a, b, c = (world.artifact(name, "n1", tier=Tier.DISK) for name in "abc")
    world.ready(a, "n1")
    world.filling(b, "n1")
    world.issue("op-1", "n1", Load(artifact=c), policy="demand")
    relieve(world, a, b, c)
    assert react(world) == []


def test_never_what_was_removed_or_is_not_on_this_disk():
    world = one_node()
    world.node("n2")
    a = world.artifact("a", "n1", tier=Tier.DISK)
    b = world.artifact("b", "n2", tier=Tier.DISK)
    world.then(ArtifactRemoved(artifact=a))
    relieve(world, a, b)
    assert react(world) == []


def test_nothing_comes_to_a_node_that_is_cordoned():
    world = one_node()
    a = world.artifact("a", "n1", tier=Tier.DISK)
    world.then(NodeCordoned(node=NodeId("n1")))
    relieve(world, a)
    assert react(world) == []


def test_the_disk_takes_nothing_up():
    world = one_node()
    a = world.artifact("a", "n1", tier=Tier.DISK)
    relieve(world, a, tier=Tier.DISK)
    assert react(world) == []
