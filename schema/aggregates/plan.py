"""A plan: a program of steps, and how far each of them is."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final, assert_never

import msgspec

from tensorcast.schema.aggregates.machine import next_status
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import Conflict, InvalidArgument, NotFound, Rejected
from tensorcast.schema.events import Event
from tensorcast.schema.faults import Fault
from tensorcast.schema.ids import PlanId, Seq
from tensorcast.schema.plan_checks import check_plan
from tensorcast.schema.plan_commands import (
    CancelPlan,
    EndPlan,
    FailStep,
    PausePlan,
    PlanCommand,
    ResumePlan,
    SkipStep,
    StartStep,
    StepCommand,
    StopStep,
    SubmitPlan,
    SucceedStep,
)
from tensorcast.schema.plan_events import (
    PlanCancelled,
    PlanCancelRequested,
    PlanEvent,
    PlanFailed,
    PlanPaused,
    PlanResumed,
    PlanSubmitted,
    PlanSucceeded,
    StepCancelled,
    StepFailed,
    StepPath,
    StepSkipped,
    StepStarted,
    StepSucceeded,
)
from tensorcast.schema.plan_values import check_value
from tensorcast.schema.plans import PlanSpec

STEPS_STATES_MAX: Final = 20_000
"""Most steps of one plan that have begun, those of all items of all maps counted."""


class PlanStatus(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class StepStatus(StrEnum):
    """RETRYING: a try has failed, and the next one is to come."""

    RUNNING = "running"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


OPEN: Final = frozenset({PlanStatus.RUNNING, PlanStatus.PAUSED, PlanStatus.CANCELLING})
ACTIVE: Final = frozenset({StepStatus.RUNNING, StepStatus.RETRYING})
"""Statuses of a step that is not over."""
_STEP_EVENTS: Final = (StepStarted, StepSucceeded, StepFailed, StepSkipped, StepCancelled)
StepEvent = StepStarted | StepSucceeded | StepFailed | StepSkipped | StepCancelled

TRANSITIONS: Mapping[tuple[PlanStatus | None, type[Event]], PlanStatus] = {
    (None, PlanSubmitted): PlanStatus.RUNNING,
    (PlanStatus.RUNNING, PlanPaused): PlanStatus.PAUSED,
    (PlanStatus.PAUSED, PlanResumed): PlanStatus.RUNNING,
    (PlanStatus.RUNNING, StepStarted): PlanStatus.RUNNING,
    **{(status, event): status for status in sorted(OPEN) for event in _STEP_EVENTS[1:]},
    (PlanStatus.RUNNING, PlanSucceeded): PlanStatus.SUCCEEDED,
    (PlanStatus.RUNNING, PlanFailed): PlanStatus.FAILED,
    (PlanStatus.PAUSED, PlanFailed): PlanStatus.FAILED,
    (PlanStatus.RUNNING, PlanCancelRequested): PlanStatus.CANCELLING,
    (PlanStatus.PAUSED, PlanCancelRequested): PlanStatus.CANCELLING,
    (PlanStatus.CANCELLING, PlanCancelled): PlanStatus.CANCELLED,
}
STEP_TRANSITIONS: Mapping[tuple[StepStatus | None, type[Event]], StepStatus] = {
    (None, StepStarted): StepStatus.RUNNING,
    (None, StepSucceeded): StepStatus.SUCCEEDED,
    (None, StepFailed): StepStatus.FAILED,
    (None, StepSkipped): StepStatus.SKIPPED,
    (None, StepCancelled): StepStatus.CANCELLED,
    (StepStatus.RUNNING, StepSucceeded): StepStatus.SUCCEEDED,
    (StepStatus.RUNNING, StepFailed): StepStatus.FAILED,
    (StepStatus.RUNNING, StepCancelled): StepStatus.CANCELLED,
    (StepStatus.RETRYING, StepStarted): StepStatus.RUNNING,
    (StepStatus.RETRYING, StepSucceeded): StepStatus.SUCCEEDED,
    (StepStatus.RETRYING, StepFailed): StepStatus.FAILED,
    (StepStatus.RETRYING, StepCancelled): StepStatus.CANCELLED,
}
"""A failure with a try to come leads to RETRYING in place of FAILED."""


class StepState(msgspec.Struct, frozen=True, kw_only=True):
    """How far a step is. `started_seq` is the event with which it first began, `version` its last
    one; `started_at` is when the present try began."""

    status: StepStatus
    attempt: int
    started_at: datetime
    started_seq: Seq
    ended_at: datetime | None = None
    inputs: dict[str, object] = {}
    operations: tuple[str, ...] = ()
    outputs: dict[str, object] = {}
    fault: Fault | None = None
    retry_at: datetime | None = None
    reason: str = ""
    version: Seq = Seq(0)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`steps` holds those that have begun or will not, by path. `turned` is the last event that
    changed what the plan as a whole does."""

    id: PlanId
    status: PlanStatus
    spec: PlanSpec
    inputs: dict[str, object]
    actor: str
    submitted_at: datetime
    submitted_seq: Seq
    turned: Seq
    steps: dict[StepPath, StepState] = {}
    outputs: dict[str, object] = {}
    fault: Fault | None = None
    failed_step: StepPath = StepPath("")
    reason: str = ""
    ended_at: datetime | None = None
    version: Seq = Seq(0)


def decide(state: Plan | None, command: PlanCommand) -> tuple[PlanEvent, ...]:
    """The events that the command leads to. Raises NotFound, Conflict, Rejected (also for a step
    command that comes too late), InvalidArgument."""
    if isinstance(command, SubmitPlan):
        return _submit(state, command)
    if state is None:
        raise NotFound(
            f"There is no plan {command.plan!r}.", hint="`tcctl plan ls` shows what there is."
        )
    if isinstance(command, StepCommand):
        return (_step_event(state, command),)
    event: PlanEvent
    if state.status not in OPEN and isinstance(command, PausePlan | ResumePlan | CancelPlan):
        return _too_late(state, command)
    match command:
        case PausePlan():
            if state.status is PlanStatus.PAUSED:
                return ()
            event = PlanPaused(plan=state.id, reason=command.reason)
        case ResumePlan():
            if state.status is PlanStatus.RUNNING:
                return ()
            event = PlanResumed(plan=state.id)
        case CancelPlan():
            if state.status is PlanStatus.CANCELLING:
                return ()
            event = PlanCancelRequested(plan=state.id, reason=command.reason)
        case EndPlan():
            event = _ended(state, command)
        case _:
            assert_never(command)
    next_status(TRANSITIONS, state.status, event, f"plan {state.id}")
    return (event,)


def _too_late(state: Plan, command: PausePlan | ResumePlan | CancelPlan) -> tuple[PlanEvent, ...]:
    """() for what is so already. Raises Rejected: a plan that is over stays as it is."""
    if isinstance(command, CancelPlan) and state.status is PlanStatus.CANCELLED:
        return ()
    verb = {PausePlan: "paused", ResumePlan: "resumed", CancelPlan: "cancelled"}[type(command)]
    how = {
        PlanStatus.SUCCEEDED: "has succeeded already",
        PlanStatus.FAILED: "has failed already",
        PlanStatus.CANCELLED: "was cancelled already",
    }[state.status]
    raise Rejected(
        f"Plan {state.spec.name!r} ({state.id}) {how}: it cannot be {verb} any more.",
        hint="`tcctl plan show` tells what it did; `tcctl plan apply` runs it anew.",
    )


def _submit(state: Plan | None, command: SubmitPlan) -> tuple[PlanEvent, ...]:
    inputs = _inputs(command.spec, command.inputs)
    if state is not None:
        if (state.spec, state.inputs) == (command.spec, inputs):
            return ()
        raise Conflict(
            f"Plan {state.id} is there already, and is another one.",
            hint="Choose another dedup_id, or leave it out.",
        )
    faults = check_plan(command.spec)
    if faults:
        more = f" ({len(faults) - 1} more faults)" if len(faults) > 1 else ""
        raise InvalidArgument(
            f"The plan makes no sense: {faults[0]}{more}",
            hint="`tcctl plan validate` tells all that is wrong.",
        )
    return (PlanSubmitted(plan=command.plan, spec=command.spec, inputs=inputs),)


def _inputs(spec: PlanSpec, given: Mapping[str, object]) -> dict[str, object]:
    """All inputs with their defaults. Raises InvalidArgument."""
    for name in given:
        if name not in spec.inputs:
            known = ", ".join(spec.inputs) or "none"
            raise InvalidArgument(f"The plan has no input {name!r}.", hint=f"It has {known}.")
    found: dict[str, object] = {}
    for name, wanted in spec.inputs.items():
        value = given.get(name, wanted.default)
        if value is None:
            raise InvalidArgument(
                f"The plan needs the input {name!r}.",
                hint=f"Give it (`--input {name}=...`, or `inputs={{{name!r}: ...}}` in Python).",
            )
        found[name] = check_value(value, wanted.type, f"Input {name!r}")
    return found


def _ended(state: Plan, command: EndPlan) -> PlanSucceeded | PlanFailed | PlanCancelled:
    running = [path for path, step in state.steps.items() if step.status in ACTIVE]
    if running:
        raise Rejected(f"Step {running[0]} of plan {state.id} is not over.")
    if state.status is PlanStatus.CANCELLING:
        return PlanCancelled(plan=state.id)
    if command.fault is not None:
        return PlanFailed(plan=state.id, step=command.step, fault=command.fault)
    return PlanSucceeded(plan=state.id, outputs=command.outputs)


def _step_event(state: Plan, command: StepCommand) -> StepEvent:
    """The event of a step. Raises Rejected when somebody was faster."""
    event = _event_of(command)
    what = f"step {command.step} of plan {state.id}"
    next_status(TRANSITIONS, state.status, event, f"plan {state.id}")
    known = state.steps.get(command.step)
    next_status(STEP_TRANSITIONS, known.status if known else None, event, what)
    if known is None and len(state.steps) >= STEPS_STATES_MAX:
        raise Rejected(f"Plan {state.id} has {STEPS_STATES_MAX} steps already.")
    attempt = getattr(command, "attempt", None)
    if attempt is not None and attempt != _attempt_after(known, event):
        raise Rejected(f"{what} is at another try than {attempt}.")
    return event


def _attempt_after(known: StepState | None, event: StepEvent) -> int:
    """The try that the event must be about."""
    if known is None:
        return 1
    follows = known.status is StepStatus.RETRYING and isinstance(event, StepStarted | StepSucceeded)
    return known.attempt + 1 if follows else known.attempt


def _event_of(command: StepCommand) -> StepEvent:
    plan, step = command.plan, command.step
    match command:
        case StartStep():
            return StepStarted(
                plan=plan,
                step=step,
                attempt=command.attempt,
                inputs=command.inputs,
                operations=command.operations,
            )
        case SucceedStep():
            return StepSucceeded(
                plan=plan, step=step, attempt=command.attempt, outputs=command.outputs
            )
        case FailStep():
            return StepFailed(
                plan=plan,
                step=step,
                attempt=command.attempt,
                fault=command.fault,
                retry_at=command.retry_at,
            )
        case SkipStep():
            return StepSkipped(plan=plan, step=step, reason=command.reason)
        case StopStep():
            return StepCancelled(plan=plan, step=step, reason=command.reason)
        case _:
            assert_never(command)


def evolve(state: Plan | None, recorded: Recorded, event: PlanEvent) -> Plan:
    """The state after `event`. Raises Rejected when the event cannot follow."""
    status = next_status(TRANSITIONS, state.status if state else None, event, f"plan {event.plan}")
    if isinstance(event, PlanSubmitted):
        return Plan(
            id=event.plan,
            status=status,
            spec=event.spec,
            inputs=event.inputs,
            actor=recorded.actor,
            submitted_at=recorded.at,
            submitted_seq=recorded.seq,
            turned=recorded.seq,
            version=recorded.seq,
        )
    assert state is not None
    if isinstance(event, StepEvent):
        steps = {**state.steps, event.step: _evolve_step(state, recorded, event)}
        return msgspec.structs.replace(state, steps=steps, version=recorded.seq)
    return msgspec.structs.replace(
        state,
        status=status,
        turned=recorded.seq,
        version=recorded.seq,
        ended_at=None if status in OPEN else recorded.at,
        **_changes(event),
    )


def _changes(
    event: PlanPaused
    | PlanResumed
    | PlanCancelRequested
    | PlanSucceeded
    | PlanFailed
    | PlanCancelled,
) -> dict[str, object]:
    match event:
        case PlanPaused() | PlanCancelRequested():
            return {"reason": event.reason}
        case PlanResumed():
            return {"reason": ""}
        case PlanSucceeded():
            return {"outputs": event.outputs}
        case PlanFailed():
            return {"fault": event.fault, "failed_step": event.step}
        case PlanCancelled():
            return {}
        case _:
            assert_never(event)


def _evolve_step(state: Plan, recorded: Recorded, event: StepEvent) -> StepState:
    known = state.steps.get(event.step)
    status = next_status(
        STEP_TRANSITIONS,
        known.status if known else None,
        event,
        f"step {event.step} of plan {event.plan}",
    )
    if known is None:
        known = StepState(
            status=status, attempt=1, started_at=recorded.at, started_seq=recorded.seq
        )
    at, version = recorded.at, recorded.seq
    change = msgspec.structs.replace
    match event:
        case StepStarted():
            return change(
                known,
                status=status,
                attempt=event.attempt,
                started_at=at,
                inputs=event.inputs,
                operations=event.operations,
                fault=None,
                retry_at=None,
                version=version,
            )
        case StepSucceeded():
            return change(
                known,
                status=status,
                attempt=event.attempt,
                ended_at=at,
                outputs=event.outputs,
                fault=None,
                retry_at=None,
                version=version,
            )
        case StepFailed():
            again = event.retry_at is not None
            return change(
                known,
                status=StepStatus.RETRYING if again else status,
                attempt=event.attempt,
                ended_at=None if again else at,
                fault=event.fault,
                retry_at=event.retry_at,
                version=version,
            )
        case StepSkipped() | StepCancelled():
            return change(known, status=status, ended_at=at, reason=event.reason, version=version)
        case _:
            assert_never(event)
