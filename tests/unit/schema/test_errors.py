import msgspec
import pytest

from tensorcast.schema import errors
from tensorcast.schema.errors import (
    Conflict,
    ErrorBody,
    NotFound,
    OutOfCapacity,
    Rejected,
    TensorCastError,
    from_body,
    to_body,
)

KINDS = sorted(
    (k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, TensorCastError)),
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_survives_the_wire(kind):
    error = kind("It broke.", hint="Mend it.", artifact="a", node="n1", operation="op-1")
    body = msgspec.json.decode(msgspec.json.encode(to_body(error)), type=ErrorBody)
    again = from_body(body)
    assert type(again) is kind
    assert vars(again) == vars(error)
    assert str(again) == "It broke. Mend it."


def test_an_error_that_no_retry_can_help_stays_so_on_the_wire():
    error = OutOfCapacity("It never fits.", retryable=False)
    body = msgspec.json.decode(msgspec.json.encode(to_body(error)), type=ErrorBody)
    assert not from_body(body).retryable
    assert from_body(to_body(OutOfCapacity("It is full."))).retryable


def test_codes_are_unique():
    assert len({kind.code for kind in KINDS}) == len(KINDS) == 11


def test_the_tree_at_the_top_of_the_file_names_every_kind():
    for kind in KINDS:
        assert kind.__name__ in (errors.__doc__ or "")


def test_a_code_of_a_newer_release_becomes_the_root():
    assert type(from_body(ErrorBody(code="melted", message="m"))) is TensorCastError


def test_a_rejection_is_a_conflict():
    assert issubclass(Rejected, Conflict)


def test_retryable_kinds():
    assert {k.__name__ for k in KINDS if k.retryable} == {"OutOfCapacity", "Timeout", "Unavailable"}


def test_without_a_hint_there_is_no_space_at_the_end():
    assert str(NotFound("No.")) == "No."


def test_a_sentence_within_a_sentence_ends_once():
    inner = TensorCastError("It broke.")
    assert str(TensorCastError(f"It cannot be read: {inner}.")) == "It cannot be read: It broke."
    assert str(TensorCastError("It waits for ...")) == "It waits for ..."
