"""What the policies make of a store that all nodes share."""

from __future__ import annotations

from tensorcast.controlplane.core.policies.drain import Drain
from tensorcast.controlplane.core.policies.repair import Repair
from tensorcast.controlplane.core.policies.replicate import Replicate
from tensorcast.controlplane.core.view import fill_work, has_survivor, ready_replicas
from tensorcast.schema.events import NodeDrained, NodeLost
from tensorcast.schema.ids import Epoch, NodeId, Tier
from tensorcast.schema.work import Evict, Load, Materialize, Persist
from worlds import World

N1 = NodeId("n1")


def react(policy, world):
    commands = policy.react(world.view, world.last)
    return [(str(command.node), command.work) for command in commands]


def world_with_store() -> World:
    world = World()
    for name in ("n1", "n2", "n3"):
        world.node(name, store=name != "n3")
    return world


def test_what_is_in_memory_is_stored_when_somebody_asks():
    world = world_with_store()
    a = world.artifact("a", "n1")
    world.request(a, "n1", tier=Tier.OBJECT)
    assert react(Replicate(), world) == [("n1", Persist(artifact=a, tier=Tier.OBJECT))]


def test_what_is_not_in_memory_goes_through_it():
    world = world_with_store()
    a = world.artifact("a", "n1")
    world.request(a, "n2", tier=Tier.OBJECT)
    assert react(Replicate(), world) == [("n2", Materialize(artifact=a, sources=(N1,)))]
    world.ready(a, "n2")
    assert react(Replicate(), world) == [("n2", Persist(artifact=a, tier=Tier.OBJECT))]


def test_what_is_on_disk_goes_through_memory_too():
    world = world_with_store()
    a = world.artifact("a", "n1", tier=Tier.DISK)
    world.request(a, "n1", tier=Tier.OBJECT)
    assert react(Replicate(), world) == [("n1", Load(artifact=a))]


def test_a_node_without_access_is_left_alone():
    world = world_with_store()
    a = world.artifact("a", "n3")
    world.request(a, "n3", tier=Tier.OBJECT)
    assert react(Replicate(), world) == []


def test_disk_and_store_are_both_written():
    world = world_with_store()
    a = world.artifact("a", "n1")
    world.request(a, "n2", tier=Tier.OBJECT)
    world.request(a, "n2", tier=Tier.DISK)
    world.ready(a, "n2")
    assert react(Replicate(), world) == [
        ("n2", Persist(artifact=a, tier=Tier.OBJECT)),
        ("n2", Persist(artifact=a, tier=Tier.DISK)),
    ]


def test_what_was_lost_with_its_node_comes_from_the_store():
    world = world_with_store()
    a = world.artifact("a", "n1")
    world.ready(a, "n1", Tier.OBJECT)
    world.request(a, "n1")
    world.then(NodeLost(node=N1, epoch=Epoch(1), silent_s=9.0))
    assert react(Repair(), world) == [("n2", Load(artifact=a, tier=Tier.OBJECT))]
    world.request(a, "n2")
    assert react(Replicate(), world) == [("n2", Load(artifact=a, tier=Tier.OBJECT))]


def test_nodes_come_before_the_store():
    world = world_with_store()
    a = world.artifact("a", "n1")
    world.ready(a, "n1", Tier.OBJECT)
    sources = (N1,)
    assert fill_work(world.view, a, NodeId("n2")) == Materialize(artifact=a, sources=sources)
    assert [replica.tier for replica in ready_replicas(world.view, a)] == [Tier.DRAM]


def test_who_has_no_access_waits_for_a_node():
    world = world_with_store()
    a = world.artifact("a", "n1", tier=Tier.OBJECT)
    assert fill_work(world.view, a, NodeId("n3")) == Materialize(artifact=a)


def test_a_copy_in_the_store_is_a_copy():
    world = world_with_store()
    a = world.artifact("a", "n1")
    memory = world.view.replicas[world.replica(a, "n1")]
    assert not has_survivor(world.view, memory)
    world.ready(a, "n1", Tier.OBJECT)
    assert has_survivor(world.view, memory)
    stored = world.view.replicas[world.replica(a, "n1", Tier.OBJECT)]
    assert has_survivor(world.view, stored), "the one in memory"


def test_a_drain_leaves_what_is_not_on_the_node():
    world = world_with_store()
    a = world.artifact("a", "n1", "n2")
    world.ready(a, "n1", Tier.OBJECT)
    world.then(NodeDrained(node=N1))
    assert [work for _, work in react(Drain(), world)] == [
        Evict(artifact=a, tier=Tier.DRAM, reason="drained")
    ]
