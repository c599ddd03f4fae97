"""The steps of plans in a recorded log, decided anew: does the runner do what is written there?

The runner looks at a plan in some view after the plan's last event, and appends what it decides,
one decision after the other, as long as nobody else moves the plan. All events of a look bear its
time. So the runner is asked, at that time, in the views before the first of them, the last one
first; the others must be what it decided beside that. It makes no difference which control plane
looked, or whether it died on the way: the next one looks anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from tensorcast.controlplane.core.plans.runner import Decision, abandon, react, step_at
from tensorcast.controlplane.core.plans.wakes import wakes
from tensorcast.controlplane.core.rights import check_command
from tensorcast.controlplane.simulator.plans import hear
from tensorcast.schema.access import user_of
from tensorcast.schema.aggregates.plan import Plan
from tensorcast.schema.cluster import ClusterView, decide, project
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import Conflict, TensorCastError
from tensorcast.schema.events import TYPE_NAMES, Event, UnknownEvent
from tensorcast.schema.faults import from_error
from tensorcast.schema.ids import EventId, PlanId, Seq, is_plan_id
from tensorcast.schema.plan_events import StepFailed, StepPath
from tensorcast.schema.signals import Signal

VIEWS_MAX: Final = 1000
"""In so many views before an event it may have been decided on."""
Decisions = tuple[Decision, ...]


class PlanReview(msgspec.Struct, frozen=True, kw_only=True):
    """`events` that plans wrote; `strange` are those (by position) that the runner would not have
    written then."""

    events: int = 0
    strange: tuple[int, ...] = ()


class _Rest(NamedTuple):
    """What was decided at a look, and has not been found in the log yet."""

    at: datetime
    decisions: Decisions


def review_plans(
    views: Sequence[ClusterView], events: Sequence[Recorded], signals: Sequence[Signal]
) -> PlanReview:
    """Decides anew what plans wrote; `views[n]` is the view before `events[n]`, `signals` are all
    of the log."""
    strange: list[int] = []
    rests: dict[str, _Rest] = {}
    count = place = 0
    while place < len(events):
        one = events[place]
        if not is_plan_id(one.actor):
            place += 1
            continue
        written, rest = 0, rests.get(one.actor)
        if rest is not None and rest.at == one.at:
            written, left = _match(views[place], events, place, rest.decisions)
        if not written:
            written, left = _find(views, events, place, signals)
        rests[one.actor] = _Rest(one.at, left)
        if not written and place:  # the first events may be the rest of a decision before them
            strange.append(one.seq)
        count += written or 1
        place += written or 1
    return PlanReview(events=count, strange=tuple(strange))


def _find(
    views: Sequence[ClusterView],
    events: Sequence[Recorded],
    place: int,
    signals: Sequence[Signal],
) -> tuple[int, Decisions]:
    """How many events from a place on are those of one decision of the plan that wrote them (0: it
    decides otherwise), and what it decided further at that look."""
    name, now = PlanId(events[place].actor), events[place].at
    for view in _looked_at(views, events, place, name):
        decisions = _decisions(view, view.plans[name], now, signals)
        written, left = _match(views[place], events, place, decisions)
        if written:
            return written, left
    return 0, ()


def _looked_at(
    views: Sequence[ClusterView], events: Sequence[Recorded], place: int, name: PlanId
) -> Iterator[ClusterView]:
    """The views before a place, back to the plan's last event, that tell a plan something new."""
    known = views[place].plans.get(name)
    for number in range(place, max(0, place - VIEWS_MAX) - 1, -1):
        view = views[number]
        plan = view.plans.get(name)
        if plan is None or known is None or plan.version != known.version:
            return
        if not number or name in wakes(view, events[number - 1]):
            yield view


def _match(
    view: ClusterView, events: Sequence[Recorded], place: int, decisions: Decisions
) -> tuple[int, Decisions]:
    """The first of these decisions that stands at a place, where `view` is that before it: how many
    events it has (0: none stands there), and the decisions after it."""
    actor = events[place].actor
    for number, decision in enumerate(decisions, 1):
        expected = _outcome(view, decision)
        found = events[place : place + len(expected)]
        if not expected or any(one.actor != actor for one in found):
            continue
        if [_told(one) for one in expected] == [_told(one.event) for one in found]:
            return len(expected), decisions[number:]
    return 0, ()


def _decisions(
    view: ClusterView, plan: Plan, now: datetime, signals: Sequence[Signal]
) -> Decisions:
    """As the runner decides: a plan of which something can never be written is ended."""
    step = StepPath("")
    decisions: Decisions = ()
    try:
        decisions = react(view, plan, now, hear(plan, signals, view))
        for decision in decisions:
            after = view
            for place, command in enumerate(decision.commands):
                step = step_at(decision.commands, place)
                check_command(view, user_of(plan.actor), command)
                for event in decide(after, command)[0]:
                    after = project(after, _recorded(after, event))
    except Conflict:
        pass
    except TensorCastError as error:
        return abandon(view, plan, from_error(error), step)
    return decisions


def _outcome(view: ClusterView, decision: Decision) -> list[Event]:
    """The events that a decision leads to; none when it is refused in this view."""
    found: list[Event] = []
    try:
        for command in decision.commands:
            for event in decide(view, command)[0]:
                found.append(event)
                view = project(view, _recorded(view, event))
    except TensorCastError:
        return []
    return found


def _recorded(view: ClusterView, event: Event) -> Recorded:
    seq = Seq(view.at + 1)
    kind = TYPE_NAMES[type(event)]
    at = datetime.min
    return Recorded(
        seq=seq, id=EventId(str(seq)), type=kind, v=1, at=at, actor="review", event=event
    )


def _told(event: Event | UnknownEvent) -> Event | UnknownEvent:
    """An event without the moment of its next try: until release 0.1 it was that of the look, and
    `at` that of the append."""
    if isinstance(event, StepFailed) and event.retry_at is not None:
        return msgspec.structs.replace(event, retry_at=datetime.min)
    return event
