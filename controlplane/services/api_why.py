"""Verbs about reasons: what led to an event and what came of it, and the lineage of an artifact."""

from __future__ import annotations

from typing import Final

import msgspec

from tensorcast.controlplane.core.lineage import (
    key_spans,
    made_by,
    named_sources,
    work_of,
)
from tensorcast.controlplane.core.names import resolve_artifact, resolve_node
from tensorcast.controlplane.core.served import served_spans
from tensorcast.controlplane.services.api_desk import AFTER_S_MAX, Desk
from tensorcast.controlplane.store.event_infos import About
from tensorcast.schema.aggregates.artifact import Artifact
from tensorcast.schema.api import LIST_MAX, AuditQuery, EventInfo, ServedInfo, Show
from tensorcast.schema.api_past import EFFECTS_MAX, LineageInfo, MadeInfo, WhyInfo, WhyQuery
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.events import AggregateKind
from tensorcast.schema.ids import ArtifactId, EngineId, EventId, Seq, Tier, replica_id
from tensorcast.schema.origins import MADE_BY

CAUSES_MAX: Final = 100
PAGES_MAX: Final = 20
MAKING: Final = ("replica.started", "replica.ready")
_LOOK: Final = "`tcctl audit log` shows positions and ids."


async def explain(desk: Desk, request: WhyQuery) -> WhyInfo:
    """The chain of causes of one event, and the tree of its effects. Raises NotFound when there is
    no such event, InvalidArgument when none is named."""
    view = await desk.view_after(request.after)
    await desk.history.wait_committed(max(request.after, view.at), AFTER_S_MAX)
    event = await _find(desk, request)
    effects, more = await _effects(desk, event, max(0, min(request.limit, EFFECTS_MAX)))
    return WhyInfo(event=event, causes=await _causes(desk, event), effects=effects, more=more)


async def _find(desk: Desk, request: WhyQuery) -> EventInfo:
    if request.event is not None:
        return await find_event(desk, request.event)
    if request.artifact is None or request.node is None:
        raise InvalidArgument(
            "No event is named.", hint="Give a position, an id, or an artifact and a node."
        )
    view = desk.follower.view
    artifact = resolve_artifact(view, request.artifact)
    node = resolve_node(view, request.node)
    found: list[EventInfo] = []
    for tier in (request.tier,) if request.tier is not None else Tier:
        query = AuditQuery(types=MAKING, newest=True, limit=1)
        about = About(AggregateKind.REPLICA, replica_id(artifact, node, tier))
        found += await desk.history.find_events(query, about)
    if not found:
        raise NotFound(
            f"Node {node} never had a replica of artifact {artifact}.",
            hint=f"`tcctl artifact where {artifact}` shows where it is.",
            artifact=artifact,
            node=node,
        )
    return max(found, key=lambda event: event.seq)


async def find_event(desk: Desk, reference: str) -> EventInfo:
    """The event at a position ("42", "#42") or with an id. Raises NotFound, InvalidArgument."""
    text = reference.strip().removeprefix("#").lower()
    if text.isdigit() and len(text) < 20:
        query = AuditQuery(since=Seq(max(0, int(text) - 1)), before=Seq(int(text) + 1), limit=1)
        found = next(iter(await desk.history.find_events(query, None)), None)
    elif len(text) == 36 and text.count("-") == 4:
        found = await desk.history.find_event(EventId(text))
    else:
        raise InvalidArgument(
            f"{reference!r} is neither a position nor the id of an event.", hint=_LOOK
        )
    if found is None:
        raise NotFound(f"There is no event {text}.", hint=_LOOK)
    return found


async def _causes(desk: Desk, event: EventInfo) -> tuple[EventInfo, ...]:
    """What led to it, the root first; ends early where a cause is not known."""
    chain: list[EventInfo] = []
    cause = event.cause
    while cause is not None and len(chain) < CAUSES_MAX:
        found = await desk.history.find_event(cause)
        if found is None or found in chain:
            break
        chain.append(found)
        cause = found.cause
    return tuple(reversed(chain))


async def _effects(desk: Desk, event: EventInfo, limit: int) -> tuple[tuple[EventInfo, ...], bool]:
    """What came of it, at most `limit` events, the nearest first chosen; whether there are more."""
    found: dict[EventId, EventInfo] = {}
    level = [event.id]
    while level and len(found) <= limit:
        next_level = await desk.history.find_effects(level, limit + 1)
        fresh = [one for one in next_level if one.id not in found and one.id != event.id]
        found.update((one.id, one) for one in fresh)
        level = [one.id for one in fresh]
    told = sorted(list(found.values())[:limit], key=lambda one: one.seq)
    return tuple(told), len(found) > limit


# ---- lineage -------------------------------------------------------------------------------


async def show_lineage(desk: Desk, request: Show) -> LineageInfo:
    """Where an artifact comes from, and what it was used for. Raises NotFound."""
    view = await desk.view_for(request)
    artifact = view.artifacts[resolve_artifact(view, request.what)]
    await desk.history.wait_committed(view.at, AFTER_S_MAX)
    before = Seq(view.at + 1)
    events = await _all_events(desk, AuditQuery(artifact=artifact.id, before=before))
    sealed = next(one for one in events if one.type == "artifact.sealed")
    return LineageInfo(
        artifact=artifact.id,
        kind=artifact.kind,
        state=artifact.status.value,
        labels=artifact.labels,
        sealed_at=sealed.at,
        sealed_by=sealed.actor,
        sealed_seq=sealed.seq,
        sources=await _sources(desk, artifact, sealed),
        results=await _results(desk, view, artifact.id, events),
        keys=key_spans(artifact.id, events),
        engines=await _served(desk, artifact.id, events, before),
    )


async def _all_events(
    desk: Desk, query: AuditQuery, about: About | None = None
) -> tuple[EventInfo, ...]:
    """All that match, page by page."""
    found: list[EventInfo] = []
    for _ in range(PAGES_MAX):
        since = found[-1].seq if found else query.since
        page = await desk.history.find_events(
            msgspec.structs.replace(query, since=since, limit=LIST_MAX), about
        )
        found += page
        if len(page) < LIST_MAX:
            break
    return tuple(found)


async def _sources(desk: Desk, artifact: Artifact, sealed: EventInfo) -> tuple[MadeInfo, ...]:
    """What it was made from: the artifacts of the work that its seal answers, and those that
    whoever put it named."""
    chain = await _causes(desk, sealed)
    found = [made for one in chain if (made := made_by(one)) is not None]
    by = artifact.labels.get(MADE_BY, "")
    for name in named_sources(artifact.labels):
        source = await _pointed_to(desk, name, sealed.seq)
        found.append(MadeInfo(artifact=source, by=by, seq=sealed.seq))
    return tuple(dict.fromkeys(made for made in found if made.artifact != artifact.id))


async def _pointed_to(desk: Desk, name: str, before: Seq) -> ArtifactId:
    """The artifact that a key pointed to at that time; any other name as it is."""
    about = About(AggregateKind.KEY, name)
    query = AuditQuery(before=before, newest=True, limit=1, type="key.moved")
    moves = await desk.history.find_events(query, about)
    return _named(moves[0]) if moves else ArtifactId(name)


async def _results(
    desk: Desk, view: ClusterView, artifact: ArtifactId, events: tuple[EventInfo, ...]
) -> tuple[MadeInfo, ...]:
    """What was made from it: artifacts whose seals came of work about it, and those that name it,
    or a key that pointed to it, as what they were made from."""
    found: list[MadeInfo] = []
    issued = [one for one in events if work_of(one) is not None]
    for one in issued[-CAUSES_MAX:]:
        effects, _ = await _effects(desk, one, EFFECTS_MAX)
        made = made_by(one)
        found += [
            MadeInfo(artifact=_named(effect), by=made.by, seq=effect.seq)
            for effect in effects
            if made is not None and effect.type == "artifact.sealed"
        ]
    names = {str(artifact), *(span.key for span in key_spans(artifact, events))}
    for other in view.artifacts.values():
        if names.isdisjoint(named_sources(other.labels)):
            continue
        sealed = await desk.history.find_events(
            AuditQuery(artifact=other.id, type="artifact.sealed", newest=True, limit=1), None
        )
        sources = await _sources(desk, other, sealed[0]) if sealed else ()
        found += [
            MadeInfo(artifact=other.id, by=one.by, seq=one.seq)
            for one in sources
            if one.artifact == artifact
        ]
    return tuple(dict.fromkeys(one for one in found if one.artifact != artifact))


def _named(sealed: EventInfo) -> ArtifactId:
    return msgspec.json.decode(sealed.data, type=_Named).artifact


class _Named(msgspec.Struct):
    artifact: ArtifactId


class _Serving(msgspec.Struct):
    engine: EngineId


async def _served(
    desk: Desk, artifact: ArtifactId, events: tuple[EventInfo, ...], before: Seq
) -> tuple[ServedInfo, ...]:
    """When which engine served it: each engine's own events tell when it stopped to."""
    engines = {
        msgspec.json.decode(one.data, type=_Serving).engine
        for one in events
        if one.type == "engine.serving"
    }
    spans: list[ServedInfo] = []
    for engine in sorted(engines):
        about = About(AggregateKind.ENGINE, engine)
        told = await _all_events(desk, AuditQuery(before=before), about)
        spans += [span for span in served_spans(told) if span.artifact == artifact]
    return tuple(sorted(spans, key=lambda span: (span.since, span.seq)))
