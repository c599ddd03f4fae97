"""From rows back to values: the whole view from the read models, or folded from the history."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec
from sqlalchemy import Text, cast, select
from sqlalchemy.ext.asyncio import AsyncConnection

from tensorcast.controlplane.store.rows import STATE_TYPES
from tensorcast.controlplane.store.tables import READ_MODELS, events
from tensorcast.controlplane.store.write import Position, replace_states
from tensorcast.log.port import Stored
from tensorcast.schema.cluster import ClusterView, State, place, project
from tensorcast.schema.codec import decode
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.ids import Seq

BATCH_ROWS: Final = 1000
BEGINNING: Final = Seq(0)


async def load_view(connection: AsyncConnection, position: Position) -> ClusterView:
    """The view that the read models hold. When one of them was written by a release that kept
    other things, all are made anew from the history first."""
    try:
        view = await _read_view(connection)
    except msgspec.MsgspecError:
        return await rebuild(connection, position)
    return msgspec.structs.replace(view, at=position.seq)


async def _read_view(connection: AsyncConnection) -> ClusterView:
    view = ClusterView()
    for kind, table in READ_MODELS.items():
        decoder: msgspec.json.Decoder[State] = msgspec.json.Decoder(STATE_TYPES[kind])
        rows = await connection.stream_scalars(select(cast(table.c.state, Text)))
        async for chunk in rows.partitions(BATCH_ROWS):
            for state in chunk:
                view = place(view, decoder.decode(state))
    await connection.commit()
    return view


async def rebuild(connection: AsyncConnection, position: Position) -> ClusterView:
    """Makes the read models anew from the history, in one transaction; returns the view."""
    view = ClusterView()
    await connection.rollback()
    async with connection.begin():
        async for batch in read_history(connection, position.log_epoch, to_seq=position.seq):
            view = fold(view, batch)
        await replace_states(connection, all_states(view))
    return msgspec.structs.replace(view, at=position.seq)


async def read_history(
    connection: AsyncConnection, log_epoch: int, *, to_seq: Seq, after: Seq = BEGINNING
) -> AsyncIterator[tuple[Stored, ...]]:
    """The events after `after` up to `to_seq`, in order, in batches, as they lie in the log."""
    rows = await connection.stream(
        select(events.c.seq, events.c.subject, events.c.payload)
        .where(events.c.log_epoch == log_epoch, events.c.seq > after, events.c.seq <= to_seq)
        .order_by(events.c.seq)
    )
    async for chunk in rows.partitions(BATCH_ROWS):
        yield tuple(Stored(seq, subject, payload) for seq, subject, payload in chunk)


def fold(view: ClusterView, batch: tuple[Stored, ...]) -> ClusterView:
    """The view after these events; one that cannot be read is counted and skipped."""
    for stored in batch:
        try:
            view = project(view, decode(stored.payload, stored.seq))
        except Corrupt:
            view = msgspec.structs.replace(view, at=stored.seq, skipped=view.skipped + 1)
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
    )
    return [state for states in maps for state in states.values()]
