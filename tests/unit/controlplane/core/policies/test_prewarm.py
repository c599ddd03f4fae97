import pytest

from tensorcast.controlplane.core.policies.prewarm import Prewarm, PrewarmParameters
from tensorcast.schema.events import ArtifactRemoved, KeyMoved, NodeCordoned
from tensorcast.schema.ids import Key, NodeId, Tier
from worlds import World


def react(world, **parameters):
    """(artifact, nodes) of each request."""
    commands = Prewarm(PrewarmParameters(**parameters)).react(world.view, world.last)
    return [(command.artifact, command.nodes) for command in commands]


def move(world, key, artifact, previous=None, version=1):
    world.then(KeyMoved(key=Key(key), artifact=artifact, previous=previous, version=version))


def two_versions():
    """The key pointed to what is on n1 and n2, and points to what is on n3."""
    world = World()
    for number in range(1, 4):
        world.node(f"n{number}")
    old, new = world.artifact("old", "n1", "n2"), world.artifact("new", "n3")
    move(world, "policy", old)
    return world, old, new


def test_the_new_version_goes_where_the_old_one_is():
    world, old, new = two_versions()
    move(world, "policy", new, old, 2)
    assert react(world) == [(new, ("n1", "n2"))]
    assert react(world, keys=("policy*",)) == [(new, ("n1", "n2"))]
    assert react(world, keys=("other",)) == []


@pytest.mark.parametrize("case", ["first", "there", "asked", "closed", "removed", "on disk"])
def test_never(case):
    world, old, new = two_versions()
    world.then(NodeCordoned(node=NodeId("n2")))
    match case:
        case "there":
            world.ready(new, "n1")
        case "asked":
            world.request(new, "n1")
        case "closed":
            world.then(NodeCordoned(node=NodeId("n1")))
        case "removed":
            world.then(ArtifactRemoved(artifact=new))
        case "on disk":
            old = world.artifact("disk", "n1", tier=Tier.DISK)
    move(world, "policy", new, None if case == "first" else old, 2)
    assert react(world) == []


def test_a_node_that_joins_gets_what_it_will_need():
    world, old, _ = two_versions()
    world.node("n4", labels={"pool": "llm"})
    assert react(world) == []
    assert react(world, on_join=("policy",)) == [(old, ("n4",))]
    assert react(world, on_join=("policy",), labels={"pool": "llm"}) == [(old, ("n4",))]
    assert react(world, on_join=("policy",), labels={"pool": "other"}) == []
