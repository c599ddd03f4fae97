"""The read models made anew beside the live ones, while the persister goes on, and then swapped.

They are filled in a schema of their own, in which nobody looks, and take the places of the live
tables in one transaction. That transaction holds the position of the persister, takes the few
events that came last, and begins a new term: the persister finds that its own is over, and goes on
from the new tables. Killed before that, the live tables are as they were, and what was made is
thrown away by the next rebuild.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import groupby, islice
from typing import Final, Protocol

import asyncpg
from sqlalchemy import MetaData, Table, func, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.schema import CreateTable

from tensorcast.controlplane.store.gathering import Gathering, gather
from tensorcast.controlplane.store.load import begin_gathering, replace_letters
from tensorcast.controlplane.store.rows import STATE_TYPES, Row, kind_of_state, state_row
from tensorcast.controlplane.store.tables import READ_MODELS, cursors
from tensorcast.controlplane.store.write import (
    CURSOR,
    Position,
    driver_of,
    load_position,
    merge_rows,
)
from tensorcast.schema.cluster import State
from tensorcast.schema.errors import Conflict, Unavailable
from tensorcast.schema.events import AggregateKind
from tensorcast.schema.folds import fold_name
from tensorcast.schema.ids import Seq

SCHEMA: Final = "tensorcast_rebuild"
OLD: Final = "tensorcast_replaced"
STEP_EVENTS: Final = 50_000
CLOSE_EVENTS: Final = 2000
"""So few events are left for the transaction that swaps."""
ROWS_AT_ONCE: Final = 20_000
SWAP_TRIES_MAX: Final = 60
_LOCK_TIMEOUT: Final = "2s"
"""A reader that holds the live tables for long (a backup) must not hold up the persister."""
_PAUSE_S: Final = 1.0
_LOCK_NOT_AVAILABLE: Final = "55P03"
_BESIDE: Final = MetaData(schema=SCHEMA)
TABLES: Final[dict[AggregateKind, Table]] = {
    kind: table.to_metadata(_BESIDE) for kind, table in READ_MODELS.items()
}
_TABLE_OF: Final[dict[type[State], Table]] = {
    STATE_TYPES[kind]: table for kind, table in TABLES.items()
}
_GRANTS: Final = text(
    """
    SELECT format('GRANT %s ON %I.%I TO %s', acl.privilege_type, CAST(:schema AS text), c.relname,
        CASE WHEN acl.grantee = 0 THEN 'PUBLIC'
        ELSE quote_ident(pg_get_userbyid(acl.grantee)) END)
    FROM pg_class AS c, aclexplode(c.relacl) AS acl
    WHERE c.oid = to_regclass(:name) AND acl.grantee <> c.relowner
    """
)


class Telling(Protocol):
    """Hears how far the work is."""

    async def say(self, phase: str, done: int, total: int) -> None: ...


async def rebuild_beside(connection: AsyncConnection, job: Telling) -> Seq:
    """Makes the read models anew and swaps them in; the last event that is in them. Raises Conflict
    when another life of the log began meanwhile, Unavailable when somebody holds the live tables
    for minutes."""
    await _make_tables(connection)
    position = await load_position(connection)
    async with connection.begin():
        gathering = await begin_gathering(connection, position)
    await _catch_up(connection, gathering, position, job, close_by=CLOSE_EVENTS)
    await _fill(connection, gathering, job)
    filled = gathering.at
    await job.say("makes indexes", filled, filled)
    await _index(connection)
    await _catch_up(connection, gathering, position, job, close_by=CLOSE_EVENTS)
    async with connection.begin():
        await _merge(connection, gathering.states(filled))
    filled = gathering.at
    for _ in range(SWAP_TRIES_MAX):
        try:
            return await _swap(connection, gathering, position, filled)
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
                raise
        await job.say("waits for readers", gathering.at, gathering.at)
        await asyncio.sleep(_PAUSE_S)
    raise Unavailable(
        "The read models could not be swapped: somebody reads them without an end.",
        hint="Is a backup under way? Try again when it has ended.",
    )


async def _make_tables(connection: AsyncConnection) -> None:
    """Empty ones; their indexes come when they are full."""
    async with connection.begin():
        for schema in (SCHEMA, OLD):
            await connection.execute(text(f"DROP SCHEMA IF EXISTS {schema} CASCADE"))
        await connection.execute(text(f"CREATE SCHEMA {SCHEMA}"))
        for table in TABLES.values():
            await connection.execute(CreateTable(table))


async def _catch_up(
    connection: AsyncConnection,
    gathering: Gathering,
    begun: Position,
    job: Telling,
    *,
    close_by: int,
) -> None:
    """Takes the history on until Postgres has at most `close_by` events more."""
    while True:
        position = await load_position(connection)
        if position.log_epoch != begun.log_epoch:
            raise Conflict("Another life of the log has begun.", hint="Rebuild again.")
        if position.seq - gathering.at <= close_by:
            return
        to_seq = Seq(min(position.seq, gathering.at + STEP_EVENTS))
        async with connection.begin():
            driver = await _begun(connection)
            await gather(driver, gathering, begun.log_epoch, to_seq)
        await job.say("reads the history", gathering.at, position.seq)


async def _begun(connection: AsyncConnection) -> asyncpg.Connection:
    """The driver, in a transaction that a statement has begun."""
    await connection.execute(text("SELECT 1"))
    return await driver_of(connection)


async def _fill(connection: AsyncConnection, gathering: Gathering, job: Telling) -> None:
    total = sum(1 for _ in gathering.states())
    done = 0
    async with connection.begin():
        driver = await _begun(connection)
        for cls, states in groupby(gathering.states(), type):
            table = _TABLE_OF[cls]
            columns = [column.name for column in table.columns]
            while part := [state_row(state) for state in islice(states, ROWS_AT_ONCE)]:
                await driver.copy_records_to_table(
                    table.name, schema_name=SCHEMA, columns=columns, records=part
                )
                done += len(part)
                await job.say("writes the read models", done, total)


def _by_kind(states: Iterable[State]) -> dict[AggregateKind, list[Row]]:
    rows: dict[AggregateKind, list[Row]] = {}
    for state in states:
        rows.setdefault(kind_of_state(state), []).append(state_row(state))
    return rows


async def _index(connection: AsyncConnection) -> None:
    async with connection.begin():
        for table in READ_MODELS.values():
            for index in table.indexes:  # by their names in the live schema
                columns = ", ".join(column.name for column in index.columns)
                await connection.execute(
                    text(f"CREATE INDEX {index.name} ON {SCHEMA}.{table.name} ({columns})")
                )
            await connection.execute(text(f"ANALYZE {SCHEMA}.{table.name}"))


async def _merge(connection: AsyncConnection, states: Iterable[State]) -> None:
    await connection.execute(text("SELECT 1"))
    for kind, rows in _by_kind(states).items():
        await merge_rows(connection, TABLES[kind], rows)


async def _swap(
    connection: AsyncConnection, gathering: Gathering, begun: Position, filled: Seq
) -> Seq:
    """The one transaction. The persister waits for it, with what it is about to write."""
    async with connection.begin():
        await connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'"))
        held = await connection.execute(
            update(cursors)
            .where(cursors.c.name == CURSOR, cursors.c.log_epoch == begun.log_epoch)
            .values(term=cursors.c.term + 1, fold=fold_name(), updated_at=func.now())
            .returning(cursors.c.seq)
        )
        seq = held.scalar_one_or_none()
        if seq is None:
            raise Conflict("Another life of the log has begun.", hint="Rebuild again.")
        await gather(await driver_of(connection), gathering, begun.log_epoch, Seq(seq))
        await _merge(connection, gathering.states(filled))
        await replace_letters(connection, begun.log_epoch, gathering)
        await _exchange(connection)
    async with connection.begin():
        await connection.execute(text(f"DROP SCHEMA {OLD} CASCADE"))
        await connection.execute(text(f"DROP SCHEMA {SCHEMA} CASCADE"))
    return Seq(seq)


async def _exchange(connection: AsyncConnection) -> None:
    """Moves the live tables away, and these to their places, with the same grants."""
    live = await connection.scalar(select(func.current_schema()))
    await connection.execute(text(f"CREATE SCHEMA {OLD}"))
    for table in READ_MODELS.values():
        values = {"schema": live, "name": f"{live}.{table.name}"}
        grants = (await connection.execute(_GRANTS, values)).scalars().all()
        await connection.execute(text(f'ALTER TABLE "{live}".{table.name} SET SCHEMA {OLD}'))
        await connection.execute(text(f'ALTER TABLE {SCHEMA}.{table.name} SET SCHEMA "{live}"'))
        for grant in grants:
            await connection.execute(text(grant))
