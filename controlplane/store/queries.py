"""What the API reads. All functions raise Unavailable while Postgres is away; none writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import msgspec
from sqlalchemy import ColumnElement, Select, Text, and_, cast, func, or_, select
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from tensorcast.controlplane.store import archive_queries
from tensorcast.controlplane.store.archives import find_segments, hold_floor
from tensorcast.controlplane.store.causes import place_causes
from tensorcast.controlplane.store.cells import as_moment, as_text, as_uuid
from tensorcast.controlplane.store.engine import connecting
from tensorcast.controlplane.store.event_infos import About, EventRow, event_info, like_of
from tensorcast.controlplane.store.load import fold, read_history
from tensorcast.controlplane.store.rows import STATE_TYPES
from tensorcast.controlplane.store.seat import FIRST_EPOCH
from tensorcast.controlplane.store.snapshots import BEGINNING, open_snapshot
from tensorcast.controlplane.store.tables import READ_MODELS, cursors, events, operations
from tensorcast.controlplane.store.write import CURSOR
from tensorcast.log.port import Stored
from tensorcast.schema.api import LIST_MAX, AuditQuery, EventInfo
from tensorcast.schema.cluster import ClusterView, State
from tensorcast.schema.errors import Timeout
from tensorcast.schema.events import AggregateKind
from tensorcast.schema.ids import EventId, Seq

CLOCK_SKEW_MAX: Final = timedelta(minutes=10)
"""Most that the clocks of two writers may differ for a position to be found by time."""
_POLL_S: Final = 0.02
_NOTHING: Final = ClusterView()


# ---- positions -----------------------------------------------------------------------------


async def committed_seq(engine: AsyncEngine) -> Seq:
    """How far the history in Postgres goes; 0 when there is none."""
    async with connecting(engine) as connection:
        return (await _position(connection))[1]


async def wait_committed(engine: AsyncEngine, seq: Seq, timeout_s: float) -> Seq:
    """How far the history goes, once it includes event `seq`. Raises Timeout."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while (committed := await committed_seq(engine)) < seq:
        if asyncio.get_running_loop().time() > deadline:
            raise Timeout(
                f"Event {seq} is not in Postgres after {timeout_s:g} s; the last is {committed}.",
                hint="Does the persister run? `tcctl status` says.",
            )
        await asyncio.sleep(_POLL_S)
    return committed


async def seq_at(engine: AsyncEngine, moment: datetime) -> Seq:
    """Position of the last event that is not later than `moment`; 0 when there is none. Raises
    NotFound when it lies in an archive that cannot be read."""
    moment = as_moment(moment)
    async with connecting(engine) as connection:
        epoch, _ = await _position(connection)
        floor = await hold_floor(connection, epoch)
        within = and_(events.c.log_epoch == epoch, events.c.at <= moment)
        nearest = await connection.scalar(
            select(events.c.at).where(within).order_by(events.c.at.desc()).limit(1)
        )
        if nearest is None:
            segments = await find_segments(connection, epoch, 1, floor)
            work = partial(archive_queries.seq_at, segments, moment, CLOCK_SKEW_MAX)
            return await asyncio.to_thread(work)
        around = events.c.at >= nearest - CLOCK_SKEW_MAX
        return Seq(await connection.scalar(select(func.max(events.c.seq)).where(within, around)))


async def log_epoch(engine: AsyncEngine) -> int:
    """As `read_epoch`."""
    async with connecting(engine) as connection:
        return await read_epoch(connection)


async def read_epoch(connection: AsyncConnection) -> int:
    """Which life of the log the history goes on with."""
    return (await _position(connection))[0]


async def _position(connection: AsyncConnection) -> tuple[int, Seq]:
    found = await connection.execute(
        select(cursors.c.log_epoch, cursors.c.seq).where(cursors.c.name == CURSOR)
    )
    row = found.one_or_none()
    return (row.log_epoch, Seq(row.seq)) if row else (FIRST_EPOCH, Seq(0))


# ---- events --------------------------------------------------------------------------------


async def find_events(
    engine: AsyncEngine, query: AuditQuery, *, about: About | None = None
) -> tuple[EventInfo, ...]:
    """The events that meet all conditions of the query, in the order of the log: the first
    `limit` ones, or with `newest` the last ones.

    `about` stands for `query.what`, which is not looked at: it is whole and known to exist.
    `query.artifact`, `operation` and `engine` are whole ids. In `type`, `types` and `actor`, `*`
    stands for any text. Raises NotFound when they may lie in an archive that cannot be read.
    """
    limit = max(0, min(query.limit, LIST_MAX))
    async with connecting(engine) as connection:
        epoch, _ = await _position(connection)
        floor = await hold_floor(connection, epoch)
        live = partial(_find_live, connection, epoch, query, about)
        old = partial(_find_old, connection, epoch, floor, query, about)
        if query.newest:
            found = await live(limit)
            found = (await old(limit - len(found))) + found
        else:
            found = await old(limit)
            found += await live(limit - len(found))
        return await place_causes(connection, found)


async def _find_live(
    connection: AsyncConnection, epoch: int, query: AuditQuery, about: About | None, limit: int
) -> tuple[EventInfo, ...]:
    if limit <= 0:
        return ()
    order = events.c.seq.desc() if query.newest else events.c.seq
    statement = (
        _event_columns()
        .where(events.c.log_epoch == epoch, *_conditions(query, about))
        .order_by(order)
        .limit(limit)
    )
    found = (await connection.execute(statement)).all()
    rows = reversed(found) if query.newest else found
    return tuple(_info(row) for row in rows)


async def _find_old(
    connection: AsyncConnection,
    epoch: int,
    floor: Seq,
    query: AuditQuery,
    about: About | None,
    limit: int,
) -> tuple[EventInfo, ...]:
    """Those in archives."""
    last = floor if query.before is None else min(floor, query.before - 1)
    if limit <= 0 or query.since >= last:
        return ()
    segments = await find_segments(connection, epoch, query.since + 1, last)
    issued: list[str] = []
    if query.plan is not None:
        of_plan = select(operations.c.id).where(operations.c.policy == as_text(query.plan))
        issued = list(await connection.scalars(of_plan))
    work = partial(archive_queries.search, segments, query, about, issued, limit)
    return await asyncio.to_thread(work)


async def find_event(engine: AsyncEngine, event: EventId) -> EventInfo | None:
    """One event by its id. Raises NotFound when it may lie in an archive that cannot be read."""
    async with connecting(engine) as connection:
        epoch, _ = await _position(connection)
        floor = await hold_floor(connection, epoch)
        statement = _event_columns().where(events.c.event_id == as_uuid(event)).limit(1)
        row = (await connection.execute(statement)).one_or_none()
        if row is not None or not floor:
            return _info(row) if row else None
        segments = await find_segments(connection, epoch, 1, floor)
        found = await asyncio.to_thread(archive_queries.search_id, segments, event)
    return found


async def find_effects(
    engine: AsyncEngine, causes: Sequence[EventId], *, limit: int
) -> tuple[EventInfo, ...]:
    """The first `limit` events that name one of `causes` as their cause, in the order of the
    log. Raises NotFound when they may lie in an archive that cannot be read."""
    limit = max(0, min(limit, LIST_MAX))
    ids = list(map(as_uuid, causes))
    async with connecting(engine) as connection:
        epoch, _ = await _position(connection)
        floor = await hold_floor(connection, epoch)
        old: tuple[EventInfo, ...] = ()
        if floor:  # an effect is younger than its cause
            is_live = select(func.count()).where(events.c.event_id.in_(ids))
            if (await connection.scalar(is_live) or 0) < len(set(ids)):
                segments = await find_segments(connection, epoch, 1, floor)
                work = partial(archive_queries.search_effects, segments, causes, limit)
                old = await asyncio.to_thread(work)
        statement = (
            _event_columns()
            .where(events.c.log_epoch == epoch, events.c.cause.in_(ids))
            .order_by(events.c.seq)
            .limit(limit - len(old))
        )
        found = (await connection.execute(statement)).all()
        return old + tuple(_info(row) for row in found)


def _event_columns() -> Select[tuple[int, str, str, int, datetime, str, bytes]]:
    return select(
        events.c.seq,
        cast(events.c.event_id, Text).label("event_id"),
        events.c.type,
        events.c.v,
        events.c.at,
        events.c.actor,
        events.c.payload,
    )


def _info(row: Row[tuple[int, str, str, int, datetime, str, bytes]]) -> EventInfo:
    return event_info(
        EventRow(row.seq, row.event_id, row.type, row.v, row.at, row.actor, row.payload)
    )


def _conditions(query: AuditQuery, about: About | None) -> list[ColumnElement[bool]]:
    conditions = [events.c.seq > query.since]
    if query.before is not None:
        conditions.append(events.c.seq < query.before)
    if about is not None:
        conditions.append(_is_about(about))
    if query.artifact is not None:
        conditions.append(_is_about(About(AggregateKind.ARTIFACT, query.artifact)))
    if query.node is not None:
        conditions.append(_is_about(About(AggregateKind.NODE, query.node)))
    if query.key is not None:
        conditions.append(_is_about(About(AggregateKind.KEY, query.key)))
    if query.operation is not None:
        conditions.append(_is_about(About(AggregateKind.OPERATION, query.operation)))
    if query.engine is not None:
        conditions.append(_is_about(About(AggregateKind.ENGINE, query.engine)))
    if query.plan is not None:
        conditions.append(_is_of_plan(as_text(query.plan)))
    if query.types:
        conditions.append(or_(*(_matches(events.c.type, one) for one in query.types)))
    if query.actor is not None:
        conditions.append(_matches(events.c.actor, query.actor))
    if query.type is not None:
        conditions.append(_matches(events.c.type, query.type))
    if query.cause is not None:
        conditions.append(events.c.cause == as_uuid(query.cause))
    if query.time_from is not None:
        conditions.append(events.c.at >= as_moment(query.time_from))
    if query.time_to is not None:
        conditions.append(events.c.at <= as_moment(query.time_to))
    return conditions


def _is_about(about: About) -> ColumnElement[bool]:
    name = as_text(about.id)
    if about.kind is AggregateKind.ARTIFACT:
        left_by_key = and_(
            events.c.aggregate_kind == AggregateKind.KEY.value,
            events.c.data["previous"].astext == about.id,
        )
        return or_(events.c.artifact == name, left_by_key)
    if about.kind is AggregateKind.NODE:
        return events.c.node == name
    return and_(events.c.aggregate_kind == about.kind.value, events.c.aggregate_id == name)


def _is_of_plan(plan: str) -> ColumnElement[bool]:
    """The plan's own events, all that its runner wrote, and what became of its operations."""
    issued = select(operations.c.id).where(operations.c.policy == plan)
    return or_(
        _is_about(About(AggregateKind.PLAN, plan)),
        events.c.actor == plan,
        and_(
            events.c.aggregate_kind == AggregateKind.OPERATION.value,
            events.c.aggregate_id.in_(issued),
        ),
    )


def _matches(column: ColumnElement[str], pattern: str) -> ColumnElement[bool]:
    pattern = as_text(pattern)
    if "*" not in pattern:
        return column == pattern
    return column.like(like_of(pattern), escape="\\")


# ---- the past ------------------------------------------------------------------------------


async def read_events(
    engine: AsyncEngine, *, to_seq: Seq, after: Seq = BEGINNING
) -> AsyncIterator[tuple[Stored, ...]]:
    """The events after `after` up to `to_seq`, in order, in batches, as they lie in the log."""
    async with connecting(engine) as connection:
        epoch, _ = await _position(connection)
        async for batch in read_history(connection, epoch, to_seq=to_seq, after=after):
            yield batch


async def views_to(
    engine: AsyncEngine, seq: Seq, known: ClusterView = _NOTHING
) -> AsyncIterator[ClusterView]:
    """The view as it was after event `seq`, last, and some of those on the way there: folded from
    the newest snapshot, or from `known`, an earlier view of the same life of the log."""
    view = known
    async with connecting(engine) as connection:
        epoch, _ = await _position(connection)
        view = await open_snapshot(connection, epoch, seq, beyond=known.at) or known
        yield view
        async for batch in read_history(connection, epoch, to_seq=seq, after=view.at):
            view = await asyncio.to_thread(fold, view, batch)  # others must not wait for it
            yield view


async def view_at(engine: AsyncEngine, seq: Seq) -> ClusterView:
    """The view as it was after event `seq`."""
    view = _NOTHING
    async for found in views_to(engine, seq):
        view = found
    return view


# ---- the present ---------------------------------------------------------------------------


async def get_state(engine: AsyncEngine, kind: AggregateKind, aggregate_id: str) -> State | None:
    """The committed state of one aggregate."""
    table = READ_MODELS[kind]
    states = await _states(engine, kind, [table.c.id == as_text(aggregate_id)], limit=1)
    return states[0] if states else None


async def find_states(
    engine: AsyncEngine,
    kind: AggregateKind,
    *,
    status: str | None = None,
    artifact: str | None = None,
    node: str | None = None,
    limit: int = LIST_MAX,
) -> tuple[State, ...]:
    """The committed states of a kind that meet all conditions, the last changed first. A condition
    on a column that the kind does not have is met by none."""
    table = READ_MODELS[kind]
    wanted = {"status": status, "artifact": artifact, "node": node}
    conditions: list[ColumnElement[bool]] = []
    for name, value in wanted.items():
        if value is None:
            continue
        if name not in table.c:
            return ()
        conditions.append(table.c[name] == as_text(value))
    return await _states(engine, kind, conditions, limit=limit)


async def find_ids(
    engine: AsyncEngine, kind: AggregateKind, prefix: str, *, limit: int = 10
) -> tuple[str, ...]:
    """The ids of a kind that begin with `prefix`, in order."""
    table = READ_MODELS[kind]
    async with connecting(engine) as connection:
        found = await connection.scalars(
            select(table.c.id)
            .where(table.c.id.startswith(as_text(prefix), autoescape=True))
            .order_by(table.c.id)
            .limit(limit)
        )
        return tuple(found)


async def _states(
    engine: AsyncEngine,
    kind: AggregateKind,
    conditions: Sequence[ColumnElement[bool]],
    *,
    limit: int,
) -> tuple[State, ...]:
    table = READ_MODELS[kind]
    statement = (
        select(cast(table.c.state, Text))
        .where(*conditions)
        .order_by(table.c.seq.desc())
        .limit(max(0, min(limit, LIST_MAX)))
    )
    async with connecting(engine) as connection:
        found = await connection.scalars(statement)
        return tuple(msgspec.json.decode(state, type=STATE_TYPES[kind]) for state in found)
