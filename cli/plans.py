"""How plans look to people. Pure: values to tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tensorcast.cli.output import Block, Fields, Heading, Note, Table, shorten, shorten_operation
from tensorcast.cli.signals import shorten_data
from tensorcast.cli.units import format_age, format_seconds, format_size, format_time
from tensorcast.schema.api_plans import ForecastInfo, ForecastStep, PlanInfo, StepInfo

FORECAST_TITLES = (
    *("step", "kind", "would", "nodes", "artifact", "sources", "size", "from s", "to s", "note"),
)
ID_CHARS = 17
"""`plan-` and twelve more."""


def shorten_plan(plan: str) -> str:
    """A plan's id as tables show it: the beginning is enough to name it."""
    return plan[:ID_CHARS]


def table_plans(found: Sequence[PlanInfo], now: datetime) -> Table:
    """One plan a line."""
    return Table(
        titles=("id", "name", "state", "steps", "age", "took", "by", "why"),
        rows=[
            (
                shorten_plan(one.id),
                one.name,
                one.state,
                f"{one.steps_ended}/{one.steps_known}",
                format_age(one.submitted_at, now),
                _took(one.submitted_at, one.ended_at),
                one.actor,
                _why(one),
            )
            for one in found
        ],
        right=frozenset({"steps", "age", "took"}),
        fold=frozenset({"name", "why"}),
        empty="No plans. `tcctl plan apply FILE` submits one.",
    )


def _why(info: PlanInfo) -> str:
    if info.fault is not None:
        return f"{info.failed_step}: {info.fault.detail}" if info.failed_step else info.fault.detail
    return info.reason


def _took(begin: datetime | None, end: datetime | None) -> str:
    return format_seconds((end - begin).total_seconds()) if begin and end else ""


def describe_plan(info: PlanInfo) -> Sequence[Block]:
    """Everything about one plan."""
    pairs = (
        ("id", info.id),
        ("name", info.name),
        ("state", info.state),
        ("why", _why(info)),
        ("by", info.actor),
        ("inputs", shorten_data(info.inputs) if info.inputs else ""),
        ("outputs", shorten_data(info.outputs) if info.outputs else ""),
        ("labels", ", ".join(f"{name}={value}" for name, value in info.labels.items())),
        ("submitted", format_time(info.submitted_at)),
        ("ended", format_time(info.ended_at) if info.ended_at else ""),
        ("took", _took(info.submitted_at, info.ended_at)),
    )
    return (Fields(pairs), Heading("Steps"), table_steps_of((info,)))


def table_steps_of(plans: Sequence[PlanInfo]) -> Table:
    """The steps of plans that were told with them, one a line."""
    return Table(
        titles=("step", "kind", "status", "try", "took", "needs", "operations", "gave", "why"),
        rows=[_step_row(step) for plan in plans for step in plan.steps],
        right=frozenset({"try", "took"}),
        fold=frozenset({"step", "needs", "operations", "gave", "why"}),
        empty="No steps.",
    )


def _step_row(step: StepInfo) -> tuple[str, ...]:
    again = f" (again at {format_time(step.retry_at)})" if step.retry_at else ""
    return (
        "  " * step.id.count("/") + step.id,
        step.kind,
        step.status,
        str(step.attempt) if step.attempt else "",
        _took(step.started_at, step.ended_at),
        ", ".join(step.needs),
        ", ".join(map(shorten_operation, step.operations)),
        shorten_data(step.outputs) if step.outputs else "",
        (step.fault.detail if step.fault else step.reason) + again,
    )


def describe_forecast(info: ForecastInfo) -> Sequence[Block]:
    """What a plan would do."""
    seconds = format_seconds(info.seconds) if info.seconds is not None else "not known"
    pairs = (
        ("plan", info.name),
        ("would end", info.state),
        ("moves", format_size(info.bytes)),
        ("evicts", format_size(info.evicts_bytes) if info.evicts_bytes else ""),
        ("takes", f"{seconds}, beside what it waits for"),
    )
    faults: tuple[Block, ...] = tuple(Note(fault) for fault in info.faults)
    return (Fields(pairs), *faults, Heading("Steps"), table_forecast(info.steps))


def table_forecast(steps: Sequence[ForecastStep]) -> Table:
    """What each step would do, one a line."""
    return Table(
        titles=FORECAST_TITLES,
        rows=[
            (
                "  " * one.id.count("/") + one.id,
                one.kind,
                one.status,
                ", ".join(one.nodes),
                shorten(one.artifact),
                _sources(one),
                format_size(one.bytes) if one.bytes else "",
                f"{one.begins_s:g}" if one.status != "pending" else "",
                f"{one.ends_s:g}" if one.ends_s is not None else "",
                one.note,
            )
            for one in steps
        ],
        right=frozenset({"size", "from s", "to s"}),
        fold=frozenset({"step", "nodes", "sources", "note"}),
        empty="No steps.",
    )


def _sources(step: ForecastStep) -> str:
    if len(step.sources) <= 1:
        return ", ".join(source for found in step.sources.values() for source in found)
    return "; ".join(f"{node}: {', '.join(found)}" for node, found in step.sources.items())
