import pytest

from samples import MIB
from tensorcast.controlplane.core.retry import ATTEMPTS_MAX
from tensorcast.controlplane.services.api_waits import measure_progress
from tensorcast.schema.api import WaitReplicas
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.events import OperationCancelled, OperationRetried, ReplicaFilled
from tensorcast.schema.faults import FaultKind
from tensorcast.schema.ids import Epoch, EventId, NodeId, Tier
from tensorcast.schema.work import Materialize, Persist
from worlds import World


@pytest.fixture
def world():
    world = World()
    world.node("n1")
    world.node("n2")
    world.artifact("a", "n1")
    return world


def ask(world, *nodes, tier=Tier.DRAM):
    """Requests the replicas; returns how far they are, as a function."""
    (artifact,) = world.view.artifacts
    request = world.request(artifact, *nodes, tier=tier)
    query = WaitReplicas(
        artifact=artifact,
        nodes=tuple(map(NodeId, nodes)),
        tier=tier,
        request=request.id,
        timeout_s=1,
    )
    return artifact, request.id, lambda: measure_progress(world.view, query)


def test_nothing_is_settled_before_a_scheduler_has_seen_the_request(world):
    _, _, progress = ask(world, "n2")
    assert (progress().done, progress().failed, progress().bytes_total) == (False, (), 4 * MIB)


def test_progress_counts_the_bytes_of_chunks(world):
    artifact, request, progress = ask(world, "n2")
    world.start(world.issue("op-1", "n2", Materialize(artifact=artifact), cause=request))
    world.filling(artifact, "n2")
    chunks = ChunkSet.of([0, 2])
    world.then(ReplicaFilled(replica=world.replica(artifact, "n2"), epoch=Epoch(1), chunks=chunks))
    assert progress().bytes_ready == 2 * MIB
    world.ready(artifact, "n2")
    assert (progress().done, progress().ready, progress().bytes_ready) == (True, ("n2",), 4 * MIB)


def test_a_failure_counts_when_no_retry_will_come(world):
    artifact, request, progress = ask(world, "n1", "n2")
    operation = world.issue("op-1", "n2", Materialize(artifact=artifact), cause=request)
    for attempt in range(2, ATTEMPTS_MAX + 1):
        world.fail(operation)
        assert (progress().done, progress().failed) == (False, ())
        world.then(OperationRetried(operation=operation, attempt=attempt))
    world.fail(operation)
    assert (progress().done, progress().ready) == (True, ("n1",))
    assert [failed.id for failed in progress().failed] == [operation]


def test_a_cancelled_operation_will_not_succeed(world):
    artifact, request, progress = ask(world, "n2")
    operation = world.issue("op-1", "n2", Materialize(artifact=artifact), cause=request)
    world.then(OperationCancelled(operation=operation, reason="enough"))
    assert progress().done
    assert [failed.status for failed in progress().failed] == ["cancelled"]


def test_an_operation_that_was_under_way_when_the_request_came_counts(world):
    (artifact,) = world.view.artifacts
    operation = world.issue("op-1", "n2", Materialize(artifact=artifact))
    _, _, progress = ask(world, "n2")
    assert [found.id for found in progress().operations] == [operation]
    assert not progress().done


def test_an_earlier_failure_is_not_this_request(world):
    (artifact,) = world.view.artifacts
    world.fail(world.issue("op-1", "n2", Materialize(artifact=artifact)), FaultKind.DENIED)
    made = world.request(artifact, "n2").at
    query = WaitReplicas(
        artifact=artifact,
        nodes=(NodeId("n2"),),
        tier=Tier.DRAM,
        request=_event_id_at(made),
        timeout_s=1,
    )
    progress = measure_progress(world.view, query)
    assert (progress.done, progress.operations) == (False, ())


def _event_id_at(moment):
    """An id as a writer makes it at this time (UUIDv7)."""
    digits = f"{int(moment.timestamp() * 1000):012x}"
    return EventId(f"{digits[:8]}-{digits[8:]}-7000-8000-000000000000")


def test_a_disk_replica_takes_two_operations(world):
    artifact, request, progress = ask(world, "n2", tier=Tier.DISK)
    world.succeed(world.issue("op-1", "n2", Materialize(artifact=artifact), cause=request))
    assert not progress().done
    operation = world.issue("op-2", "n2", Persist(artifact=artifact), cause="a ready replica")
    assert not progress().done
    world.start(operation)
    world.ready(artifact, "n2", Tier.DISK)
    assert progress().done


def test_a_disk_that_is_full_is_a_failure(world):
    artifact, request, progress = ask(world, "n2", tier=Tier.DISK)
    world.succeed(world.issue("op-1", "n2", Materialize(artifact=artifact), cause=request))
    operation = world.issue("op-2", "n2", Persist(artifact=artifact), cause="a ready replica")
    world.fail(operation, FaultKind.DENIED)
    assert [failed.id for failed in progress().failed] == [operation]
    assert progress().done


def test_what_was_made_and_is_gone_again_is_settled(world):
    artifact, request, progress = ask(world, "n2")
    world.succeed(world.issue("op-1", "n2", Materialize(artifact=artifact), cause=request))
    assert (progress().done, progress().ready, progress().failed) == (True, (), ())
