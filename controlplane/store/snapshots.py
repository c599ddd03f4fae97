"""Snapshots of the fold in Postgres: each layer with its parts, written whole or not at all.

What is read is never believed: a layer counts only if it is of this release's fold, its digest
vouches for every byte, it follows on the layer before, and the history has the event after which it
was made. One that does not is passed over, and the moment opens by an earlier one.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Sequence
from datetime import datetime
from itertools import chain as joined
from typing import Final

import msgspec
from sqlalchemy import ColumnElement, RowMapping, Table, delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from tensorcast.controlplane.core.snapshots import Layer, chain, digest, unpack
from tensorcast.controlplane.store.archives import hold_floor, read_old
from tensorcast.controlplane.store.cells import as_uuid
from tensorcast.controlplane.store.rows import read_event
from tensorcast.controlplane.store.tables import events, snapshot_parts, snapshots
from tensorcast.schema.cluster import ClusterView, assemble
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.folds import fold_name
from tensorcast.schema.ids import Seq

BEGINNING: Final = Seq(0)
_logger = logging.getLogger(__name__)


async def write_layer(connection: AsyncConnection, layer: Layer, parts: Sequence[bytes]) -> None:
    """Writes a layer in a transaction of its own. Raises sqlalchemy.exc.IntegrityError when its
    number is taken."""
    kept = {name: getattr(layer, name) for name in ("fold", "log_epoch", "number")}
    await connection.rollback()
    async with connection.begin():
        row = msgspec.structs.asdict(layer) | {"event_id": as_uuid(layer.event_id)}
        await connection.execute(insert(snapshots).values(row | {"digest": digest(layer, parts)}))
        for number, part in enumerate(parts):
            await connection.execute(
                insert(snapshot_parts).values(kept | {"part": number, "payload": part})
            )


async def last_layer(
    connection: AsyncConnection, log_epoch: int, to_seq: Seq | None = None
) -> Layer | None:
    """The newest layer of this release's fold, or the newest at or before event `to_seq`."""
    conditions = [snapshots.c.fold == fold_name(), snapshots.c.log_epoch == log_epoch]
    if to_seq is not None:
        conditions.append(snapshots.c.seq <= to_seq)
    found = await connection.execute(
        select(*_COLUMNS).where(*conditions).order_by(snapshots.c.number.desc()).limit(1)
    )
    row = found.one_or_none()
    return None if row is None else _layer(row._mapping)


async def layer_of(connection: AsyncConnection, log_epoch: int, number: int) -> Layer:
    """Layer `number`, without its parts. Raises Corrupt when it is not there."""
    wanted = select(*_COLUMNS).where(*_is(snapshots, log_epoch, number))
    row = (await connection.execute(wanted)).one_or_none()
    if row is None:
        raise Corrupt(f"Snapshot {number} is not there.")
    return _layer(row._mapping)


async def event_id_at(connection: AsyncConnection, log_epoch: int, seq: Seq) -> str:
    """The id of the event at a position of the history. Raises Corrupt when there is none, NotFound
    when it lies in an archive that cannot be read."""
    found = await connection.scalar(
        select(events.c.event_id).where(events.c.log_epoch == log_epoch, events.c.seq == seq)
    )
    if found is None and seq <= await hold_floor(connection, log_epoch):
        async for batch in read_old(connection, log_epoch, Seq(seq - 1), seq):
            found = as_uuid(read_event(batch[0], datetime.min).id)
    if found is None:
        raise Corrupt(f"The history has no event {seq}.")
    return str(found)


async def forget_other_folds(connection: AsyncConnection) -> int:
    """Drops the layers that another release's fold made; tells how many they were."""
    async with connection.begin():
        for table in (snapshot_parts, snapshots):
            found = await connection.execute(delete(table).where(table.c.fold != fold_name()))
    return int(found.rowcount)


async def forget_from(connection: AsyncConnection, log_epoch: int, number: int) -> None:
    """Drops layer `number` and all after it: they are made anew."""
    await connection.rollback()
    async with connection.begin():
        for table in (snapshot_parts, snapshots):
            await connection.execute(
                delete(table).where(
                    table.c.fold == fold_name(),
                    table.c.log_epoch == log_epoch,
                    table.c.number >= number,
                )
            )


async def find_bad(connection: AsyncConnection, log_epoch: int) -> int | None:
    """The first layer that is not to be believed, or that is missing; None when all are good."""
    last = await last_layer(connection, log_epoch)
    for number in range(1, last.number + 1 if last else 1):
        try:
            await _read_layer(connection, log_epoch, number)
        except Corrupt as error:
            _logger.warning("%s", error)
            return number
    return None


async def open_snapshot(
    connection: AsyncConnection, log_epoch: int, to_seq: Seq, beyond: Seq = BEGINNING
) -> ClusterView | None:
    """The view of the newest good snapshot at or before event `to_seq`; None when there is none
    after event `beyond`."""
    last = await last_layer(connection, log_epoch, to_seq)
    number = last.number if last is not None and last.seq > beyond else 0
    while number > 0:
        parts: list[bytes] = []
        layer, before = None, Seq(0)
        try:
            for one in chain(number):
                layer, found = await _read_layer(connection, log_epoch, one)
                if layer.after != before:
                    raise Corrupt(f"Snapshot {one} does not follow on the one before.")
                before = layer.seq
                parts += found
            assert layer is not None
            if layer.seq <= beyond:
                return None
            return await asyncio.to_thread(_build, layer, parts)
        except Corrupt as error:
            _logger.warning("%s It is passed over.", error)
            number = one - 1
    return None


def _build(layer: Layer, parts: Sequence[bytes]) -> ClusterView:
    """The view, without the garbage collector: nothing of what comes to be here is garbage, and to
    look through it again and again takes longer than to read it."""
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        states = joined.from_iterable(unpack(part) for part in parts)
        return assemble(states, at=layer.seq)
    finally:
        if is_collecting:
            gc.enable()


async def _read_layer(
    connection: AsyncConnection, log_epoch: int, number: int
) -> tuple[Layer, list[bytes]]:
    """A layer and its parts. Raises Corrupt for one that is not there or not to be believed."""
    wanted = select(*_COLUMNS, snapshots.c.digest).where(*_is(snapshots, log_epoch, number))
    row = (await connection.execute(wanted)).one_or_none()
    if row is None:
        raise Corrupt(f"Snapshot {number} is not there.")
    layer = _layer(row._mapping)
    payloads = select(snapshot_parts.c.payload).where(*_is(snapshot_parts, log_epoch, number))
    parts = list(await connection.scalars(payloads.order_by(snapshot_parts.c.part)))
    vouched = await asyncio.to_thread(digest, layer, parts)
    if vouched != row.digest or len(parts) != layer.parts:
        raise Corrupt(f"Snapshot {number} is not as it was written.")
    if layer.seq <= await hold_floor(connection, log_epoch):
        return layer, parts  # it was compared before its event went
    if await event_id_at(connection, log_epoch, layer.seq) != layer.event_id:
        raise Corrupt(f"Snapshot {number} is of another history.")
    return layer, parts


def _is(table: Table, log_epoch: int, number: int) -> tuple[ColumnElement[bool], ...]:
    return (
        table.c.fold == fold_name(),
        table.c.log_epoch == log_epoch,
        table.c.number == number,
    )


_COLUMNS: Final = [snapshots.c[name] for name in Layer.__struct_fields__]


def _layer(row: RowMapping) -> Layer:
    found = {name: row[name] for name in Layer.__struct_fields__}
    return msgspec.convert(found | {"event_id": str(found["event_id"])}, Layer)
