"""The steps of plans in a recorded log, decided anew: does the runner do what is written there?

What a plan wrote was decided in a view between the plan's last event and the append, and at a time
shortly before it; the append was refused if anybody had moved the plan meanwhile. So the runner is
asked in the views before the append, the last one first.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from tensorcast.controlplane.core.plans.runner import Decision, react
from tensorcast.controlplane.simulator.plans import hear
from tensorcast.schema.aggregates.plan import Plan
from tensorcast.schema.cluster import ClusterView, decide, project
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.events import TYPE_NAMES, Event, UnknownEvent
from tensorcast.schema.ids import EventId, PlanId, Seq, is_plan_id
from tensorcast.schema.plan_events import StepFailed
from tensorcast.schema.signals import Signal

VIEWS_MAX: Final = 50
"""So many events earlier a decision may have been taken."""


class PlanReview(msgspec.Struct, frozen=True, kw_only=True):
    """`events` that plans wrote; `strange` are those (by position) that the runner would not have
    written then."""

    events: int = 0
    strange: tuple[int, ...] = ()


def review_plans(
    views: Sequence[ClusterView], events: Sequence[Recorded], signals: Sequence[Signal]
) -> PlanReview:
    """Decides anew what plans wrote; `views[n]` is the view before `events[n]`, `signals` are all
    of the log."""
    strange: list[int] = []
    count = place = 0
    while place < len(events):
        if not is_plan_id(events[place].actor):
            place += 1
            continue
        written = _find(views, events, place, signals)
        if not written and place:  # the first events may be the rest of a decision before them
            strange.append(events[place].seq)
        count += written or 1
        place += written or 1
    return PlanReview(events=count, strange=tuple(strange))


def _find(
    views: Sequence[ClusterView],
    events: Sequence[Recorded],
    place: int,
    signals: Sequence[Signal],
) -> int:
    """How many events from a place on are those of one decision of the plan that wrote them; 0:
    it decides otherwise."""
    name, now = PlanId(events[place].actor), events[place].at
    for view in reversed(views[max(0, place + 1 - VIEWS_MAX) : place + 1]):
        plan = view.plans.get(name)
        if plan is None or plan.version != views[place].plans[name].version:
            return 0
        for decision in _decisions(view, plan, now, signals):
            expected = _outcome(view, decision)
            found = [one.event for one in events[place : place + len(expected)]]
            if expected and [_told(one) for one in expected] == [_told(one) for one in found]:
                return len(expected)
    return 0


def _decisions(
    view: ClusterView, plan: Plan, now: datetime, signals: Sequence[Signal]
) -> tuple[Decision, ...]:
    try:
        return react(view, plan, now, hear(plan, signals, view))
    except TensorCastError:
        return ()


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
    """An event without the moment of its next try, which depends on that of the decision."""
    if isinstance(event, StepFailed) and event.retry_at is not None:
        return msgspec.structs.replace(event, retry_at=datetime.min)
    return event
