"""Verbs about signals: emit one, and what was said last on which topic.

An emission waits for nobody's view, and several on one topic share an append: they are facts that
nothing else is decided on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorcast.controlplane.core.admission import check_actor, check_room
from tensorcast.controlplane.core.policies.topics import Topics
from tensorcast.controlplane.services.api_desk import Desk
from tensorcast.controlplane.services.api_history import SEEN_S_MAX
from tensorcast.log.identity import now
from tensorcast.schema.aggregates.signal import SignalTopic
from tensorcast.schema.api_signals import (
    TOPICS_SHOWN_MAX,
    Emit,
    Emitted,
    TopicInfo,
    TopicsQuery,
)
from tensorcast.schema.cluster import decide
from tensorcast.schema.commands import EmitSignal
from tensorcast.schema.envelope import Draft
from tensorcast.schema.errors import InvalidArgument, Timeout, Unavailable
from tensorcast.schema.ids import Seq, parse_event
from tensorcast.schema.signals import matches, parse_pattern


async def emit_signal(desk: Desk, request: Emit) -> Emitted:
    """Appends one signal. Safe to repeat with the same id for two minutes. Raises InvalidArgument,
    PermissionDenied, OutOfCapacity, Unavailable. InvalidArgument too for data that has not the
    shape of its topic."""
    check_actor(request.actor)
    desk.check_changeable()
    view = desk.follower.view
    (event,), _ = decide(view, EmitSignal(topic=request.topic, data=request.data))
    check_room(view, request.topic)
    for policy in desk.catalog.running(view):
        if isinstance(policy, Topics):
            policy.check(request.topic, request.data)
    draft = Draft(id=parse_event(request.id), at=now(), actor=request.actor, event=event)
    (seq,) = await desk.writer.append((draft,))
    return Emitted(id=draft.id, seq=seq)


async def list_topics(desk: Desk, request: TopicsQuery) -> tuple[TopicInfo, ...]:
    """The topics that a pattern chooses, the last used first."""
    if request.limit < 1:
        raise InvalidArgument(
            f"A limit of {request.limit} makes no sense.", hint="Ask for 1 or more."
        )
    pattern = parse_pattern(request.pattern)
    view = await desk.view_after(request.after)
    chosen = [topic for topic in view.signals.values() if matches(pattern, topic.id)]
    newest = sorted(chosen, key=lambda topic: topic.version, reverse=True)
    shown = newest[: min(request.limit, TOPICS_SHOWN_MAX)]
    said = await _last_data(desk, shown) if request.with_data and shown else {}
    return tuple(_describe(topic, said.get(topic.version)) for topic in shown)


async def _last_data(desk: Desk, topics: Sequence[SignalTopic]) -> Mapping[Seq, dict[str, object]]:
    """What the last signal of each topic said; without Postgres, nothing."""
    seqs = [topic.version for topic in topics]
    try:
        await desk.history.wait_committed(max(seqs), SEEN_S_MAX)
        return await desk.history.find_signals(seqs)
    except (Timeout, Unavailable):
        return {}


def _describe(topic: SignalTopic, data: dict[str, object] | None) -> TopicInfo:
    return TopicInfo(
        topic=topic.id,
        emitted=topic.emitted,
        seq=topic.version,
        at=topic.last_at,
        actor=topic.actor,
        first_at=topic.first_at,
        data=data,
    )
