import pytest

from plan_worlds import PlanWorld
from samples import artifact_id
from tensorcast.controlplane.core.plans.placement import check_placement
from tensorcast.schema.commands import CordonNode, LoseNode
from tensorcast.schema.ids import Tier
from tensorcast.schema.plans import (
    EmitStep,
    Input,
    MapStep,
    MoveKeyStep,
    OperationStep,
    PlanSpec,
    ReplicateStep,
    WaitKey,
    WaitReplicas,
)

A = artifact_id("a")


def pull(**fields):
    return OperationStep(**{"id": "p", "artifact": A, "node": "n2", **fields})


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (pull(), None),
        (pull(node="n9"), "Step p: there is no node 'n9'."),
        (pull(node="n3"), "Step p: node n3 is not up."),
        (pull(node="n4"), "Step p: node n4 takes no new replicas; it is cordoned."),
        (pull(node="n4", work="verify"), None),
        (pull(node="${input.to}"), "Step p: there is no node 'n8'."),
        (pull(artifact="nobody"), "Step p: There is no key and no artifact 'nobody'."),
        (pull(artifact="made"), None),
        (pull(work="persist", tier=Tier.OBJECT), "Step p: node n2 has no tier object."),
        (ReplicateStep(id="p", artifact=A, to=("n2", "n9")), "Step p: there is no node 'n9'."),
        (ReplicateStep(id="p", artifact=A, to="all"), None),
        (MapStep(id="m", shards=2, steps=(pull(node="n9"),)), "Step p: there is no node 'n9'."),
        (MapStep(id="m", nodes="all", steps=(pull(node="${item}"),)), None),
        (EmitStep(id="e", topic="t"), None),
        (WaitKey(id="w", key="not-yet"), None),
    ],
)
def test_what_a_cluster_cannot_do(step, sentence):
    world = PlanWorld(4)
    world.execute(LoseNode(node="n3", epoch=1, silent_s=5.0), CordonNode(node="n4"))
    move = MoveKeyStep(id="move", key="made", artifact=A)
    spec = PlanSpec(name="x", inputs={"to": Input()}, steps=(step, move))
    found = check_placement(world.view, spec, {"to": "n8"})
    assert found == ((sentence,) if sentence else ())


def test_what_is_larger_than_all_room():
    world = PlanWorld()
    large = world.put("large", "n1", chunks=2000)
    (sentence,) = check_placement(world.view, PlanSpec(name="x", steps=(pull(artifact=large),)), {})
    assert sentence.startswith("Step p: the artifact takes 2097152000 bytes; tier dram of node n2")


def test_more_replicas_than_nodes_are_told():
    world = PlanWorld(3)

    def faults(**changes):
        step = WaitReplicas(id="w", artifact=A, **changes)
        return check_placement(world.view, PlanSpec(name="x", steps=(step,)), {})

    (told,) = faults(count=50)
    assert told.startswith("Step w: waits for 50 replicas; there can be 3, one on each node")
    (told,) = faults(count=2, nodes=("n1",))
    assert "there can be 1, one on each node with tier dram that it names." in told
    assert faults(count=3) == faults(count=1, nodes=("n1",)) == ()
