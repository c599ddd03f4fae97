import pytest

from samples import MIB
from tensorcast.controlplane.core.policies.archive import Archive, ArchiveParameters
from tensorcast.schema.ids import Tier
from worlds import World


def react(world, **parameters):
    """(nodes, tier) of each request."""
    commands = Archive(ArchiveParameters(**parameters)).react(world.view, world.last)
    return [(command.nodes, command.tier) for command in commands]


def test_what_is_new_in_memory_is_written_out_by_its_node():
    world = World()
    world.node("n1", store=True)
    world.artifact("a", "n1")
    assert react(world) == [(("n1",), Tier.DISK)]
    assert react(world, tier=Tier.OBJECT) == [(("n1",), Tier.OBJECT)]
    assert react(world, bytes_min=4 * MIB) == [(("n1",), Tier.DISK)]
    assert react(world, bytes_min=4 * MIB + 1) == []
    assert react(world, kinds=("kv",)) == []
    assert react(world, tier=Tier.DRAM) == []


@pytest.mark.parametrize("case", ["asked", "there", "second", "no store"])
def test_never_twice_and_not_where_there_is_no_store(case):
    world = World()
    world.node("n1")
    world.node("n2")
    artifact = world.artifact("a")
    tier = Tier.DISK
    match case:
        case "asked":
            world.request(artifact, "n2", tier=Tier.DISK)
        case "there":
            world.ready(artifact, "n2", Tier.DISK)
        case "no store":
            tier = Tier.OBJECT
    world.ready(artifact, "n1")
    if case == "second":
        world.request(artifact, "n1", tier=Tier.DISK)
        world.ready(artifact, "n2")
    assert react(world, tier=tier) == []
