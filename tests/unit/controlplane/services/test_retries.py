import pytest

from rigs import running_rig
from tensorcast.controlplane.services.retries import Retries, decide_retry
from tensorcast.schema.commands import CancelOperation, RetryOperation
from tensorcast.schema.events import ArtifactRemoved, OperationCancelled, OperationRetried
from tensorcast.schema.ids import OperationId
from tensorcast.schema.work import Materialize
from worlds import World


@pytest.fixture
def world():
    world = World()
    world.node("n1")
    world.node("n2")
    artifact = world.artifact("a", "n1")
    world.fail(world.issue("op-1", "n2", Materialize(artifact=artifact)))
    return world


OPERATION = OperationId("op-1")


def test_a_failed_operation_is_tried_again(world):
    command = decide_retry(world.view, OPERATION, 2)
    assert command == RetryOperation(operation=OPERATION, attempt=2)


def test_somebody_was_faster(world):
    world.then(OperationRetried(operation=OPERATION, attempt=2))
    assert decide_retry(world.view, OPERATION, 2) is None
    world.fail(OPERATION)
    assert decide_retry(world.view, OPERATION, 2) is None


def test_a_cancelled_operation_stays_cancelled(world):
    world.then(OperationCancelled(operation=OPERATION, reason="enough"))
    assert decide_retry(world.view, OPERATION, 2) is None


def test_what_nobody_needs_any_more_is_cancelled(world):
    (artifact,) = world.view.artifacts
    world.then(ArtifactRemoved(artifact=artifact))
    assert isinstance(decide_retry(world.view, OPERATION, 2), CancelOperation)


async def test_what_is_due_is_found_in_a_view_too(world):
    async with running_rig() as rig:
        await rig.replay(world.events)
        noted, recalled = Retries(rig.writer, rig.follower), Retries(rig.writer, rig.follower)
        failure = world.events[-1]
        noted.note(world.view, failure)
        await recalled.recall(rig.view, rig.log)
        assert recalled.pending.keys() == noted.pending.keys() == {OPERATION}
        assert recalled.pending[OPERATION].attempt == noted.pending[OPERATION].attempt == 2
        cause = (await rig.log.read_one(failure.seq)).payload
        assert recalled.pending[OPERATION].cause.encode() in cause
