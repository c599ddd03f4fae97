"""A dry run says what nodes would have to drop."""

import pytest

from plan_worlds import MIB, PlanWorld
from samples import artifact_id
from tensorcast.controlplane.core.plans.forecast import forecast
from tensorcast.controlplane.core.plans.room import _size
from tensorcast.schema.commands import JoinNode, PinArtifact
from tensorcast.schema.ids import Epoch, NodeId, Tier
from tensorcast.schema.plans import OperationStep, PlanSpec

A = artifact_id("a")


def join(world, **tiers):
    """Node n2 of 10 MiB of memory."""
    world.execute(
        JoinNode(
            node=NodeId("n2"),
            epoch=Epoch(2),
            address="n2:1",
            tiers={Tier.DRAM: 10 * MIB, **tiers},
            transports=("tcp",),
            bandwidth=100 * MIB,
        )
    )


def explain(world, *artifacts):
    steps = tuple(
        OperationStep(id=f"s{number}", artifact=artifact, node="n2")
        for number, artifact in enumerate(artifacts)
    )
    spec = PlanSpec(name="x", steps=steps, concurrency_max=1)
    return forecast(world.view, spec, {}, world.now)


def test_what_must_go_is_told_of_each_step_and_in_all():
    world = PlanWorld(2, artifacts="abc")
    join(world)
    world.put("d", "n1", "n2", chunks=8)
    found = explain(world, *map(artifact_id, "abc"))
    assert [one.evicts_bytes for one in found.steps] == [2 * MIB, 4 * MIB, 4 * MIB]
    assert found.evicts_bytes == 10 * MIB
    assert found.steps[0].note == "n2 evicts 2.0 MiB of dram to make room"
    assert found.steps[2].note == "n2 evicts 4.0 MiB of dram to make room"


def test_what_may_not_go_is_no_room():
    world = PlanWorld(2)
    join(world)
    other = world.put("d", "n1", "n2", chunks=8)
    world.execute(PinArtifact(artifact=other))
    found = explain(world, A)
    (step,) = found.steps
    assert step.note == "n2 has no room: 2.0 MiB of dram must go and 0 B may."
    assert (step.status, found.state) == ("failed", "failed")
    assert (found.bytes, found.evicts_bytes) == (0, 0)


def test_what_is_larger_than_any_room_would_fail():
    world = PlanWorld(2)
    join(world)
    found = explain(world, world.put("d", "n1", chunks=11))
    assert "1.0 MiB of dram must go and 0 B may" in found.steps[0].note
    assert found.state == "failed"
    assert len(found.faults) == 1


def test_the_last_copy_goes_where_there_is_a_disk():
    world = PlanWorld(2)
    join(world)
    world.put("d", "n2", chunks=8)
    assert "has no room" in explain(world, A).steps[0].note
    world = PlanWorld(2)
    join(world, **{Tier.DISK: 1 << 30})
    world.put("d", "n2", chunks=8)
    assert "evicts 2.0 MiB" in explain(world, A).steps[0].note


def test_where_there_is_room_nothing_goes():
    found = explain(PlanWorld(2), A)
    assert (found.evicts_bytes, found.steps[0].note) == (0, "")


@pytest.mark.parametrize(("size", "text"), [(5, "5 B"), (1536, "1.5 KiB"), (3 << 40, "3.0 TiB")])
def test_sizes(size, text):
    assert _size(size) == text
