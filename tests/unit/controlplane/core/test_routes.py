"""Plans from what the cluster knows."""

from __future__ import annotations

import pytest

from tensorcast.controlplane.core.routes import dependents, plan_detours, plan_routes
from tensorcast.schema.events import NodeCordoned, NodeLost
from tensorcast.schema.faults import FaultKind
from tensorcast.schema.ids import Epoch, NodeId, Tier
from tensorcast.schema.work import Load, Materialize
from worlds import World


@pytest.fixture
def world() -> World:
    world = World()
    for number in range(1, 8):
        world.node(f"n{number}")
    return world


def pull(world: World, artifact, node: str, *sources: str):
    work = Materialize(artifact=artifact, sources=tuple(map(NodeId, sources)))
    return world.issue(f"op-{node}", node, work)


def detours(world: World, artifact, gone: str) -> dict[str, tuple[str, ...]]:
    found = plan_detours(world.view, artifact, NodeId(gone))
    return {str(operation.node): sources for operation, sources in found}


def routes(world: World, artifact, *nodes: str, tier=Tier.DRAM) -> dict[str, tuple[str, ...]]:
    return dict(plan_routes(world.view, artifact, dict.fromkeys(map(NodeId, nodes), tier)))


def test_what_is_under_way_is_part_of_the_plan(world: World):
    a = world.artifact("a", "n1")
    pull(world, a, "n2", "n1")
    pull(world, a, "n3", "n2")
    assert routes(world, a, "n4", "n5") == {"n4": ("n3",), "n5": ("n4",)}


def test_cordoned_and_lost_nodes_and_other_work_are_not(world: World):
    a = world.artifact("a", "n1")
    pull(world, a, "n2", "n1")
    pull(world, a, "n3", "n2")
    world.issue("op-load", "n5", Load(artifact=a))
    world.then(NodeCordoned(node=NodeId("n3")))
    world.then(NodeLost(node=NodeId("n2"), epoch=Epoch(1), silent_s=9.0))
    assert routes(world, a, "n4") == {"n4": ("n1",)}


def test_what_goes_to_a_disk_is_placed_last(world: World):
    a = world.artifact("a", "n1")
    tiers = {NodeId("n2"): Tier.DISK, NodeId("n3"): Tier.DRAM}
    assert plan_routes(world.view, a, tiers) == {"n3": ("n1",), "n2": ("n3",)}


def test_bandwidth_and_labels_of_nodes_count(world: World):
    world.node("n1", epoch=2, bandwidth=300, labels={"rack": "r1"})
    for name, rack in (("n2", "r2"), ("n3", "r1"), ("n4", "r2")):
        world.node(name, epoch=2, bandwidth=100, labels={"rack": rack})
    a = world.artifact("a", "n1")
    assert routes(world, a, "n2", "n3", "n4") == {"n3": ("n1",), "n2": ("n1",), "n4": ("n2",)}


def test_who_relied_on_a_dead_relay_gets_the_one_before_it(world: World):
    a = world.artifact("a", "n1")
    for node, source in (("n2", "n1"), ("n3", "n2"), ("n4", "n3"), ("n5", "n4")):
        pull(world, a, node, source)
    assert [o.node for o in dependents(world.view, a, NodeId("n3"))] == ["n4"]
    world.then(NodeLost(node=NodeId("n3"), epoch=Epoch(1), silent_s=9.0))
    assert detours(world, a, "n3") == {"n4": ("n2",)}
    assert detours(world, a, "n5") == {}


def test_nobody_waits_for_himself(world: World):
    a = world.artifact("a", "n1")
    for node, source in (("n2", "n1"), ("n3", "n2"), ("n4", "n3")):
        pull(world, a, node, source)
    world.then(NodeLost(node=NodeId("n2"), epoch=Epoch(1), silent_s=9.0))
    assert detours(world, a, "n2") == {"n3": ("n1",)}, "not n4, which waits for n3"


def test_two_that_relied_on_it_do_not_share_an_uplink_that_is_taken(world: World):
    a = world.artifact("a", "n1")
    for node, source in (("n2", "n1"), ("n3", "n2"), ("n4", "n2"), ("n5", "n3")):
        pull(world, a, node, source)
    world.then(NodeLost(node=NodeId("n2"), epoch=Epoch(1), silent_s=9.0))
    assert detours(world, a, "n2")["n3"] == ("n1",)
    assert detours(world, a, "n2")["n4"] != ("n3",), "n3 feeds n5 already"


def test_an_operation_that_will_be_tried_again_gets_a_detour_too(world: World):
    a = world.artifact("a", "n1", "n6")
    operation = pull(world, a, "n2", "n6")
    world.fail(operation, FaultKind.UNAVAILABLE)
    world.then(NodeLost(node=NodeId("n6"), epoch=Epoch(1), silent_s=9.0))
    assert detours(world, a, "n6") == {"n2": ("n1",)}
