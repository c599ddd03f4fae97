"""What events about plans say, in a few words. Pure."""

from __future__ import annotations

from typing import assert_never

from tensorcast.cli.units import format_second
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
    StepSkipped,
    StepStarted,
    StepSucceeded,
)
from tensorcast.schema.wording import tell_count


def describe_plan_event(fact: PlanEvent) -> str:
    """What an event about a plan says, short."""
    match fact:
        case PlanSubmitted():
            return f"{fact.spec.name}, {tell_count(len(fact.spec.steps), 'step')}"
        case PlanPaused() | PlanCancelRequested():
            return fact.reason
        case PlanFailed():
            return f"{fact.step}: {fact.fault.kind}: {fact.fault.detail}"
        case StepStarted():
            operations = ""
            if fact.operations:
                operations = f", {tell_count(len(fact.operations), 'operation')}"
            return f"{fact.step}: try {fact.attempt}{operations}"
        case StepSucceeded():
            return fact.step
        case StepFailed():
            again = f"; again at {format_second(fact.retry_at)}" if fact.retry_at else ""
            return f"{fact.step}: {fact.fault.kind}: {fact.fault.detail}{again}"
        case StepSkipped() | StepCancelled():
            return f"{fact.step}: {fact.reason}"
        case PlanResumed() | PlanSucceeded() | PlanCancelled():
            return ""
        case _:
            assert_never(fact)
