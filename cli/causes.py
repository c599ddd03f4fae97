"""Why something is as it is: the events that led to it and what came of them. Pure, but for the
reading of pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from tensorcast.cli.events import describe_event, fact_of, name_issuer, subject_of
from tensorcast.cli.output import Table, shorten
from tensorcast.cli.units import format_second, format_time
from tensorcast.schema import events as facts
from tensorcast.schema.api import LIST_MAX, AuditQuery, EventInfo
from tensorcast.schema.api_past import WhyInfo
from tensorcast.schema.ids import EventId

Audit = Callable[[AuditQuery], Sequence[EventInfo]]
DEPTH_MAX: Final = 60
"""Deeper effects are told at this depth."""


def read_pages(
    audit: Audit, query: AuditQuery, *, follow: Callable[[], bool] = lambda: False
) -> Iterator[Sequence[EventInfo]]:
    """The matching events, page by page, up to `query.limit`. At the end of the log `follow` says
    whether to look again."""
    left, since = query.limit, query.since
    while left > 0:
        size = min(left, LIST_MAX)
        page = audit(msgspec.structs.replace(query, since=since, limit=size))
        if page:
            yield page
            since, left = page[-1].seq, left - len(page)
        if query.newest or (len(page) < size and not follow()):
            return


def explain_chain(chain: Sequence[EventInfo]) -> str:
    """In a sentence or two: who asked for it, and which policy answered. The last event is the one
    that is explained."""
    root = chain[0]
    policies = [
        fact.policy for fact in map(fact_of, chain) if isinstance(fact, facts.OperationIssued)
    ]
    issuer = name_issuer(policies[0]).capitalize() if policies else ""
    issued = f" {issuer} answered with an operation." if policies else ""
    return f"It began with {root.type} by {root.actor} at {format_time(root.at)}.{issued}"


def explain_why(info: WhyInfo) -> str:
    """Why the thing that the event is about is as it is, in a sentence: "this replica exists
    because this policy reacted to this event of this actor"."""
    chain = (*info.causes, info.event)
    root = chain[0]
    thing = _thing(info.event)
    about, _ = describe_event(root)
    origin = f"{root.type} of {root.actor} (#{root.seq}, {about}, {format_time(root.at)})"
    policies = [
        fact.policy for fact in map(fact_of, chain) if isinstance(fact, facts.OperationIssued)
    ]
    if policies:
        return f"{thing} because {name_issuer(policies[0])} reacted to {origin}."
    if root is info.event:
        return f"{thing} because {root.actor} did so: nothing else led to it."
    return f"{thing} because of {origin}."


def _thing(event: EventInfo) -> str:
    kind, name = subject_of(event)
    about, _ = describe_event(event)
    match event.type:
        case "replica.started" | "replica.ready":
            node, tier = name.split(":")[1:3]
            return f"Replica {shorten(name)} exists on {node} ({tier})"
        case _:
            return f"{event.type} of {kind or 'an event'} {about} (#{event.seq}) happened"


def table_why(info: WhyInfo) -> Table:
    """The tree: the causes, the event (marked), and its effects, each under its own cause."""
    chain = (*info.causes, info.event)
    rows = [(depth, one) for depth, one in enumerate(chain)]
    rows += walk_effects(info, len(info.causes))
    return Table(
        titles=("seq", "at", "event", "by", "about", "what"),
        rows=[
            (
                str(one.seq),
                format_second(one.at),
                f"{'  ' * depth}{'└ ' if depth else ''}{one.type}"
                + (" ◀" if one.id == info.event.id else ""),
                one.actor,
                *describe_event(one),
            )
            for depth, one in rows
        ],
        right=frozenset({"seq"}),
        fold=frozenset({"what"}),
    )


def walk_effects(info: WhyInfo, depth: int) -> list[tuple[int, EventInfo]]:
    """The effects of an event at `depth`, each with its own depth, parents before children and
    siblings in the order of the log."""
    children: dict[EventId, list[EventInfo]] = {}
    for one in info.effects:
        if one.cause is not None:
            children.setdefault(one.cause, []).append(one)
    found: list[tuple[int, EventInfo]] = []
    waiting = [(depth + 1, one) for one in reversed(children.pop(info.event.id, []))]
    while waiting:
        level, one = waiting.pop()
        found.append((min(level, DEPTH_MAX), one))
        waiting += [(level + 1, child) for child in reversed(children.pop(one.id, []))]
    return found
