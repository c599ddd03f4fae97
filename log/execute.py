"""Commands into the log: decide on what is known, append, and when that was stale do it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from tensorcast.log.follower import Follower
from tensorcast.log.identity import new_event_id, now
from tensorcast.schema.cluster import ClusterView, decide, project
from tensorcast.schema.commands import Command
from tensorcast.schema.envelope import Draft, Recorded
from tensorcast.schema.errors import Conflict, TensorCastError
from tensorcast.schema.events import TYPE_NAMES, AggregateKind, Event, SignalEvent, aggregate_of
from tensorcast.schema.ids import EventId, Seq, derive_event_id

ATTEMPTS_MAX = 10
FOLLOW_TIMEOUT_S = 30.0
COMMAND_EVENTS_MAX = 16


class Appender(Protocol):
    """What `execute` needs of a log or a writer."""

    async def append(self, drafts: Sequence[Draft]) -> tuple[Seq, ...]: ...

    async def last_seq(self) -> Seq: ...


class Outcome(msgspec.Struct, frozen=True):
    """What came of the commands: the events that were appended (none: it was already so), and the
    position of the last one (or of the last event of the aggregates)."""

    events: tuple[Draft, ...]
    seq: Seq


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Who wants the commands, and why. `derived`: the ids of the events follow from the cause, so
    that processes that decide the same thing at once append it once. `at`: when they were decided
    on, unless that is now."""

    actor: str
    cause: EventId | None = None
    trace: str | None = None
    derived: bool = False
    at: datetime | None = None


async def execute(
    log: Appender,
    follower: Follower,
    commands: Sequence[Command],
    *,
    actor: str,
    cause: EventId | None = None,
    trace: str | None = None,
    derived: bool = False,
    at: datetime | None = None,
    check: Callable[[ClusterView], None] | None = None,
) -> Outcome:
    """Decides all commands and appends their events as one; then waits until the follower has
    seen them, so that its view includes the change.

    Each command sees what the ones before it will have done. `derived` needs a cause. Nothing is
    refused, and nothing is called done already, on a view that is older than the log. Signals are
    not refused for what others say on their topic meanwhile. `check` is called with each view that
    is decided on, and may raise. Raises what it and `decide` raise, Conflict when others kept
    winning, Unavailable, Timeout.
    """
    origin = Origin(actor=actor, cause=cause, trace=trace, derived=derived, at=at)
    fresh = False
    for attempt in range(1, ATTEMPTS_MAX + 1):
        if check is not None:
            check(follower.view)
        try:
            drafts, version = plan(follower.view, commands, origin)
        except TensorCastError:
            if fresh:
                raise
            drafts, version = (), Seq(0)
        else:
            if not drafts and (fresh or derived):
                return Outcome((), version)
        if drafts:
            try:
                seqs = await log.append(drafts)
            except Conflict:
                if attempt == ATTEMPTS_MAX:
                    raise
            else:
                await follower.wait_for(seqs[-1], FOLLOW_TIMEOUT_S)
                return Outcome(drafts, seqs[-1])
        await follower.wait_for(await log.last_seq(), FOLLOW_TIMEOUT_S)
        fresh = True
    raise AssertionError("the last attempt returns or raises")


def plan(
    view: ClusterView, commands: Sequence[Command], origin: Origin
) -> tuple[tuple[Draft, ...], Seq]:
    """The drafts of all commands against the view, and the highest position among their
    aggregates. Raises what `decide` raises."""
    drafts: list[Draft] = []
    touched: set[tuple[AggregateKind, str]] = set()
    version = Seq(0)
    for index, command in enumerate(commands):
        events, expected = decide(view, command)
        version = max(version, expected)
        for number, event in enumerate(events):
            aggregate = aggregate_of(event)
            ordinal = index * COMMAND_EVENTS_MAX + number
            checked = aggregate not in touched and not isinstance(event, SignalEvent)
            drafts.append(_draft(event, origin, ordinal, expected if checked else None))
            touched.add(aggregate)
            view = project(view, foresee(drafts[-1], Seq(view.at + 1)))
    return tuple(drafts), version


def _draft(event: Event, origin: Origin, ordinal: int, expected: Seq | None) -> Draft:
    return Draft(
        id=_event_id(event, origin, ordinal),
        at=origin.at or now(),
        actor=origin.actor,
        event=event,
        cause=origin.cause,
        trace=origin.trace,
        expected=expected,
    )


def _event_id(event: Event, origin: Origin, ordinal: int) -> EventId:
    if not origin.derived:
        return new_event_id()
    assert origin.cause is not None, "a derived id needs a cause"
    kind, name = aggregate_of(event)
    if kind is AggregateKind.OPERATION:  # its id says already who has decided it
        return derive_event_id(f"{kind}/{name}", origin.cause, ordinal)
    return derive_event_id(f"{kind}/{name}/{origin.actor}", origin.cause, ordinal)


def foresee(draft: Draft, seq: Seq) -> Recorded:
    """The event as it will lie in the log, so that the next command of the same append sees it."""
    return Recorded(
        seq=seq,
        id=draft.id,
        type=TYPE_NAMES[type(draft.event)],
        v=1,
        at=draft.at,
        actor=draft.actor,
        event=draft.event,
        cause=draft.cause,
        trace=draft.trace,
    )
