from __future__ import annotations

import pytest

from tensorcast.cli.exits import Exit, Failed, Usage, exit_of
from tensorcast.schema import errors


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.NotFound("x"), 3),
        (errors.Conflict("x"), 4),
        (errors.Rejected("x"), 4),
        (errors.Timeout("x"), 5),
        (errors.Timeout("x", operation="op-1"), 5),
        (errors.Unavailable("x"), 6),
        (errors.InvalidArgument("x"), 2),
        (Usage("x"), 2),
        (errors.Corrupt("x"), 1),
        (errors.OutOfCapacity("x"), 1),
        (errors.PermissionDenied("x"), 1),
        (errors.Cancelled("x"), 1),
        (Failed("x"), 1),
    ],
)
def test_each_error_has_its_exit_code(error: errors.TensorCastError, code: int) -> None:
    assert exit_of(error) == code


def test_a_failed_operation_is_a_failure_whatever_its_node_met() -> None:
    assert exit_of(errors.Unavailable("no source", operation="op-1")) is Exit.FAILED
