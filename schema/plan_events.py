"""Facts about plans: what was asked for, what each step did, and how it ended.

Part of the union in `events.py`. `step` is a path: the ids of the holders of a step and its own,
with slashes between; within a map the number of the item follows the map's id (`roll/3/pull`), and
before what compensates a step stands `compensate`. `attempt` counts tries from 1.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, NewType

import msgspec
from msgspec import Meta

from tensorcast.schema.faults import Fault
from tensorcast.schema.ids import PlanId
from tensorcast.schema.plans import PlanSpec

StepPath = NewType("StepPath", str)
Natural = Annotated[int, Meta(ge=0)]


class PlanSubmitted(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody wants this program to be run, with these inputs."""

    plan: PlanId
    spec: PlanSpec
    inputs: dict[str, object] = {}


class PlanPaused(msgspec.Struct, frozen=True, kw_only=True):
    """No step begins until it is resumed; what runs goes on."""

    plan: PlanId
    reason: str = ""


class PlanResumed(msgspec.Struct, frozen=True, kw_only=True):
    """Steps may begin again."""

    plan: PlanId


class PlanCancelRequested(msgspec.Struct, frozen=True, kw_only=True):
    """Nobody wants it any more: no step begins, and what runs is to be cancelled."""

    plan: PlanId
    reason: str = ""


class PlanSucceeded(msgspec.Struct, frozen=True, kw_only=True):
    """All steps have ended, and none that matters has failed."""

    plan: PlanId
    outputs: dict[str, object] = {}


class PlanFailed(msgspec.Struct, frozen=True, kw_only=True):
    """It ended with the fault of `step` (empty: of the plan as a whole); nothing of it runs."""

    plan: PlanId
    step: StepPath
    fault: Fault


class PlanCancelled(msgspec.Struct, frozen=True, kw_only=True):
    """It was cancelled, and nothing of it runs any more."""

    plan: PlanId


class StepStarted(msgspec.Struct, frozen=True, kw_only=True):
    """A try begins. `inputs` are the values that the step runs with; `operations` those that it
    has issued, or waits for because they do the same already."""

    plan: PlanId
    step: StepPath
    attempt: Natural
    inputs: dict[str, object] = {}
    operations: tuple[str, ...] = ()


class StepSucceeded(msgspec.Struct, frozen=True, kw_only=True):
    """It has done its work; later steps may take its outputs."""

    plan: PlanId
    step: StepPath
    attempt: Natural
    outputs: dict[str, object] = {}


class StepFailed(msgspec.Struct, frozen=True, kw_only=True):
    """The try has ended with a fault. `retry_at`: the next one may begin then (None: there is
    none)."""

    plan: PlanId
    step: StepPath
    attempt: Natural
    fault: Fault
    retry_at: datetime | None = None


class StepSkipped(msgspec.Struct, frozen=True, kw_only=True):
    """It will not run: it needs what another step did not give."""

    plan: PlanId
    step: StepPath
    reason: str


class StepCancelled(msgspec.Struct, frozen=True, kw_only=True):
    """It is to do nothing more."""

    plan: PlanId
    step: StepPath
    reason: str


PlanEvent = (
    PlanSubmitted
    | PlanPaused
    | PlanResumed
    | PlanCancelRequested
    | PlanSucceeded
    | PlanFailed
    | PlanCancelled
    | StepStarted
    | StepSucceeded
    | StepFailed
    | StepSkipped
    | StepCancelled
)

PLAN_EVENT_TYPES: dict[str, type[PlanEvent]] = {
    "plan.submitted": PlanSubmitted,
    "plan.paused": PlanPaused,
    "plan.resumed": PlanResumed,
    "plan.cancel_requested": PlanCancelRequested,
    "plan.succeeded": PlanSucceeded,
    "plan.failed": PlanFailed,
    "plan.cancelled": PlanCancelled,
    "plan.step_started": StepStarted,
    "plan.step_succeeded": StepSucceeded,
    "plan.step_failed": StepFailed,
    "plan.step_skipped": StepSkipped,
    "plan.step_cancelled": StepCancelled,
}
