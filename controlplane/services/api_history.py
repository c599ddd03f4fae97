"""Verbs that Postgres answers: what happened, and how it was."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from tensorcast.controlplane.core.names import (
    resolve_artifact,
    resolve_engine,
    resolve_operation,
    resolve_plan,
)
from tensorcast.controlplane.services.api_answers import describe_key
from tensorcast.controlplane.services.api_desk import AFTER_S_MAX, Desk
from tensorcast.controlplane.services.api_live import require_key
from tensorcast.controlplane.services.api_moments import check_span
from tensorcast.controlplane.store.event_infos import About
from tensorcast.schema.api import (
    LIST_MAX,
    AuditQuery,
    EventInfo,
    KeyInfo,
    KeyMove,
    Show,
)
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.codec import decode_event
from tensorcast.schema.errors import InvalidArgument, NotFound, Timeout, Unavailable
from tensorcast.schema.events import AggregateKind, KeyMoved, KeyRemoved
from tensorcast.schema.ids import (
    ArtifactId,
    EngineId,
    Key,
    LeaseId,
    NodeId,
    OperationId,
    PlanId,
    ReplicaId,
    Seq,
)
from tensorcast.schema.namespaces import Namespace
from tensorcast.schema.signals import Topic

PAGE_BYTES_MAX = 4 << 20
SEEN_S_MAX = 2.0
"""A history that lags behind the live view is waited for so long, and then answered as it is."""
ENVELOPE_BYTES = 512


# ---- audit -----------------------------------------------------------------------------------


async def audit_log(desk: Desk, request: AuditQuery) -> tuple[EventInfo, ...]:
    """The events that match, in the order of the log. Raises NotFound for a name that nothing has
    or had, InvalidArgument for a span that can hold nothing."""
    view = await desk.view_after(request.after)
    about = identify(view, request.what) if request.what else None
    query = _resolved(view, await _checked(desk, request))
    await _catch_up(desk, request.after, view.at)
    return page_of(await desk.history.find_events(query, about), newest=query.newest)


async def artifact_history(desk: Desk, request: AuditQuery) -> tuple[EventInfo, ...]:
    """Every event about one artifact, its replicas, operations, leases and keys."""
    what = request.artifact or request.what
    if not what:
        raise InvalidArgument("No artifact is named.", hint="Give a key or an id.")
    view = await desk.view_after(request.after)
    artifact = resolve_artifact(view, what)
    query = msgspec.structs.replace(await _checked(desk, request), artifact=artifact, what=None)
    await _catch_up(desk, request.after, view.at)
    return page_of(await desk.history.find_events(query, None), newest=query.newest)


def identify(view: ClusterView, what: str) -> About:
    """The one thing that a name stands for: a key (also a removed one), an artifact, operation,
    node, lease, engine or replica, or the beginning of the id of an artifact or operation. Raises
    NotFound or InvalidArgument."""
    exact = (
        (AggregateKind.KEY, Key(what) in view.keys),
        (AggregateKind.ARTIFACT, ArtifactId(what) in view.artifacts),
        (AggregateKind.OPERATION, OperationId(what) in view.operations),
        (AggregateKind.NODE, NodeId(what) in view.nodes),
        (AggregateKind.LEASE, LeaseId(what) in view.leases),
        (AggregateKind.ENGINE, EngineId(what) in view.engines),
        (AggregateKind.REPLICA, ReplicaId(what) in view.replicas),
        (AggregateKind.SIGNAL, Topic(what) in view.signals),
        (AggregateKind.PLAN, PlanId(what) in view.plans),
        (AggregateKind.NAMESPACE, Namespace(what) in view.namespaces),
        (AggregateKind.POLICY, what in view.policies),
    )
    for kind, is_known in exact:
        if is_known:
            return About(kind, what)
    try:
        return About(AggregateKind.ARTIFACT, resolve_artifact(view, what))
    except NotFound:
        pass
    try:
        return About(AggregateKind.OPERATION, resolve_operation(view, what))
    except NotFound:
        raise NotFound(
            f"Nothing is called {what!r}: no key, artifact, operation, node, lease, replica or"
            " topic of signals.",
            hint="`tcctl artifact ls`, `key ls`, `op ls` and `node ls` show what there is.",
        ) from None


async def _catch_up(desk: Desk, after: Seq, seen: Seq) -> None:
    """Waits until Postgres has event `after`, and for a moment until it has all that the live view
    has shown: who saw an operation succeed finds that in its history. Raises Timeout and
    Unavailable for `after` alone."""
    await desk.history.wait_committed(after, AFTER_S_MAX)
    with suppress(Timeout):
        await desk.history.wait_committed(seen, SEEN_S_MAX)


def _resolved(view: ClusterView, query: AuditQuery) -> AuditQuery:
    """The query with whole ids. Raises NotFound, InvalidArgument."""
    artifact, operation, engine, plan = query.artifact, query.operation, query.engine, query.plan
    if query.key is not None and query.key not in view.keys:
        raise NotFound(
            f"There was never a key {query.key!r}.", hint="`tcctl key ls` shows what there is."
        )
    return msgspec.structs.replace(
        query,
        artifact=resolve_artifact(view, artifact) if artifact else None,
        operation=resolve_operation(view, operation) if operation else None,
        engine=resolve_engine(view, engine).id if engine else None,
        plan=resolve_plan(view, plan) if plan else None,
    )


async def _checked(desk: Desk, query: AuditQuery) -> AuditQuery:
    await check_span(desk, query)
    if query.limit < 1:
        raise InvalidArgument(
            f"A limit of {query.limit} makes no sense.", hint="Ask for 1 or more."
        )
    return msgspec.structs.replace(query, limit=min(query.limit, LIST_MAX))


def page_of(events: Sequence[EventInfo], *, newest: bool) -> tuple[EventInfo, ...]:
    """The events as far as one answer can carry them; at least one. Whoever asks for all goes on
    after the last one until a page is empty."""
    page: list[EventInfo] = []
    size_bytes = 0
    for info in reversed(events) if newest else events:
        size_bytes += len(bytes(info.data)) + ENVELOPE_BYTES
        if page and size_bytes > PAGE_BYTES_MAX:
            break
        page.append(info)
    return tuple(reversed(page)) if newest else tuple(page)


# ---- keys ------------------------------------------------------------------------------------


async def show_key(desk: Desk, request: Show) -> KeyInfo:
    """A key and where it pointed before, the oldest first. It includes every move that was done
    when the request came, whichever control plane did it. While Postgres is away the answer has no
    history: what the key points to must be known without it."""
    after = max(request.after, await desk.writer.last_seq())
    view = await desk.view_for(msgspec.structs.replace(request, after=after))
    key = require_key(view, request.what)
    about = About(AggregateKind.KEY, key.key)
    query = AuditQuery(newest=True, before=beyond(request.at))
    try:
        await desk.history.wait_committed(key.version, AFTER_S_MAX)
        events = await desk.history.find_events(query, about)
    except (Unavailable, Timeout):
        events = ()
    moves = tuple(move for move in map(_move, events) if move)
    return describe_key(key, moves, view.keys_by_family.get(key.key, ()))


def beyond(at: Seq | None) -> Seq | None:
    """The first position that is not told any more in an answer as of event `at`."""
    return None if at is None else Seq(at + 1)


def _move(info: EventInfo) -> KeyMove | None:
    event = decode_event(info.type, info.v, info.data)
    if not isinstance(event, KeyMoved | KeyRemoved):
        return None
    artifact = event.artifact if isinstance(event, KeyMoved) else None
    return KeyMove(artifact=artifact, at=info.at, actor=info.actor, seq=info.seq)
