"""The events that a projection could not take: which they are, and how they are tried again.

The read models are those of the fold with what is parked in it (`schema/parking.py`); the table
lists each parked event. An event that Postgres itself refuses to have in a read model is parked in
the same way. What is about one thing follows from the events of that thing alone, so to try again
is to fold those: the result is what a rebuild gives.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec
from immutables import Map
from sqlalchemy import ColumnElement, and_, delete, exists, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from tensorcast.controlplane.store.archive_queries import search_aggregate
from tensorcast.controlplane.store.archives import find_segments, hold_floor
from tensorcast.controlplane.store.block_tables import kv_nodes
from tensorcast.controlplane.store.cells import as_text
from tensorcast.controlplane.store.engine import brief
from tensorcast.controlplane.store.rows import UNREADABLE, find_state, read_event
from tensorcast.controlplane.store.seat import confirm_term
from tensorcast.controlplane.store.tables import dead_letters, events
from tensorcast.controlplane.store.write import (
    REFUSALS,
    SEAT,
    Position,
    is_data_refusal,
    write_letters,
    write_states,
)
from tensorcast.log.folding import Folding, take
from tensorcast.log.port import Stored
from tensorcast.schema.cluster import ClusterView, park, project, release
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import Corrupt, InvalidArgument, NotFound
from tensorcast.schema.events import UnknownEvent, aggregate_of
from tensorcast.schema.ids import Seq
from tensorcast.schema.parking import NO_EVENT, Parked, parked_id, split_id, subject_id

LOG: Final = "log"
KV: Final = "kv"
_BATCH_ROWS: Final = 1000
_logger = logging.getLogger(__name__)


class Fault(StrEnum):
    """Why an event is parked: nobody can read it, the fold cannot take it, it is about something
    that stands still, or Postgres refuses what follows from it."""

    UNREADABLE = "unreadable"
    FOLD = "fold"
    FOLLOWS = "follows"
    POSTGRES = "postgres"


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """A parked event, and the thing that it is about."""

    seq: Seq
    name: str
    type: str
    fault: Fault
    reason: str


Refused = Mapping[Seq, str]
"""Events that Postgres has refused to have in a read model, and what it said."""
NOTHING_REFUSED: Final[Refused] = {}


def take_recorded(
    view: ClusterView,
    stored: Stored,
    recorded: Recorded,
    refused: Refused,
    folding: Folding | None = None,
) -> tuple[ClusterView, Letter | None]:
    """The view after an event, and its letter when it is parked. Pure."""
    before, seq = view.skipped, stored.seq
    if seq in refused:
        name = name_of(stored, recorded)
        is_behind = name in view.parked
        after = park(view, seq, name, refused[seq])
        fault = Fault.FOLLOWS if is_behind else Fault.POSTGRES
        return after, _letter(after, name, seq, recorded, fault)
    if recorded.type == UNREADABLE and not recorded.v:
        name = subject_id(stored.subject)
        after = park(view, seq, name, NO_EVENT)
        return after, _letter(after, name, seq, recorded, Fault.UNREADABLE)
    after = folding.project(view, stored, recorded) if folding else project(view, recorded)
    if after.skipped == before:
        return after, None
    name = name_of(stored, recorded)
    fault = Fault.FOLLOWS if after.parked[name].first != seq else Fault.FOLD
    return after, _letter(after, name, seq, recorded, fault)


def name_of(stored: Stored, recorded: Recorded) -> str:
    """The id under which the thing that an event is about is parked."""
    if isinstance(recorded.event, UnknownEvent):
        return subject_id(stored.subject)
    return parked_id(*aggregate_of(recorded.event))


def _letter(view: ClusterView, name: str, seq: Seq, recorded: Recorded, fault: Fault) -> Letter:
    held = view.parked[name]
    reason = held.reason if held.first == seq else f"it waits for event {held.first}"
    return Letter(seq=seq, name=name, type=recorded.type, fault=fault, reason=reason)


# ---- the table -------------------------------------------------------------------------------


def letter_row(log: str, log_epoch: int, one: Letter) -> Mapping[str, object]:
    """A row of the table."""
    kind, aggregate_id = split_id(one.name)
    return {
        "log": log,
        "log_epoch": log_epoch,
        "seq": one.seq,
        "aggregate_kind": as_text(kind),
        "aggregate_id": as_text(aggregate_id),
        "type": as_text(one.type),
        "fault": one.fault.value,
        "reason": as_text(one.reason),
    }


async def load_parked(connection: AsyncConnection, log_epoch: int) -> Map[str, Parked]:
    """What the log's letters say is parked."""
    found = await connection.execute(
        select(
            dead_letters.c.seq,
            dead_letters.c.aggregate_kind,
            dead_letters.c.aggregate_id,
            dead_letters.c.reason,
        )
        .where(dead_letters.c.log == LOG, dead_letters.c.log_epoch == log_epoch)
        .order_by(dead_letters.c.seq)
    )
    parked: dict[str, Parked] = {}
    for seq, kind, aggregate_id, reason in found:
        name = parked_id(kind, aggregate_id)
        before = parked.get(name)
        parked[name] = (
            Parked(id=name, version=Seq(seq), first=Seq(seq), events=1, reason=reason)
            if before is None
            else msgspec.structs.replace(before, version=Seq(seq), events=before.events + 1)
        )
    return Map(parked)


async def load_refused(connection: AsyncConnection, log_epoch: int) -> Refused:
    """What Postgres has refused, and has not taken since."""
    found = await connection.execute(
        select(dead_letters.c.seq, dead_letters.c.reason).where(
            dead_letters.c.log == LOG,
            dead_letters.c.log_epoch == log_epoch,
            dead_letters.c.fault == Fault.POSTGRES.value,
        )
    )
    return {Seq(seq): reason for seq, reason in found}


async def is_retry_wanted(connection: AsyncConnection, log: str) -> bool:
    """Whether somebody asked to try again."""
    statement = select(dead_letters.c.seq).where(
        dead_letters.c.log == log, dead_letters.c.wanted_at.is_not(None)
    )
    found = await connection.scalar(statement.limit(1))
    await connection.commit()
    return found is not None


# ---- trying again ----------------------------------------------------------------------------


async def retry_parked(
    connection: AsyncConnection, view: ClusterView, position: Position
) -> ClusterView:
    """Tries all that is parked again, thing by thing, each in a transaction; the view after that.
    Raises Conflict when the writer's term is over."""
    for name in sorted(view.parked):
        await connection.rollback()
        async with connection.begin():
            await confirm_term(connection, SEAT, position.term)
            view = await _retry_one(connection, view, position, name)
    return view


async def _retry_one(
    connection: AsyncConnection, view: ClusterView, position: Position, name: str
) -> ClusterView:
    kind, aggregate_id = split_id(name)
    alone, letters = ClusterView(), list[Letter]()
    try:
        async for stored in _events_of(connection, position, kind, aggregate_id):
            recorded = read_event(stored, datetime.min)
            alone, letter = take_recorded(alone, stored, recorded, NOTHING_REFUSED)
            letters += [letter] if letter is not None and letter.name == name else []
    except (NotFound, Corrupt, InvalidArgument) as error:  # of its events, some are in an archive
        _logger.error("%s stays parked: %s", name, error)
        await _note_try(connection, position, kind, aggregate_id)
        return view
    state = find_state(alone, kind, aggregate_id)
    try:
        async with connection.begin_nested():
            await write_states(connection, [] if state is None else [state])
    except REFUSALS as error:
        if not is_data_refusal(error):
            raise
        _logger.error("%s stays parked: Postgres refuses it: %s", name, brief(error))
        await _note_try(connection, position, kind, aggregate_id)
        return view
    held = alone.parked.get(name)
    if held == view.parked[name]:
        await _note_try(connection, position, kind, aggregate_id)
        return view
    await connection.execute(delete(dead_letters).where(*_is_about(position, kind, aggregate_id)))
    rows = [letter_row(LOG, position.log_epoch, one) for one in letters]
    await write_letters(connection, rows)
    view = release(view, name, state)
    if held is None:
        _logger.warning("%s goes on: what was parked of it is taken", name)
        return view
    return _hold(view, name, held)


async def refold(connection: AsyncConnection, view: ClusterView, log_epoch: int) -> ClusterView:
    """A view with all that stands still in it as this release's fold has it, from the events of
    each thing alone: another release may have been at a loss. What cannot be read stays."""
    position = Position(log_epoch, view.at, None)
    for name in sorted(view.parked):
        kind, aggregate_id = split_id(name)
        alone = ClusterView()
        try:
            async for stored in _events_of(connection, position, kind, aggregate_id):
                alone, _ = take(alone, stored)
        except (NotFound, Corrupt, InvalidArgument) as error:
            _logger.warning("%s stays parked: %s", name, error)
            continue
        held = alone.parked.get(name)
        view = release(view, name, find_state(alone, kind, aggregate_id))
        if held is not None:
            view = _hold(view, name, held)
    return view


def _hold(view: ClusterView, name: str, held: Parked) -> ClusterView:
    return msgspec.structs.replace(
        view, parked=view.parked.set(name, held), skipped=view.skipped + held.events
    )


async def _events_of(
    connection: AsyncConnection, position: Position, kind: str, aggregate_id: str
) -> AsyncIterator[Stored]:
    after = await hold_floor(connection, position.log_epoch)
    if after:
        segments = await find_segments(connection, position.log_epoch, 1, after)
        names = (as_text(kind), as_text(aggregate_id))
        for one in await asyncio.to_thread(search_aggregate, segments, *names):
            yield one
    while True:
        rows = await connection.execute(
            select(events.c.seq, events.c.subject, events.c.payload)
            .where(
                events.c.log_epoch == position.log_epoch,
                events.c.aggregate_kind == as_text(kind),
                events.c.aggregate_id == as_text(aggregate_id),
                events.c.seq > after,
                events.c.seq <= position.seq,
            )
            .order_by(events.c.seq)
            .limit(_BATCH_ROWS)
        )
        batch = [Stored(seq, subject, payload) for seq, subject, payload in rows]
        for one in batch:
            yield one
        if len(batch) < _BATCH_ROWS:
            return
        after = batch[-1].seq


async def _note_try(
    connection: AsyncConnection, position: Position, kind: str, aggregate_id: str
) -> None:
    await connection.execute(
        update(dead_letters)
        .where(*_is_about(position, kind, aggregate_id))
        .values(tried_at=func.now(), wanted_at=None)
    )


def _is_about(position: Position, kind: str, aggregate_id: str) -> tuple[ColumnElement[bool], ...]:
    return (
        dead_letters.c.log == LOG,
        dead_letters.c.log_epoch == position.log_epoch,
        dead_letters.c.aggregate_kind == as_text(kind),
        dead_letters.c.aggregate_id == as_text(aggregate_id),
    )


async def forget_told_anew(connection: AsyncConnection, log_epoch: int, first: Seq) -> None:
    """Takes away the letters of the KV log that make no difference any more: the log itself has
    forgotten the event (its first one is `first`), it is another log now, or the node has begun
    anew since. The others stay until one of these happens: nobody can apply an old event to what
    is held now."""
    is_old = or_(dead_letters.c.log_epoch < log_epoch, dead_letters.c.seq < first)
    is_anew = (
        exists()
        .where(kv_nodes.c.node == dead_letters.c.aggregate_id)
        .where(kv_nodes.c.cleared_seq > dead_letters.c.seq)
    )
    of_node = and_(dead_letters.c.aggregate_kind == "node", is_anew)
    await connection.execute(
        delete(dead_letters).where(dead_letters.c.log == KV, or_(is_old, of_node))
    )
    await connection.execute(
        update(dead_letters)
        .where(dead_letters.c.log == KV)
        .values(tried_at=func.now(), wanted_at=None)
    )
    await connection.commit()
