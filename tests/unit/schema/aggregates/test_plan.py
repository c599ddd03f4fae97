from datetime import timedelta
from typing import get_args

import pytest

from plan_specs import EVERY_KIND
from samples import BEGIN, record
from tensorcast.schema.aggregates.plan import (
    OPEN,
    STEP_TRANSITIONS,
    TRANSITIONS,
    PlanStatus,
    StepStatus,
    decide,
    evolve,
)
from tensorcast.schema.errors import Conflict, InvalidArgument, NotFound, Rejected
from tensorcast.schema.faults import Fault, FaultKind
from tensorcast.schema.ids import derive_plan_id, is_plan_id
from tensorcast.schema.plan_commands import (
    CancelPlan,
    EndPlan,
    FailStep,
    PausePlan,
    ResumePlan,
    SkipStep,
    StartStep,
    StopStep,
    SubmitPlan,
    SucceedStep,
)
from tensorcast.schema.plan_events import PLAN_EVENT_TYPES, PlanEvent
from tensorcast.schema.plans import EmitStep, PlanSpec

P = derive_plan_id("p")
FAULT = Fault(kind=FaultKind.UNAVAILABLE, detail="Gone.")
SUBMIT = SubmitPlan(plan=P, spec=EVERY_KIND)
LATER = BEGIN + timedelta(seconds=9)


def start(step="a", attempt=1, **fields):
    return StartStep(plan=P, step=step, attempt=attempt, **fields)


def succeed(step="a", attempt=1):
    return SucceedStep(plan=P, step=step, attempt=attempt, outputs={"n": 1})


def fail(step="a", attempt=1, retry_at=None):
    return FailStep(plan=P, step=step, attempt=attempt, fault=FAULT, retry_at=retry_at)


def after(*commands):
    state, seq = None, 0
    for command in (SUBMIT, *commands):
        for event in decide(state, command):
            seq += 1
            state = evolve(state, record(event, seq), event)
    return state


def test_every_event_is_in_the_tables():
    known = {event for _, event in TRANSITIONS}
    assert known == set(get_args(PlanEvent)) == set(PLAN_EVENT_TYPES.values())
    assert {event for _, event in STEP_TRANSITIONS} < known


def test_a_plan_is_submitted_once():
    state = after()
    assert (state.status, state.inputs, state.turned) == (PlanStatus.RUNNING, {"run": "1"}, 1)
    assert decide(state, SUBMIT) == ()
    with pytest.raises(Conflict, match="is another one"):
        decide(state, SubmitPlan(plan=P, spec=EVERY_KIND, inputs={"run": "2"}))
    assert is_plan_id(P)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (CancelPlan(plan=P), "cancelled"),
        (PausePlan(plan=P), "paused"),
        (ResumePlan(plan=P), "resumed"),
    ],
)
def test_a_plan_that_is_over_says_so(command, words):
    ends = {
        "has succeeded already": (EndPlan(plan=P),),
        "has failed already": (EndPlan(plan=P, fault=FAULT),),
        "was cancelled already": (CancelPlan(plan=P), EndPlan(plan=P)),
    }
    for how, commands in ends.items():
        state = after(*commands)
        if words == "cancelled" and state.status is PlanStatus.CANCELLED:
            assert decide(state, command) == ()
            continue
        with pytest.raises(Rejected, match=f"{how}: it cannot be {words} any more"):
            decide(state, command)


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [({"more": 1}, "has no input 'more'"), ({"run": 7}, "must be a text, not 7")],
)
def test_inputs_are_checked(inputs, sentence):
    with pytest.raises(InvalidArgument, match=sentence):
        decide(None, SubmitPlan(plan=P, spec=EVERY_KIND, inputs=inputs))


def test_a_plan_that_makes_no_sense_is_refused():
    spec = PlanSpec(name="x", steps=(EmitStep(id="a", topic="${b.c}", depends_on=("d",)),))
    with pytest.raises(InvalidArgument, match=r"no step beside it.*1 more fault"):
        decide(None, SubmitPlan(plan=P, spec=spec))


def test_a_plan_that_is_not_there():
    with pytest.raises(NotFound):
        decide(None, PausePlan(plan=P))


def test_the_life_of_a_step():
    state = after(start(inputs={"x": 1}, operations=("op-1",)))
    step = state.steps["a"]
    assert (step.status, step.attempt, step.operations) == (StepStatus.RUNNING, 1, ("op-1",))
    state = after(start(), fail(retry_at=LATER))
    assert (state.steps["a"].status, state.steps["a"].retry_at) == (StepStatus.RETRYING, LATER)
    state = after(start(), fail(retry_at=LATER), start(attempt=2), succeed(attempt=2))
    step = state.steps["a"]
    assert (step.status, step.attempt, step.fault) == (StepStatus.SUCCEEDED, 2, None)
    assert (step.started_seq, step.version, step.outputs) == (2, 5, {"n": 1})
    assert after(succeed()).steps["a"].status is StepStatus.SUCCEEDED
    assert after(fail()).steps["a"].status is StepStatus.FAILED
    skipped = after(SkipStep(plan=P, step="a", reason="why")).steps["a"]
    assert (skipped.status, skipped.reason) == (StepStatus.SKIPPED, "why")
    stopped = after(start(), StopStep(plan=P, step="a", reason="why")).steps["a"]
    assert (stopped.status, stopped.ended_at is not None) == (StepStatus.CANCELLED, True)


@pytest.mark.parametrize(
    ("before", "late"),
    [
        ((start(),), start()),
        ((start(),), succeed(attempt=2)),
        ((start(), succeed()), succeed()),
        ((start(), succeed()), fail()),
        ((start(), fail(retry_at=LATER)), start()),
        ((start(), fail(retry_at=LATER)), start(attempt=3)),
        ((), start(attempt=2)),
        ((PausePlan(plan=P),), start()),
        ((CancelPlan(plan=P),), start()),
        ((EndPlan(plan=P),), start()),
        ((start(),), EndPlan(plan=P)),
        ((start(), succeed(), EndPlan(plan=P)), EndPlan(plan=P)),
        ((PausePlan(plan=P),), EndPlan(plan=P)),
        ((EndPlan(plan=P),), CancelPlan(plan=P)),
    ],
)
def test_what_comes_too_late_is_rejected(before, late):
    with pytest.raises(Rejected):
        decide(after(*before), late)


@pytest.mark.parametrize(
    ("commands", "status"),
    [
        ((PausePlan(plan=P),), PlanStatus.PAUSED),
        ((PausePlan(plan=P), PausePlan(plan=P)), PlanStatus.PAUSED),
        ((PausePlan(plan=P), ResumePlan(plan=P)), PlanStatus.RUNNING),
        ((ResumePlan(plan=P),), PlanStatus.RUNNING),
        ((CancelPlan(plan=P),), PlanStatus.CANCELLING),
        ((CancelPlan(plan=P), CancelPlan(plan=P)), PlanStatus.CANCELLING),
        ((CancelPlan(plan=P), EndPlan(plan=P)), PlanStatus.CANCELLED),
        ((EndPlan(plan=P, fault=FAULT, step="a"),), PlanStatus.FAILED),
        ((PausePlan(plan=P), EndPlan(plan=P, fault=FAULT)), PlanStatus.FAILED),
        ((EndPlan(plan=P, outputs={"n": 1}),), PlanStatus.SUCCEEDED),
    ],
)
def test_the_life_of_a_plan(commands, status):
    state = after(*commands)
    assert state.status is status
    assert (state.ended_at is None) == (status in OPEN)


def test_what_runs_may_end_while_a_plan_is_paused_or_being_cancelled():
    for command in (PausePlan(plan=P), CancelPlan(plan=P)):
        assert after(start(), command, succeed()).steps["a"].status is StepStatus.SUCCEEDED
