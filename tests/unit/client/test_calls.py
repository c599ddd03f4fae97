import pytest

from tensorcast.client.calls import AsyncCall, AsyncCalls
from tensorcast.schema.errors import InvalidArgument


class _Api:
    def __init__(self) -> None:
        self.said = []

    async def emit(self, topic, data):
        self.said.append((topic, data))


class _Signal:
    def __init__(self, **data: object) -> None:
        self.data = data
        self.acknowledged = 0

    async def ack(self) -> None:
        self.acknowledged += 1


async def test_a_call_is_answered_once_and_acknowledged():
    api, signal = _Api(), _Signal(call="plan-1/a#1", verb="publish", arguments={"n": 1})
    call = AsyncCall(api, "e1", signal)
    assert (call.id, call.verb, call.arguments) == ("plan-1/a#1", "publish", {"n": 1})
    await call.answer({"artifact": "x"})
    answer = {"call": "plan-1/a#1", "outputs": {"artifact": "x"}}
    assert api.said == [("engine.answer.e1", answer)]
    assert signal.acknowledged == 1


async def test_a_call_that_cannot_be_done_says_why():
    api = _Api()
    await AsyncCall(api, "e1", _Signal(call="c")).fail("No.", kind="unavailable")
    fault = {"kind": "unavailable", "detail": "No.", "permanent": False}
    assert api.said == [("engine.answer.e1", {"call": "c", "fault": fault})]
    assert AsyncCall(api, "e1", _Signal()).arguments == {}


def test_a_name_must_be_that_of_an_engine():
    with pytest.raises(InvalidArgument):
        AsyncCalls(_Api(), "a b")
