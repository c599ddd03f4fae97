"""The one transaction that writes of KV blocks: events, what nodes hold, and the position move
together or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from tensorcast.controlplane.store.block_rows import Fold, Row, Speaker, holding_row, speaker_row
from tensorcast.controlplane.store.block_tables import kv_events, kv_holdings, kv_logs, kv_nodes
from tensorcast.controlplane.store.engine_block_rows import EngineFold
from tensorcast.controlplane.store.engine_block_write import write_engine_fold
from tensorcast.controlplane.store.seat import Seat, confirm_term
from tensorcast.controlplane.store.write import copy_rows, merge_rows, write_letters
from tensorcast.schema.errors import Conflict
from tensorcast.schema.ids import Seq

SEAT: Final = Seat("kv persister", 0x7463_6B76_7065)


class BlockPosition(msgspec.Struct, frozen=True):
    """How far Postgres goes, in which life of the KV log, when that was created, and the term of
    the writer that may go on from there."""

    log_epoch: int
    created: str
    seq: Seq
    term: int = 0


class BlockBatch(msgspec.Struct, frozen=True):
    """What one transaction writes: the rows of the events after `previous` up to `last`, and what
    they change. `letters` are rows of `dead_letters` for those that could not be taken."""

    previous: BlockPosition
    last: BlockPosition
    events: Sequence[Row]
    fold: Fold
    engines: EngineFold = EngineFold()
    letters: Sequence[Mapping[str, object]] = ()


async def load_block_position(connection: AsyncConnection, created: str) -> BlockPosition:
    """How far Postgres goes in the log that was made at `created`. One that it has not met before
    is a new life: its positions mean other events. Writes that down."""
    row = (
        await connection.execute(select(kv_logs).order_by(kv_logs.c.epoch.desc()).limit(1))
    ).one_or_none()
    if row is None or row.created != created:
        epoch = row.epoch + 1 if row else 1
        await connection.execute(insert(kv_logs).values(epoch=epoch, created=created, seq=0))
        position = BlockPosition(epoch, created, Seq(0))
    else:
        position = BlockPosition(row.epoch, created, Seq(row.seq))
    await connection.commit()
    return position


async def load_speakers(connection: AsyncConnection) -> dict[str, Speaker]:
    """The nodes that have spoken."""
    found = await connection.execute(select(kv_nodes))
    speakers = {row.node: Speaker(row.epoch, row.cleared_seq) for row in found}
    await connection.commit()
    return speakers


async def write_block_batch(connection: AsyncConnection, batch: BlockBatch) -> None:
    """Writes the batch, if Postgres stands exactly at its `previous`, in the same term. Raises
    Conflict when another writer has taken over or moved the position; then nothing is written."""
    async with connection.begin():
        await confirm_term(connection, SEAT, batch.previous.term)
        await _move_position(connection, batch)
        await copy_rows(connection, kv_events, batch.events)
        await _write_fold(connection, batch.fold)
        await write_engine_fold(connection, batch.engines)
        await write_letters(connection, batch.letters)


async def _move_position(connection: AsyncConnection, batch: BlockBatch) -> None:
    moved = await connection.execute(
        update(kv_logs)
        .where(kv_logs.c.epoch == batch.previous.log_epoch, kv_logs.c.seq == batch.previous.seq)
        .values(seq=batch.last.seq, updated_at=func.now())
    )
    if moved.rowcount != 1:
        raise Conflict(
            f"Postgres does not stand at KV event {batch.previous.seq} any more.",
            hint="Another persister has taken over.",
        )


async def _write_fold(connection: AsyncConnection, fold: Fold) -> None:
    if fold.cleared:
        gone = kv_holdings.c.node.in_(sorted(fold.cleared))
        await connection.execute(delete(kv_holdings).where(gone))
    speakers = [speaker_row(node, speaker) for node, speaker in fold.speakers.items()]
    await merge_rows(connection, kv_nodes, speakers)
    holdings = [holding_row(place, held) for place, held in fold.holdings.items()]
    await merge_rows(connection, kv_holdings, holdings)
