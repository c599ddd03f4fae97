"""How differences between two moments look to people. Pure: values to tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from tensorcast.cli.events import describe_event
from tensorcast.cli.output import Block, Heading, Note, Table, shorten, shorten_operation
from tensorcast.cli.units import format_second
from tensorcast.schema.api import EventInfo
from tensorcast.schema.api_past import Change, DiffInfo

SIGNS: Final = {"added": "+", "removed": "-", "changed": "~"}
VALUE_CHARS: Final = 60


class Noun(StrEnum):
    """What the past is asked about, in place of the whole cluster."""

    ARTIFACT = "artifact"
    ENGINE = "engine"
    KEY = "key"
    NODE = "node"
    OPERATION = "operation"
    PLAN = "plan"


class StepInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a walk through the history: an event and what it changed."""

    event: EventInfo
    changes: tuple[Change, ...]


def describe_diff(info: DiffInfo) -> Sequence[Block]:
    """What changed, kind by kind: a line for each field."""
    span = f"from event {info.from_seq} to event {info.to_seq}"
    if not info.changes:
        return (Note(f"Nothing is different {span}."),)
    counts = {sign: sum(one.change == sign for one in info.changes) for sign in SIGNS}
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    blocks: list[Block] = [Note(f"{told}, {span}:")]
    for kind in dict.fromkeys(one.kind for one in info.changes):
        of_kind = [one for one in info.changes if one.kind == kind]
        blocks += [Heading(f"{kind.capitalize()}s"), table_changes(of_kind)]
    if info.total > len(info.changes):
        blocks.append(Note(f"These are the last {len(info.changes)} of {info.total} changes."))
    return blocks


def table_changes(changes: Sequence[Change]) -> Table:
    """A line for each field of each change."""
    rows = []
    for one in changes:
        head = (SIGNS[one.change], _name(one.kind, one.id), str(one.seq))
        for field in one.fields:
            rows.append((*head, field.name, show(field.before), show(field.after)))
            head = ("", "", "")
    return Table(
        titles=("", "what", "seq", "field", "before", "after"),
        rows=rows,
        right=frozenset({"seq"}),
        fold=frozenset({"before", "after"}),
        empty="Nothing is different.",
    )


def table_steps(steps: Sequence[StepInfo]) -> Table:
    """A line for each event of a walk, with the fields that it changed."""
    return Table(
        titles=("seq", "at", "actor", "type", "about", "what", "changes"),
        rows=[
            (
                str(step.event.seq),
                format_second(step.event.at),
                step.event.actor,
                step.event.type,
                *describe_event(step.event),
                summarize(step.changes),
            )
            for step in steps
        ],
        right=frozenset({"seq"}),
        fold=frozenset({"what", "changes"}),
        empty="No events.",
    )


def summarize(changes: Sequence[Change]) -> str:
    """What changed, in a line."""
    return "; ".join(f"{SIGNS[one.change]}{one.kind}: {_fields(one)}" for one in changes)


def _fields(change: Change) -> str:
    if change.change == "added":
        return ", ".join(f"{one.name}={show(one.after)}" for one in change.fields)
    return ", ".join(f"{one.name} {show(one.before)} → {show(one.after)}" for one in change.fields)


def _name(kind: str, name: str) -> str:
    match kind:
        case "artifact":
            return shorten(name)
        case "operation":
            return shorten_operation(name)
        case "replica":
            artifact, _, place = name.partition(":")
            return f"{shorten(artifact)} {place.replace(':', '/')}"
        case _:
            return name


def show(value: object) -> str:
    """A value in a table: text as it is, nothing as `-`, all else as JSON; ids and long ones
    cut."""
    if value is None:
        return "-"
    if isinstance(value, str):
        is_id = len(value) == 40 and not set(value) - set("0123456789abcdef")
        text = shorten(value) if is_id else value
    else:
        text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= VALUE_CHARS else text[: VALUE_CHARS - 1] + "…"
