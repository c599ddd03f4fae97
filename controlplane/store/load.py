"""From rows back to values: the whole view from the read models, or folded from the history."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec
from sqlalchemy import Text, cast, delete, or_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from tensorcast.controlplane.store.archives import hold_floor, read_old
from tensorcast.controlplane.store.cells import as_text
from tensorcast.controlplane.store.dead_letters import (
    LOG,
    letter_row,
    load_parked,
    load_refused,
)
from tensorcast.controlplane.store.gathering import Gathering, gather
from tensorcast.controlplane.store.rows import STATE_TYPES
from tensorcast.controlplane.store.snapshots import BEGINNING, open_snapshot
from tensorcast.controlplane.store.tables import READ_MODELS, cursors, dead_letters, events
from tensorcast.controlplane.store.write import (
    CURSOR,
    Position,
    driver_of,
    replace_states,
    write_letters,
)
from tensorcast.log.folding import take
from tensorcast.log.port import Stored
from tensorcast.schema.cluster import ClusterView, State, assemble
from tensorcast.schema.folds import fold_name
from tensorcast.schema.ids import Seq
from tensorcast.schema.parking import Parked, split_id

BATCH_ROWS: Final = 1000


async def load_view(connection: AsyncConnection, position: Position) -> ClusterView:
    """The view that the read models hold, with what is parked. When they follow from the fold of
    another release, all are made anew from the history first."""
    if position.fold == fold_name() or not position.seq:
        try:
            return await _read_view(connection, position)
        except msgspec.MsgspecError:
            pass
    return await rebuild(connection, position)


async def _read_view(connection: AsyncConnection, position: Position) -> ClusterView:
    states: list[State | Parked] = []
    for kind, table in READ_MODELS.items():
        decoder: msgspec.json.Decoder[State] = msgspec.json.Decoder(STATE_TYPES[kind])
        rows = await connection.stream_scalars(select(cast(table.c.state, Text)))
        async for chunk in rows.partitions(BATCH_ROWS):
            states += map(decoder.decode, chunk)
    states += (await load_parked(connection, position.log_epoch)).values()
    if position.fold is None:
        await name_fold(connection)
    await connection.commit()
    return assemble(states, at=position.seq)


async def name_fold(connection: AsyncConnection) -> None:
    """Notes that the read models follow from this release's fold, inside the caller's
    transaction."""
    await connection.execute(
        update(cursors).where(cursors.c.name == CURSOR).values(fold=fold_name())
    )


async def rebuild(connection: AsyncConnection, position: Position) -> ClusterView:
    """Makes the read models anew from the history, in one transaction; returns the view."""
    await connection.rollback()
    async with connection.begin():
        gathering = await begin_gathering(connection, position)
        await gather(await driver_of(connection), gathering, position.log_epoch, position.seq)
        await replace_states(connection, gathering.states())
        await replace_letters(connection, position.log_epoch, gathering)
        await name_fold(connection)
    return gathering.view()


async def begin_gathering(connection: AsyncConnection, position: Position) -> Gathering:
    """What a rebuild begins with, inside the caller's transaction: nothing, or what the events that
    only files have lead to: by a snapshot, else from the files. Raises NotFound when there is
    neither."""
    refused = await load_refused(connection, position.log_epoch)
    floor = await hold_floor(connection, position.log_epoch)
    if not floor:
        return Gathering(refused)
    beyond = Seq(floor - 1)
    view = await open_snapshot(connection, position.log_epoch, position.seq, beyond=beyond)
    if view is not None:
        return Gathering(refused, view)
    gathering = Gathering(refused)
    async for batch in read_old(connection, position.log_epoch, BEGINNING, floor):
        for stored in batch:
            gathering.take(stored)
    return gathering


async def replace_letters(
    connection: AsyncConnection, log_epoch: int, gathering: Gathering
) -> None:
    """Has the letters of what was gathered, and no others of the log, inside the caller's
    transaction. Of what it began with those stay that are still parked."""
    of_log = (dead_letters.c.log == LOG, dead_letters.c.log_epoch == log_epoch)
    is_new = or_(
        dead_letters.c.seq > gathering.began_at,
        tuple_(dead_letters.c.aggregate_kind, dead_letters.c.aggregate_id).not_in(
            [tuple(map(as_text, split_id(name))) for name in gathering.parked_at_first]
        ),
    )
    await connection.execute(delete(dead_letters).where(*of_log, is_new))
    letters = [letter_row(LOG, log_epoch, one) for one in gathering.letters]
    await write_letters(connection, letters)


async def read_history(
    connection: AsyncConnection, log_epoch: int, *, to_seq: Seq, after: Seq = BEGINNING
) -> AsyncIterator[tuple[Stored, ...]]:
    """The events after `after` up to `to_seq`, in order, in batches, as they lie in the log. Raises
    NotFound when some lie in an archive that cannot be read."""
    floor = await hold_floor(connection, log_epoch)
    async for batch in read_old(connection, log_epoch, after, Seq(min(floor, to_seq))):
        yield batch
    rows = await connection.stream(
        select(events.c.seq, events.c.subject, events.c.payload)
        .where(
            events.c.log_epoch == log_epoch,
            events.c.seq > max(after, floor),
            events.c.seq <= to_seq,
        )
        .order_by(events.c.seq)
    )
    async for chunk in rows.partitions(BATCH_ROWS):
        yield tuple(Stored(seq, subject, payload) for seq, subject, payload in chunk)


def fold(view: ClusterView, batch: tuple[Stored, ...]) -> ClusterView:
    """The view after these events; what cannot be taken is parked."""
    for stored in batch:
        view, _ = take(view, stored)
    return view


def all_states(view: ClusterView) -> list[State]:
    """The states of all aggregates of a view."""
    maps = (
        view.artifacts,
        view.keys,
        view.replicas,
        view.operations,
        view.nodes,
        view.leases,
        view.engines,
        view.signals,
        view.plans,
        view.namespaces,
        view.policies,
    )
    return [state for states in maps for state in states.values()]
