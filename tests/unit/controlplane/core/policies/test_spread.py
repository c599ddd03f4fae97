import pytest

from samples import MIB
from tensorcast.controlplane.core.policies.spread import Spread, SpreadParameters
from tensorcast.schema.commands import RequestReplicas
from tensorcast.schema.events import NodeCordoned
from tensorcast.schema.ids import NodeId
from tensorcast.schema.work import Materialize
from worlds import World


def react(world, **parameters):
    """The nodes that are asked for the artifact."""
    commands = Spread(SpreadParameters(**parameters)).react(world.view, world.last)
    assert all(isinstance(command, RequestReplicas) for command in commands)
    return [node for command in commands for node in command.nodes]


def five_nodes():
    world = World()
    for number in range(1, 6):
        world.node(f"n{number}", labels={"pool": "a" if number < 4 else "b"})
    return world, world.artifact("a", "n1")


def demand(world, artifact, node):
    return world.issue(f"op-{node}", node, Materialize(artifact=artifact), policy="demand")


def test_one_reader_is_no_demand_and_two_are():
    world, artifact = five_nodes()
    demand(world, artifact, "n2")
    assert react(world) == []
    demand(world, artifact, "n3")
    assert react(world) == ["n4", "n5"]


@pytest.mark.parametrize(
    ("parameters", "nodes"),
    [
        ({"readers": 3}, []),
        ({"window_s": 0.5}, []),
        ({"nodes_max": 1}, ["n4"]),
        ({"alike": ("pool",)}, []),
        ({"kinds": ("kv",)}, []),
        ({"kinds": ()}, ["n4", "n5"]),
    ],
)
def test_its_parameters(parameters, nodes):
    world, artifact = five_nodes()
    demand(world, artifact, "n2")
    demand(world, artifact, "n3")
    assert react(world, **parameters) == nodes


def test_never_where_it_is_asked_for_closed_or_full():
    world, artifact = five_nodes()
    world.node("n6", dram=2 * MIB)
    world.request(artifact, "n4")
    world.then(NodeCordoned(node=NodeId("n5")))
    demand(world, artifact, "n2")
    demand(world, artifact, "n3")
    assert react(world) == []


def test_other_work_is_no_demand():
    world, artifact = five_nodes()
    for node in ("n2", "n3"):
        world.issue(f"op-{node}", node, Materialize(artifact=artifact))
    assert react(world) == []
