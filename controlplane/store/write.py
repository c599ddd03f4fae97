"""The one transaction that writes: events, read models and the position move together or not at
all. So each event is there exactly once, whatever is killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, cast
from uuid import UUID

import asyncpg
import msgspec
from sqlalchemy import Table, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from tensorcast.controlplane.settings import PARTITION_EVENTS
from tensorcast.controlplane.store.partitions import make_room
from tensorcast.controlplane.store.rows import Row, kind_of_state, state_row
from tensorcast.controlplane.store.seat import FIRST_EPOCH, Seat
from tensorcast.controlplane.store.statement import KEEP, REPLACE, on_conflict, write_at_once
from tensorcast.controlplane.store.tables import READ_MODELS, cursors, dead_letters, events
from tensorcast.schema.chain import HASH_BYTES
from tensorcast.schema.cluster import State
from tensorcast.schema.errors import Conflict, Corrupt
from tensorcast.schema.events import AggregateKind
from tensorcast.schema.ids import Seq

CURSOR: Final = "persister"
SEAT: Final = Seat(CURSOR, 0x7463_7065_7273)


class Position(msgspec.Struct, frozen=True):
    """How far Postgres goes: the last event it has, in which life of the log, the term of the
    writer that may go on from there, and the fold that the read models follow from."""

    log_epoch: int
    seq: Seq
    event_id: UUID | None
    term: int = 0
    fold: str | None = None


class Batch(msgspec.Struct, frozen=True):
    """What one transaction writes: the rows of the events after `previous` up to `last`, the
    states that they changed, their hashes in the chain, end to end, and the letters of those that
    are parked, as rows of `dead_letters`."""

    previous: Position
    last: Position
    events: Sequence[Row]
    states: Sequence[State]
    hashes: bytes
    letters: Sequence[Mapping[str, object]] = ()


async def load_position(connection: AsyncConnection) -> Position:
    """How far Postgres goes; made with nothing in it when there is no position yet."""
    await connection.execute(
        insert(cursors)
        .values(name=CURSOR, log_epoch=FIRST_EPOCH, seq=0)
        .on_conflict_do_nothing(index_elements=["name"])
    )
    found = await connection.execute(
        select(
            cursors.c.log_epoch,
            cursors.c.seq,
            cursors.c.event_id,
            cursors.c.term,
            cursors.c.fold,
        ).where(cursors.c.name == CURSOR)
    )
    row = found.one()
    await connection.commit()
    return Position(row.log_epoch, Seq(row.seq), row.event_id, row.term, row.fold)


async def write_batch(
    connection: AsyncConnection, batch: Batch, *, partition_events: int = PARTITION_EVENTS
) -> None:
    """Writes the batch, if Postgres stands exactly at its `previous`, in the same term; makes the
    partitions of `partition_events` that it needs.

    Raises Conflict when another writer has taken over or moved the position, Corrupt when another
    event has one of these positions already; then nothing is written.
    """
    if await _write_small(connection, batch):
        return
    async with connection.begin():
        room = await _move_position(connection, batch)
        if batch.last.seq > room:
            await make_room(
                connection, CURSOR, batch.last.log_epoch, batch.last.seq, partition_events
            )
        await _merge(connection, events, batch.events, KEEP)
        await _finish(connection, batch)
        await write_states(connection, batch.states)
        await write_letters(connection, batch.letters)


async def _write_small(connection: AsyncConnection, batch: Batch) -> bool:
    """Writes a batch of a few events, if nothing is in its way. Returns whether it did; if not,
    nothing is written."""
    is_small = 0 < len(batch.events) <= _DIRECT_ROWS_MAX and not batch.letters
    payloads = (cast("bytes", row[-1]) for row in batch.events)
    if not is_small or sum(map(len, payloads)) > _DIRECT_BYTES_MAX or connection.in_transaction():
        return False
    states = {READ_MODELS[kind]: rows for kind, rows in _rows_by_kind(batch.states).items()}
    return await write_at_once(await driver_of(connection), CURSOR, batch, states)


async def write_letters(
    connection: AsyncConnection, letters: Sequence[Mapping[str, object]]
) -> None:
    """Adds rows of `dead_letters`, inside the caller's transaction."""
    if letters:
        await connection.execute(insert(dead_letters).on_conflict_do_nothing(), list(letters))


REFUSALS: Final = (DBAPIError, asyncpg.PostgresError)
_DATA_REFUSALS: Final = frozenset({"22", "23", "54"})
"""Classes of SQLSTATE: a value that cannot be, a constraint, a limit of the program."""


def is_data_refusal(error: Exception) -> bool:
    """Whether Postgres refuses a value or a row, whoever writes it and whenever."""
    origin = error.orig if isinstance(error, DBAPIError) else error
    return str(getattr(origin, "sqlstate", ""))[:2] in _DATA_REFUSALS


async def _move_position(connection: AsyncConnection, batch: Batch) -> int:
    """Returns how far the partitions reach."""
    moved = await connection.execute(
        update(cursors)
        .where(
            cursors.c.name == CURSOR,
            cursors.c.seq == batch.previous.seq,
            cursors.c.log_epoch == batch.previous.log_epoch,
            cursors.c.term == batch.previous.term,
        )
        .values(
            log_epoch=batch.last.log_epoch,
            seq=batch.last.seq,
            event_id=batch.last.event_id,
            updated_at=func.now(),
        )
        .returning(cursors.c.room)
    )
    room: int | None = moved.scalar_one_or_none()
    if room is None:
        raise Conflict(
            f"Postgres does not stand at event {batch.previous.seq} of term"
            f" {batch.previous.term} any more.",
            hint="Another persister has taken over.",
        )
    return room


async def write_states(connection: AsyncConnection, states: Iterable[State]) -> None:
    """Brings the read models to these states, inside the caller's transaction."""
    for kind, rows in _rows_by_kind(states).items():
        await _merge(connection, READ_MODELS[kind], rows, REPLACE)


def _rows_by_kind(states: Iterable[State]) -> dict[AggregateKind, list[Row]]:
    rows: dict[AggregateKind, list[Row]] = {}
    for state in states:
        rows.setdefault(kind_of_state(state), []).append(state_row(state))
    return rows


async def replace_states(connection: AsyncConnection, states: Iterable[State]) -> None:
    """Has these states, and no others, in the read models, inside the caller's transaction."""
    names = ", ".join(table.name for table in READ_MODELS.values())
    await connection.execute(text(f"TRUNCATE {names}"))
    for kind, rows in _rows_by_kind(states).items():
        await copy_rows(connection, READ_MODELS[kind], rows)


async def merge_rows(connection: AsyncConnection, table: Table, rows: Sequence[Row]) -> None:
    """Puts rows into a table, each in the place of the one with its key, inside the caller's
    transaction, which a statement has begun."""
    await _merge(connection, table, rows, REPLACE)


async def copy_rows(connection: AsyncConnection, table: Table, rows: Sequence[Row]) -> None:
    """Adds rows that are not there yet, inside the caller's transaction, which a statement has
    begun."""
    driver = await driver_of(connection)
    columns = [column.name for column in table.columns]
    await driver.copy_records_to_table(table.name, columns=columns, records=rows)


_DIRECT_ROWS_MAX: Final = 64
"""So many rows are inserted one by one in a single round trip; more go through a stage."""
_DIRECT_BYTES_MAX: Final = 4 << 20
"""Payloads of so many bytes are written in a single statement: a message has limits."""


async def _merge(
    connection: AsyncConnection, table: Table, rows: Sequence[Row], action: str
) -> None:
    """Puts rows into a table that may have them already. Many are copied to a stage and from there
    into the table: for them that is the fastest way."""
    if not rows:
        return
    driver = await driver_of(connection)
    columns = [column.name for column in table.columns]
    names = ", ".join(f'"{name}"' for name in columns)
    conflict = on_conflict(table, action)
    if len(rows) <= _DIRECT_ROWS_MAX:
        values = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
        insertion = f"INSERT INTO {table.fullname} ({names}) VALUES ({values}) {conflict}"
        await driver.executemany(insertion, rows)
        return
    stage, like = f"staged_{table.name}", f"LIKE {table.fullname}"
    await connection.execute(
        text(f"CREATE TEMP TABLE IF NOT EXISTS {stage} ({like}) ON COMMIT DELETE ROWS")
    )
    await driver.copy_records_to_table(stage, schema_name="pg_temp", columns=columns, records=rows)
    await driver.execute(
        f"INSERT INTO {table.fullname} ({names}) SELECT {names} FROM pg_temp.{stage} {conflict}"
    )


async def driver_of(connection: AsyncConnection) -> asyncpg.Connection:
    """The driver's own connection. To write in a transaction a statement must have begun it
    before."""
    raw = await connection.get_raw_connection()
    return cast("asyncpg.Connection", raw.driver_connection)


_FINISH: Final = f"""
WITH extended AS (
    INSERT INTO chain (log_epoch, last_seq, hashes)
    SELECT $1, $4::bigint,
        substring($5::bytea FROM ({HASH_BYTES} * greatest(have - $6::bigint, 0) + 1)::integer)
    FROM (SELECT coalesce(max(last_seq), 0) AS have FROM chain WHERE log_epoch = $1) AS chained
    WHERE have < $4::bigint
)
SELECT min(seq) FROM events JOIN unnest($2::bigint[], $3::uuid[]) AS written (seq, event_id)
USING (seq) WHERE log_epoch = $1 AND events.event_id <> written.event_id
AND seq > $6::bigint AND seq <= $4::bigint
"""


async def _finish(connection: AsyncConnection, batch: Batch) -> None:
    """Adds the hashes that the chain does not have yet (all, unless the position was set back), and
    looks whether the events are those that are there."""
    if not batch.events:
        return
    driver = await driver_of(connection)
    _, seqs, ids, *_ = zip(*batch.events, strict=True)
    last = batch.last
    before = last.seq - len(batch.hashes) // HASH_BYTES
    other = await driver.fetchval(
        _FINISH, last.log_epoch, seqs, ids, last.seq, batch.hashes, before
    )
    if other is not None:
        raise Corrupt(
            f"Postgres has another event at position {other} than the log.",
            hint="Do these two belong to one cluster? Give the control plane the right database.",
        )
