"""Verbs about plans: which there are, how far each is, and what one would do."""

from __future__ import annotations

from tensorcast.controlplane.core.names import resolve_plan
from tensorcast.controlplane.core.plans.forecast import forecast
from tensorcast.controlplane.core.plans.placement import check_placement
from tensorcast.controlplane.services.api_desk import Desk
from tensorcast.controlplane.services.api_plan_answers import describe_plan, summarize_plan
from tensorcast.log.identity import now
from tensorcast.schema.aggregates.plan import OPEN, PlanStatus
from tensorcast.schema.api import LIST_MAX, Browse, Show
from tensorcast.schema.api_plans import ForecastInfo, PlanInfo, TryPlan, WaitPlan
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.plan_checks import check_inputs, check_plan


async def list_plans(desk: Desk, request: Browse) -> tuple[PlanInfo, ...]:
    """The plans (those of `status`, those with a `label`), the last submitted first, without their
    steps."""
    known = [status.value for status in PlanStatus]
    if request.status not in (None, "all", *known) or request.limit < 1:
        raise InvalidArgument(
            f"{request.status!r} is not a state of a plan.", hint=f"Use one of {', '.join(known)}."
        )
    view = await desk.view_for(request)
    chosen = [
        plan
        for plan in view.plans.values()
        if request.status in (None, "all", plan.status)
        and (not request.label or request.label in plan.spec.labels)
    ]
    chosen.sort(key=lambda plan: plan.submitted_seq, reverse=True)
    return tuple(summarize_plan(plan) for plan in chosen[: min(request.limit, LIST_MAX)])


async def show_plan(desk: Desk, request: Show) -> PlanInfo:
    """The plan of this id, beginning of an id or name, with all its steps. Raises NotFound."""
    view = await desk.view_for(request)
    return describe_plan(view.plans[resolve_plan(view, request.what)])


async def wait_plan(desk: Desk, request: WaitPlan) -> PlanInfo:
    """The plan once it is over or has changed, or as it is in the end. Raises NotFound."""
    view = await desk.view_after(await desk.writer.last_seq())
    name = resolve_plan(view, request.plan)
    view = await desk.view_when(
        lambda view: (
            view.plans[name].status not in OPEN or view.plans[name].version > request.since
        ),
        request.timeout_s,
    )
    return describe_plan(view.plans[name])


async def check_request(desk: Desk, request: TryPlan) -> tuple[str, ...]:
    """All that is wrong with a plan, here and now; () when nothing is."""
    view = await desk.view_after(request.after)
    return (
        *check_plan(request.spec),
        *check_inputs(request.spec, request.inputs),
        *check_placement(view, request.spec, request.inputs),
    )


async def explain_plan(desk: Desk, request: TryPlan) -> ForecastInfo:
    """What a plan would do. Raises InvalidArgument for one that makes no sense."""
    view = await desk.view_after(request.after)
    return forecast(view, request.spec, request.inputs, now())
