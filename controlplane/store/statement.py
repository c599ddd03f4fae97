"""A small batch in a single statement, which is a transaction by itself: one round trip.

With a few events a transaction, what costs is not the rows but the questions and answers around
them (a dozen of them, each with two processes that have to be woken). Large batches are written
step by step (`write.py`), which is faster for their rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

import asyncpg
from sqlalchemy import Dialect, Table
from sqlalchemy.dialects import postgresql

from tensorcast.controlplane.store.rows import Row
from tensorcast.controlplane.store.tables import events
from tensorcast.schema.chain import HASH_BYTES

if TYPE_CHECKING:
    from tensorcast.controlplane.store.write import Batch

KEEP: Final = "DO NOTHING"
REPLACE: Final = "DO UPDATE SET"
_DIALECT: Final[Dialect] = postgresql.dialect()  # type: ignore[no-untyped-call]  # it has no types
_MOVE: Final = f"""
WITH moved AS MATERIALIZED (
    UPDATE cursors SET log_epoch = $5, seq = $6, event_id = $7, updated_at = now()
    WHERE name = $1 AND log_epoch = $2 AND seq = $3 AND term = $4 AND room >= $6
    AND NOT EXISTS (
        SELECT FROM events JOIN unnest($9::bigint[], $10::uuid[]) AS written (seq, event_id)
        USING (seq) WHERE log_epoch = $5 AND events.event_id <> written.event_id
        AND seq > $11::bigint AND seq <= $6::bigint
    ) RETURNING name
), extended AS (
    INSERT INTO chain (log_epoch, last_seq, hashes)
    SELECT $5, $6::bigint,
        substring($8::bytea FROM ({HASH_BYTES} * greatest(have - $11::bigint, 0) + 1)::integer)
    FROM (SELECT coalesce(max(last_seq), 0) AS have FROM chain WHERE log_epoch = $5) AS chained
    WHERE have < $6::bigint AND EXISTS (SELECT FROM moved)
)"""
_FIXED: Final = 11


async def write_at_once(
    driver: asyncpg.Connection, cursor: str, batch: Batch, states: Mapping[Table, Sequence[Row]]
) -> bool:
    """Moves the cursor from the batch's `previous` to its `last`, and writes events, chain and
    states. Outside of a transaction.

    Returns False, and writes nothing, when the cursor is not there, a position has another event,
    or the partitions do not reach so far.
    """
    before, last = batch.previous, batch.last
    _, seqs, ids, *_ = zip(*batch.events, strict=True)
    fixed = (
        cursor, before.log_epoch, before.seq, before.term, last.log_epoch, last.seq, last.event_id,
        batch.hashes, seqs, ids, last.seq - len(batch.hashes) // HASH_BYTES,
    )  # fmt: skip
    tables = sorted(states, key=lambda table: table.name)
    columns = [
        column
        for rows in (batch.events, *(states[table] for table in tables))
        for column in zip(*rows, strict=True)
    ]
    moved = await driver.fetchval(_statement(tuple(tables)), *fixed, *columns)
    return bool(moved)


@cache
def _statement(tables: tuple[Table, ...]) -> str:
    parts = [_MOVE]
    number = _FIXED
    for table, action in ((events, KEEP), *((table, REPLACE) for table in tables)):
        parts.append(f", put_{table.name} AS ({_insertion(table, action, number)})")
        number += len(table.columns)
    parts.append("SELECT count(*) FROM moved")
    return "\n".join(parts)


def _insertion(table: Table, action: str, number: int) -> str:
    """Rows out of a parameter for each column, from the one after `number` on."""
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    arrays = ", ".join(
        f"${place}::{column.type.compile(_DIALECT)}[]"
        for place, column in enumerate(table.columns, number + 1)
    )
    return (
        f"INSERT INTO {table.fullname} ({names}) SELECT * FROM unnest({arrays})"
        f" WHERE EXISTS (SELECT FROM moved) {on_conflict(table, action)}"
    )


@cache
def on_conflict(table: Table, action: str) -> str:
    """What becomes of a row whose key is there already."""
    keys = ", ".join(column.name for column in table.primary_key)
    if action is REPLACE:
        names = (column.name for column in table.columns)
        action += " " + ", ".join(f'"{name}" = EXCLUDED."{name}"' for name in names)
    return f"ON CONFLICT ({keys}) {action}"
