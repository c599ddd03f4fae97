from samples import artifact_id, manifest
from tensorcast.controlplane.core.policies.announce import Announce, AnnounceParameters
from tensorcast.schema.events import (
    ArtifactSealed,
    KeyMoved,
    NodeLeft,
    NodeLost,
    NodePressured,
    ReplicaEvicting,
    ReplicaGone,
)
from tensorcast.schema.ids import Epoch, Key, NodeId, Tier
from tensorcast.schema.shapes import find_fault
from tensorcast.schema.signals import Pattern
from tensorcast.schema.system_signals import SHAPES
from worlds import World

N1 = NodeId("n1")
ALL = tuple(topic for topic in SHAPES if "*" not in topic)


def react(world, topics=ALL):
    commands = Announce(AnnounceParameters(topics=topics)).react(world.view, world.last)
    for command in commands:
        assert find_fault(SHAPES[Pattern(command.topic)], command.data) is None
    return [command.topic for command in commands]


def test_each_topic_has_its_event_and_its_shape():
    world = World()
    world.node("n1")
    assert react(world) == ["node.joined"]
    weights = world.artifact("a", "n1")
    assert react(world) == ["replica.ready"]
    world.then(KeyMoved(key=Key("k"), artifact=weights, previous=None, version=1))
    assert react(world) == ["weights.published"]
    kv = artifact_id("kv")
    world.then(ArtifactSealed(artifact=kv, kind="kv", manifest=manifest(4)))
    assert react(world) == []
    world.ready(kv, "n1")
    assert react(world) == ["replica.ready", "kv.stored"]
    replica = world.replica(kv, "n1")
    world.then(ReplicaEvicting(replica=replica, epoch=Epoch(1), reason="pressure"))
    world.then(ReplicaGone(replica=replica, epoch=Epoch(1)))
    assert react(world) == ["kv.evicted"]
    pressed = {"tier": Tier.DRAM, "needed_bytes": 1, "candidates": ()}
    world.then(NodePressured(node=N1, epoch=Epoch(1), **pressed))
    assert react(world) == ["memory.pressure"]
    world.then(NodeLost(node=N1, epoch=Epoch(1), silent_s=5.0))
    assert react(world) == ["node.lost"]
    world.then(NodeLeft(node=N1, epoch=Epoch(1)))
    assert react(world) == ["node.left"]
    assert react(world, topics=("node.lost",)) == []
