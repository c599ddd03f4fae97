import msgspec

from plan_specs import EVERY_KIND
from samples import BEGIN
from tensorcast.schema.api_faults import FaultInfo
from tensorcast.schema.api_plans import (
    ForecastInfo,
    ForecastStep,
    PlanInfo,
    StepInfo,
    TryPlan,
    WaitPlan,
)


def again(message):
    return msgspec.json.decode(msgspec.json.encode(message), type=type(message))


def test_requests_and_answers_survive_a_round_trip():
    fault = FaultInfo(kind="unavailable", detail="Gone.", retryable=True)
    step = StepInfo(id="a/0/b", kind="fill", status="failed", fault=fault, outputs={"n": [1]})
    forecast = ForecastStep(id="a", kind="fill", status="succeeded", sources={"n1": ("n2",)})
    for message in (
        WaitPlan(plan="p", timeout_s=1.0),
        TryPlan(spec=EVERY_KIND, inputs={"run": "1"}),
        step,
        PlanInfo(
            id="plan-1",
            name="x",
            state="running",
            actor="me",
            steps=(step,),
            submitted_at=BEGIN,
            seq=3,
            spec=EVERY_KIND,
        ),
        ForecastInfo(name="x", state="succeeded", steps=(forecast,), bytes=3, seconds=None),
    ):
        assert again(message) == message
