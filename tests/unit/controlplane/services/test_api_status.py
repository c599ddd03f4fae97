from rigs import Clock
from tensorcast.controlplane.services.api_status import find_problems
from tensorcast.controlplane.services.heartbeats import Heartbeats
from tensorcast.schema.events import NodeLost
from tensorcast.schema.ids import Epoch, NodeId
from worlds import World


def test_problems_are_said_in_words():
    clock = Clock()
    heard = Heartbeats(clock)
    world = World()
    for name in ("n1", "n2", "n3"):
        world.node(name)
    heard.hear_node(NodeId("n2"), b'{"epoch": 1}')
    clock.now_s += 4
    heard.hear_node(NodeId("n3"), b'{"epoch": 1, "tiers": {"dram": {"capacity": 100, "used": 99}}}')
    assert list(find_problems(world.view, heard)) == [
        "Node n2 has been silent for 4 s.",
        "The dram of node n3 is 99% full.",
    ]
    world.then(NodeLost(node=NodeId("n1"), epoch=Epoch(1), silent_s=5))
    assert next(find_problems(world.view, heard)).startswith("Node n1 is lost")
