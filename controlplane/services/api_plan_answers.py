"""Plans in the words of the API. Pure."""

from __future__ import annotations

from tensorcast.controlplane.core.plans.telling import count_ended, tell_steps
from tensorcast.controlplane.services.api_answers import describe_fault
from tensorcast.schema.aggregates.plan import OPEN, Plan, PlanStatus, StepState, StepStatus
from tensorcast.schema.api_plans import PlanInfo, StepInfo
from tensorcast.schema.plan_checks import describe_step
from tensorcast.schema.plan_events import StepPath
from tensorcast.schema.plans import Step

PENDING = "pending"
SKIPPED = StepStatus.SKIPPED.value


def describe_plan(plan: Plan) -> PlanInfo:
    """A plan with its steps and its program."""
    steps = tuple(
        _describe_step(plan, scope.path(step), step, state, tuple(sorted(map(scope.path, needs))))
        for scope, step, state in tell_steps(plan)
        for needs in (scope.needs(step),)
    )
    return _describe(plan, steps)


def summarize_plan(plan: Plan) -> PlanInfo:
    """A plan without its steps."""
    return _describe(plan, None)


def _describe(plan: Plan, steps: tuple[StepInfo, ...] | None) -> PlanInfo:
    ended, known = count_ended(plan)
    return PlanInfo(
        id=plan.id,
        name=plan.spec.name,
        state=plan.status.value,
        actor=plan.actor,
        steps=steps or (),
        steps_ended=ended,
        steps_known=known,
        inputs=plan.inputs,
        outputs=plan.outputs,
        labels=plan.spec.labels,
        fault=describe_fault(plan.fault),
        failed_step=plan.failed_step,
        reason=plan.reason,
        submitted_at=plan.submitted_at,
        ended_at=plan.ended_at,
        seq=plan.version,
        spec=plan.spec if steps is not None else None,
    )


def _describe_step(
    plan: Plan, path: StepPath, step: Step, state: StepState | None, needs: tuple[str, ...]
) -> StepInfo:
    kind = describe_step(step)
    if state is None and plan.status not in OPEN:  # nothing will ever come of it
        reason = f"the plan has {plan.status} before"
        if plan.status is PlanStatus.CANCELLED:
            reason = "the plan was cancelled before"
        return StepInfo(id=path, kind=kind, status=SKIPPED, needs=needs, reason=reason)
    if state is None:
        return StepInfo(id=path, kind=kind, status=PENDING, needs=needs)
    return StepInfo(
        id=path,
        kind=kind,
        status=state.status.value,
        attempt=state.attempt,
        outputs=state.outputs,
        inputs=state.inputs,
        operations=state.operations,
        needs=needs,
        fault=describe_fault(state.fault),
        reason=state.reason,
        started_at=state.started_at,
        ended_at=state.ended_at,
        retry_at=state.retry_at,
    )
