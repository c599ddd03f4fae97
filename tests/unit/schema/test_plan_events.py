from tensorcast.schema.events import EVENT_TYPES, AggregateKind, aggregate_of
from tensorcast.schema.ids import PlanId
from tensorcast.schema.plan_events import PLAN_EVENT_TYPES, PlanResumed, StepPath, StepSkipped


def test_every_event_of_a_plan_is_about_the_plan():
    assert PLAN_EVENT_TYPES.items() <= EVENT_TYPES.items()
    assert all(name.startswith("plan.") for name in PLAN_EVENT_TYPES)
    plan = PlanId("plan-1")
    for event in (PlanResumed(plan=plan), StepSkipped(plan=plan, step=StepPath("a"), reason="")):
        assert aggregate_of(event) == (AggregateKind.PLAN, plan)
