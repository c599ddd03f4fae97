import pytest

from tensorcast.schema.errors import Conflict, NotFound, OutOfCapacity, TensorCastError
from tensorcast.schema.faults import RETRYABLE, Fault, FaultKind, from_error, to_error


@pytest.mark.parametrize("kind", FaultKind)
def test_a_fault_becomes_an_error_and_back(kind):
    fault = Fault(kind=kind, detail="it broke")
    error = to_error(fault, artifact="a", node="n1", operation="op-1")
    assert (error.artifact, error.node, error.operation) == ("a", "n1", "op-1")
    assert from_error(error) == fault


@pytest.mark.parametrize("error", [Conflict("c"), TensorCastError("c")])
def test_any_other_error_is_an_invalid_request(error):
    assert from_error(error) == Fault(kind=FaultKind.INVALID, detail="c")


@pytest.mark.parametrize("kind", FaultKind)
def test_a_fault_says_whether_a_retry_can_help(kind):
    assert Fault(kind=kind, detail="").retryable == (kind in RETRYABLE)


def test_what_never_fits_stays_so():
    error = OutOfCapacity("It never fits.", retryable=False)
    fault = from_error(error)
    assert fault.permanent
    assert not fault.retryable
    assert not to_error(fault, artifact=None, node=None, operation=None).retryable
    assert from_error(NotFound("gone")).permanent is False


def test_an_invalid_or_cancelled_operation_is_not_retried():
    assert not RETRYABLE & {FaultKind.INVALID, FaultKind.CANCELLED, FaultKind.DENIED}
