from types import SimpleNamespace

import pytest

from tensorcast.client.calls import AsyncCall, AsyncCalls
from tensorcast.client.position import Position
from tensorcast.schema.api_plans import StepInfo
from tensorcast.schema.errors import InvalidArgument, NotFound


class _Api:
    def __init__(self) -> None:
        self.said = []
        self.steps = []
        self.begun = 0
        self.status = "running"
        self.position = Position()
        self.cluster = "c"

    async def connect(self):
        pass

    async def plan(self, name, *, after):
        if name != "plan-1":
            raise NotFound("There is no such plan.")
        steps = self.steps if after >= self.begun else self.before
        return SimpleNamespace(steps=steps, state=self.status)

    async def emit(self, topic, data, *, id):
        self.said.append((topic, data))


class _Signal:
    def __init__(self, **data: object) -> None:
        self.data = data
        self.seq = 7
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
    with pytest.raises(InvalidArgument, match="no kind 'unavailble'; did you mean 'unavailable'"):
        await AsyncCall(api, "e1", _Signal(call="c")).fail("No.", kind="unavailble")


def test_a_name_must_be_that_of_an_engine():
    with pytest.raises(InvalidArgument):
        AsyncCalls(_Api(), "a b")


@pytest.mark.parametrize(
    ("call", "status", "attempt", "wanted"),
    [
        ("plan-1/a/0/b#2", "running", 2, True),
        ("plan-1/a/0/b#1", "running", 2, False),
        ("plan-1/a/0/b#2", "succeeded", 2, False),
        ("plan-1/c#2", "running", 2, False),
        ("plan-2/a/0/b#2", "running", 2, False),
        ("", "running", 2, False),
    ],
)
async def test_a_call_is_wanted_as_long_as_its_step_waits(call, status, attempt, wanted):
    api, signal = _Api(), _Signal(call=call)
    api.steps = [StepInfo(id="a/0/b", kind="call", status=status, attempt=attempt)]
    one = AsyncCall(api, "e1", signal)
    assert await one.is_wanted() is wanted
    assert api.position.seq == 7, "it has asked for what is after the call"
    await one.drop()
    assert (api.said, signal.acknowledged) == ([], 1)


@pytest.mark.parametrize(
    "before",
    [
        (),
        (StepInfo(id="b", kind="call", status="pending"),),
        (StepInfo(id="b", kind="call", status="retrying", attempt=1),),
    ],
)
async def test_a_call_is_wanted_though_the_view_stands_between_it_and_the_start_of_its_step(before):
    """The call is event 7 and the start of the step event 8 of one append."""
    api, signal = _Api(), _Signal(call="plan-1/b#2")
    api.before, api.begun = before, 8
    api.steps = [StepInfo(id="b", kind="call", status="running", attempt=2)]
    assert await AsyncCall(api, "e1", signal).is_wanted()
    assert api.position.seq == 7, "later reads wait for no event that may not be there"


@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled"])
async def test_a_plan_that_is_over_wants_nothing(status):
    api, signal = _Api(), _Signal(call="plan-1/b#2")
    api.status = status
    assert not await AsyncCall(api, "e1", signal).is_wanted()
