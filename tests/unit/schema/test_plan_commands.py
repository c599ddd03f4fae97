from typing import get_args

from tensorcast.schema.commands import aggregate_of
from tensorcast.schema.events import AggregateKind
from tensorcast.schema.ids import PlanId
from tensorcast.schema.plan_commands import (
    PausePlan,
    PlanCommand,
    PlanUserCommand,
    StepCommand,
    StopStep,
)
from tensorcast.schema.plan_events import StepPath


def test_every_command_is_for_a_plan():
    plan = PlanId("plan-1")
    for command in (PausePlan(plan=plan), StopStep(plan=plan, step=StepPath("a"), reason="")):
        assert aggregate_of(command) == (AggregateKind.PLAN, plan)
    users, steps = set(get_args(PlanUserCommand)), set(get_args(StepCommand))
    assert not users & steps
    assert users | steps < set(get_args(PlanCommand))
