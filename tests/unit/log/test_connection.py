from __future__ import annotations

import msgspec
import pytest

from tensorcast.log.connection import ApiError, Refused, explain, parse_answer
from tensorcast.log.port import NoRoom
from tensorcast.schema.errors import InvalidArgument, Unavailable, to_body


class Answer(msgspec.Struct):
    seq: int


def test_an_answer_is_parsed():
    assert parse_answer(b'{"stream": "S", "seq": 7}', Answer).seq == 7


def test_a_refusal_keeps_its_exact_code():
    payload = b'{"error": {"code": 400, "err_code": 10071, "description": "wrong"}, "seq": 0}'
    with pytest.raises(Refused) as refused:
        parse_answer(payload, Answer)
    assert refused.value.error == ApiError(400, 10071, "wrong")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ApiError(503, 10023, "insufficient resources"), NoRoom),
        (ApiError(500, 10047, "insufficient storage resources available"), NoRoom),
        (ApiError(503, 10077, "write 1.blk: no space left on device"), NoRoom),
        (ApiError(500, 10049, "store failed"), Unavailable),
        (ApiError(400, 10176, "batch incomplete"), Unavailable),
        (ApiError(400, 10054, "message size exceeds maximum allowed"), InvalidArgument),
    ],
)
def test_only_what_can_pass_is_worth_a_retry(error, kind):
    assert type(explain(error)) is kind
    assert str(error.err_code) in str(explain(error))


def test_a_full_log_is_said_to_be_full_and_waited_for():
    error = explain(ApiError(503, 10023, "insufficient resources"))
    assert isinstance(error, Unavailable)
    assert to_body(error).code == "out_of_capacity"
    assert "no room" in str(error)
