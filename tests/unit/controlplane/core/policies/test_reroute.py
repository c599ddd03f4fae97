import pytest

from tensorcast.controlplane.core.decisions import is_right
from tensorcast.controlplane.core.policies.reroute import Reroute
from tensorcast.schema.aggregates.operation import decide
from tensorcast.schema.commands import RerouteOperation
from tensorcast.schema.events import (
    ArtifactRemoved,
    NodeCordoned,
    NodeDrained,
    NodeLeft,
    NodeLost,
    OperationCancelled,
    OperationRerouted,
    ReplicaEvicting,
    ReplicaGone,
    ReplicaLost,
)
from tensorcast.schema.ids import Epoch, NodeId
from tensorcast.schema.work import Evict, Materialize
from worlds import World

ONE = Epoch(1)
N2, N3 = NodeId("n2"), NodeId("n3")


def react(world):
    commands = Reroute().react(world.view, world.last)
    assert all(isinstance(command, RerouteOperation) for command in commands)
    return [(c.operation, c.sources, c.instead_of) for c in commands]


def chain():
    """n1 has it; n2 pulls from n1, n3 from n2, n4 from n3."""
    world = World()
    for name in ("n1", "n2", "n3", "n4"):
        world.node(name)
    a = world.artifact("a", "n1")
    for node, source in (("n2", "n1"), ("n3", "n2"), ("n4", "n3")):
        work = Materialize(artifact=a, sources=(NodeId(source),))
        world.start(world.issue(f"op-{node}", node, work))
        world.filling(a, node)
    return world, a


FROM_N1 = [("op-n3", ("n1",), "n2")]


@pytest.mark.parametrize(
    "event",
    [
        NodeLost(node=N2, epoch=ONE, silent_s=9.0),
        NodeLeft(node=N2, epoch=ONE),
        NodeCordoned(node=N2),
        NodeDrained(node=N2),
        OperationCancelled(operation="op-n2", reason="enough"),
    ],
)
def test_who_pulled_from_a_relay_that_goes_gets_another_source(event):
    world, _ = chain()
    world.then(event)
    assert react(world) == FROM_N1


def test_a_relay_whose_pull_fails_is_left():
    world, _ = chain()
    world.fail("op-n2")
    assert react(world) == FROM_N1


@pytest.mark.parametrize("kind", [ReplicaGone, ReplicaLost, ReplicaEvicting])
def test_a_replica_that_goes_is_left(kind):
    world, a = chain()
    world.ready(a, "n2")
    replica = world.replica(a, "n2")
    if kind is ReplicaLost:
        world.then(ReplicaLost(replica=replica, epoch=ONE, detail="gone"))
    else:
        world.succeed(world.issue("op-x", "n2", Evict(artifact=a, tier="dram", reason="asked")))
        world.then(ReplicaEvicting(replica=replica, epoch=ONE, reason="asked"))
        if kind is ReplicaGone:
            world.then(ReplicaGone(replica=replica, epoch=ONE))
    assert ("op-n3", ("n1",), "n2") in react(world)


@pytest.mark.parametrize("event", [NodeCordoned(node=N2), NodeDrained(node=N2)])
def test_a_cordoned_node_that_has_it_all_still_serves(event):
    world, a = chain()
    world.ready(a, "n2")
    world.then(event)
    assert react(world) == []


def test_nothing_happens_where_nobody_relies_on_it():
    world, a = chain()
    world.then(NodeLost(node=NodeId("n4"), epoch=ONE, silent_s=9.0))
    assert react(world) == []
    world.then(ArtifactRemoved(artifact=a))
    world.then(NodeLost(node=N2, epoch=ONE, silent_s=9.0))
    assert react(world) == []


def test_a_second_scheduler_changes_nothing():
    world, _ = chain()
    world.then(NodeLost(node=N2, epoch=ONE, silent_s=9.0))
    (command,) = Reroute().react(world.view, world.last)
    assert is_right(world.view, command)
    world.then(OperationRerouted(operation="op-n3", sources=("n1",)))
    assert decide(world.view.operations["op-n3"], command) == ()


def test_the_end_of_what_is_no_pull_is_nothing():
    world, a = chain()
    world.fail(world.issue("op-v", "n2", Evict(artifact=a, tier="dram")))
    assert react(world) == []
