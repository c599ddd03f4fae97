"""Verbs about moments: which there are, the state as it was, and what changed between two."""

from __future__ import annotations

import asyncio

import msgspec

from tensorcast.controlplane.core.changes import Scope, compare
from tensorcast.controlplane.core.names import (
    resolve_artifact,
    resolve_engine,
    resolve_node,
    resolve_operation,
    resolve_plan,
)
from tensorcast.controlplane.services.api_desk import Desk
from tensorcast.controlplane.services.api_moments import check_order, find_seq, time_of
from tensorcast.controlplane.services.api_replay import KINDS, summarize
from tensorcast.schema.api import ReplayInfo, ReplayQuery
from tensorcast.schema.api_past import CHANGES_MAX, DiffInfo, DiffQuery, MomentInfo, MomentQuery
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.ids import Key


async def show_moment(desk: Desk, request: MomentQuery) -> MomentInfo:
    """The event that a position or a time stands for. Raises InvalidArgument for one that is yet to
    come."""
    last = await desk.writer.last_seq()
    if request.seq is None and request.time is None:
        request = MomentQuery(seq=last)
    seq = await find_seq(desk, request.seq, request.time)
    return MomentInfo(seq=seq, at=await time_of(desk, seq), last_seq=last)


async def replay(desk: Desk, request: ReplayQuery) -> ReplayInfo:
    """The fold of all events up to a position or a time. Raises InvalidArgument for one that is
    not there yet."""
    seq = await find_seq(desk, request.to_seq, request.to_time)
    view = await desk.view_at(seq)
    found = summarize(view, kind=request.kind, what=request.what, limit=request.limit)
    return msgspec.structs.replace(
        found, at=await time_of(desk, seq), last_seq=await desk.writer.last_seq()
    )


async def diff(desk: Desk, request: DiffQuery) -> DiffInfo:
    """What is different at the later of two moments. Raises InvalidArgument when they stand the
    wrong way round or are yet to come, NotFound when nothing has the name at either."""
    check_order(request.since_time, request.to_time)
    first = await find_seq(desk, request.since_seq, request.since_time)
    last = await find_seq(desk, request.to_seq, request.to_time)
    if first > last:
        raise InvalidArgument(
            f"The first moment (event {first}) is after the second (event {last}).",
            hint="Give the earlier one first.",
        )
    before, after = await desk.view_at(first), await desk.view_at(last)
    scope = _scope(before, after, request.kind, request.what)
    changes = await asyncio.to_thread(compare, before, after, scope)
    limit = max(0, min(request.limit, CHANGES_MAX))
    shown = changes
    if len(changes) > limit:
        newest = set(sorted((one.seq for one in changes), reverse=True)[:limit])
        shown = tuple(one for one in changes if one.seq in newest)
    return DiffInfo(from_seq=first, to_seq=last, total=len(changes), changes=shown)


def _scope(
    before: ClusterView, after: ClusterView, kind: str | None, what: str | None
) -> Scope | None:
    """The one thing that is asked about, by its name at the later moment, else at the earlier."""
    if (kind is None) != (what is None) or (kind is not None and kind not in KINDS):
        raise InvalidArgument(
            "A part of the state is named by its kind and its name.",
            hint=f"The kinds are {', '.join(KINDS)}.",
        )
    if kind is None or what is None:
        return None
    try:
        return kind, _resolve(after, kind, what)
    except NotFound:
        return kind, _resolve(before, kind, what)


def _resolve(view: ClusterView, kind: str, what: str) -> str:
    match kind:
        case "artifact":
            return resolve_artifact(view, what)
        case "node":
            return resolve_node(view, what)
        case "operation":
            return resolve_operation(view, what)
        case "engine":
            return resolve_engine(view, what).id
        case "plan":
            return resolve_plan(view, what)
    if Key(what) not in view.keys:
        raise NotFound(f"There was no key {what!r}.", hint="`tcctl key ls` shows what there is.")
    return what
