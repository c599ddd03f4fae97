import pytest

from tensorcast.controlplane.services.retries import decide_retry
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
