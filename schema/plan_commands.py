"""What is asked of plans: by users, and by the runner that carries them out.

Part of the union in `commands.py`.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from tensorcast.schema.faults import Fault
from tensorcast.schema.ids import PlanId
from tensorcast.schema.plan_events import Natural, StepPath
from tensorcast.schema.plans import PlanSpec


class _Command(msgspec.Struct, frozen=True, kw_only=True, tag_field="command", tag=True):
    pass


class SubmitPlan(_Command, frozen=True, kw_only=True):
    """Asking twice with one id and one plan is asking once."""

    plan: PlanId
    spec: PlanSpec
    inputs: dict[str, object] = {}


class PausePlan(_Command, frozen=True, kw_only=True):
    plan: PlanId
    reason: str = ""


class ResumePlan(_Command, frozen=True, kw_only=True):
    plan: PlanId


class CancelPlan(_Command, frozen=True, kw_only=True):
    plan: PlanId
    reason: str = ""


class StartStep(_Command, frozen=True, kw_only=True):
    plan: PlanId
    step: StepPath
    attempt: Natural
    inputs: dict[str, object] = {}
    operations: tuple[str, ...] = ()


class SucceedStep(_Command, frozen=True, kw_only=True):
    plan: PlanId
    step: StepPath
    attempt: Natural
    outputs: dict[str, object] = {}


class FailStep(_Command, frozen=True, kw_only=True):
    plan: PlanId
    step: StepPath
    attempt: Natural
    fault: Fault
    retry_at: datetime | None = None


class SkipStep(_Command, frozen=True, kw_only=True):
    plan: PlanId
    step: StepPath
    reason: str


class StopStep(_Command, frozen=True, kw_only=True):
    """The step is to do nothing more."""

    plan: PlanId
    step: StepPath
    reason: str


class EndPlan(_Command, frozen=True, kw_only=True):
    """It ends: cancelled when that was asked for, failed with `fault`, else succeeded."""

    plan: PlanId
    outputs: dict[str, object] = {}
    step: StepPath = StepPath("")
    fault: Fault | None = None


PlanUserCommand = SubmitPlan | PausePlan | ResumePlan | CancelPlan
StepCommand = StartStep | SucceedStep | FailStep | SkipStep | StopStep
PlanCommand = PlanUserCommand | StepCommand | EndPlan
