"""How far the history in Postgres goes, and its rows as they were published."""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from tensorcast.controlplane.store.archives import hold_floor, read_old
from tensorcast.controlplane.store.chain import find_hash
from tensorcast.controlplane.store.verification import load_hashes
from tensorcast.controlplane.store.write import CURSOR
from tensorcast.log.port import Stored
from tensorcast.schema.api_audit import (
    PLAIN_BYTES_MAX,
    ROWS_BYTES_MAX,
    ROWS_MAX,
    HashQuery,
    Life,
    RawEvent,
    RowsPage,
    RowsQuery,
    VerifySpan,
    pack,
)
from tensorcast.schema.chain import HASH_BYTES
from tensorcast.schema.ids import Seq

# All in one statement, so that a writer at work cannot come between. Each `lives` step is one look
# at an index.
_LIVES: Final = text(
    """
WITH RECURSIVE of_events AS (
    SELECT min(log_epoch) AS log_epoch FROM events
    UNION ALL
    SELECT (SELECT min(log_epoch) FROM events WHERE log_epoch > of_events.log_epoch)
    FROM of_events WHERE of_events.log_epoch IS NOT NULL
), lives AS (
    SELECT log_epoch FROM of_events WHERE log_epoch IS NOT NULL
    UNION SELECT DISTINCT log_epoch FROM chain
    UNION SELECT log_epoch FROM cursors WHERE name = :cursor AND seq > 0
)
SELECT log_epoch, greatest(
    (SELECT max(seq) FROM events WHERE events.log_epoch = lives.log_epoch),
    (SELECT max(last_seq) FROM chain WHERE chain.log_epoch = lives.log_epoch),
    (SELECT seq FROM cursors WHERE name = :cursor AND cursors.log_epoch = lives.log_epoch)
) AS last, (SELECT min(seq) FROM events WHERE events.log_epoch = lives.log_epoch) AS first
FROM lives ORDER BY log_epoch
"""
)
_ROWS: Final = text(
    "SELECT seq, subject, payload FROM ("
    "SELECT *, sum(length(payload) + length(subject)) OVER (ORDER BY seq) AS size_bytes FROM ("
    "SELECT seq, subject, payload FROM events WHERE log_epoch = :epoch AND seq > :after"
    " AND seq <= :last ORDER BY seq LIMIT :limit) AS picked) AS sized"
    " WHERE size_bytes <= :bytes_max OR seq = :after + 1 ORDER BY seq"
)


async def read_lives(connection: AsyncConnection) -> tuple[Life, ...]:
    """Each life of the log with its last position, whichever of events, chain and cursor has it. An
    event before position 1 makes the life begin there."""
    rows = await connection.execute(_LIVES, {"cursor": CURSOR})
    return tuple(
        Life(log_epoch=epoch, first=Seq(1 if first is None else min(1, first)), last=Seq(last))
        for epoch, last, first in rows
    )


async def read_hashes(connection: AsyncConnection, query: HashQuery) -> tuple[str | None, ...]:
    """The hashes of some events, None for those that the chain does not have."""
    found = [await find_hash(connection, query.log_epoch, seq) for seq in query.seqs]
    return tuple(None if one is None else one.hex() for one in found)


async def read_rows(connection: AsyncConnection, query: RowsQuery) -> RowsPage:
    """The next rows, as many as an answer carries; at least one when there is one."""
    values = {
        "epoch": query.log_epoch,
        "after": query.after,
        "last": query.last,
        "limit": ROWS_MAX,
        "bytes_max": ROWS_BYTES_MAX,
    }
    floor = await hold_floor(connection, query.log_epoch)
    if query.after < floor:
        rows = await _read_old_rows(connection, query, floor)
    else:
        found = await connection.execute(_ROWS, values)
        rows = [Stored(Seq(seq), subject, payload) for seq, subject, payload in found]
    previous = await find_hash(connection, query.log_epoch, query.after)
    if not rows:
        return RowsPage(previous="", events=())
    first, last = Seq(query.after + 1), rows[-1].seq
    span = VerifySpan(log_epoch=query.log_epoch, first=first, last=last)
    hashes = (await load_hashes(connection, span)).hex()
    size = 2 * HASH_BYTES
    events = tuple(
        RawEvent(
            log_epoch=query.log_epoch,
            seq=row.seq,
            subject=row.subject,
            payload=b"" if len(row.payload) > PLAIN_BYTES_MAX else row.payload,
            packed=pack(row.payload) if len(row.payload) > PLAIN_BYTES_MAX else b"",
            hash=hashes[size * (row.seq - first) : size * (row.seq - first + 1)],
        )
        for row in rows
    )
    return RowsPage(previous=previous.hex() if previous else "", events=events)


async def _read_old_rows(connection: AsyncConnection, query: RowsQuery, floor: Seq) -> list[Stored]:
    """The same from files."""
    rows: list[Stored] = []
    size_bytes = 0
    last = Seq(min(floor, query.last))
    async with aclosing(read_old(connection, query.log_epoch, query.after, last)) as batches:
        async for batch in batches:
            for one in batch:
                size_bytes += len(one.payload) + len(one.subject)
                if rows and (size_bytes > ROWS_BYTES_MAX or len(rows) == ROWS_MAX):
                    return rows
                rows.append(one)
    return rows
