"""Reads the log: page by page, one event by its name, and the chain of causes behind it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from tensorcast.cli.events import fact_of
from tensorcast.cli.units import format_time
from tensorcast.schema.api import LIST_MAX, AuditQuery, EventInfo
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.events import OperationIssued
from tensorcast.schema.ids import EventId, Seq

Audit = Callable[[AuditQuery], Sequence[EventInfo]]
CHAIN_MAX: Final = 100
SCAN_PAGES_MAX: Final = 500
CLOCK_SLACK: Final = timedelta(minutes=2)
_LOOK: Final = "`tcctl audit log` shows positions and ids."
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-([0-9a-f])[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


def explain_chain(chain: Sequence[EventInfo]) -> str:
    """One sentence: who asked, and which policy answered."""
    root = chain[0]
    policies = [fact.policy for fact in map(fact_of, chain) if isinstance(fact, OperationIssued)]
    issued = f" Policy {policies[0]} answered with an operation." if policies else ""
    return f"It began with {root.type} by {root.actor} at {format_time(root.at)}.{issued}"


def trace_causes(
    event: EventInfo, find: Callable[[EventId], EventInfo | None]
) -> tuple[EventInfo, ...]:
    """The chain of causes of an event, the root first, the event last. Ends early where a cause
    cannot be found; at most 100 long."""
    chain = [event]
    while chain[-1].cause is not None and len(chain) < CHAIN_MAX:
        cause = find(chain[-1].cause)
        if cause is None:
            break
        chain.append(cause)
    return tuple(reversed(chain))


def find_event(audit: Audit, reference: str) -> EventInfo:
    """The event at a position ("42") or with an id. Reads the log, page by page at worst.

    Raises NotFound, InvalidArgument when the text is neither.
    """
    text = reference.strip().removeprefix("#").lower()
    if text.isdigit():
        found = audit(AuditQuery(since=Seq(max(0, int(text) - 1)), limit=1))
        if found and found[0].seq == int(text):
            return found[0]
        raise NotFound(f"There is no event at position {text}.", hint=_LOOK)
    match = _ID.fullmatch(text)
    if match is None:
        raise InvalidArgument(
            f"{reference!r} is neither a position nor the id of an event.", hint=_LOOK
        )
    wanted = EventId(text)
    found_one = _scan(audit, _window(text), wanted) if match[1] == "7" else None
    found_one = found_one or _scan(audit, AuditQuery(), wanted)
    if found_one is None:
        raise NotFound(f"There is no event {text}.", hint=_LOOK)
    return found_one


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


def _window(uuid7: str) -> AuditQuery:
    """The query for the time at which an id of version 7 was made."""
    made = datetime.fromtimestamp(int(uuid7.replace("-", "")[:12], 16) / 1000, UTC)
    return AuditQuery(time_from=made - CLOCK_SLACK, time_to=made + CLOCK_SLACK)


def _scan(audit: Audit, query: AuditQuery, wanted: EventId) -> EventInfo | None:
    limited = msgspec.structs.replace(query, limit=SCAN_PAGES_MAX * LIST_MAX)
    for page in read_pages(audit, limited):
        for event in page:
            if event.id == wanted:
                return event
    return None
