"""The history in partitions: made as it grows, each as append-only as the whole."""

from __future__ import annotations

import functools

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from stored_histories import history
from stores import committed, database, engine, folded, persisting, read_all, stored_view
from tensorcast.controlplane.store.extent import read_rows
from tensorcast.controlplane.store.migrate import HEAD, migrate, run
from tensorcast.controlplane.store.partitions import list_partitions
from tensorcast.log.memory import MemoryLog
from tensorcast.schema.api_audit import RowsQuery
from tensorcast.schema.ids import Seq

__all__ = ["database", "engine"]  # fixtures
BEFORE = "0014"


def filled(seed: int) -> MemoryLog:
    log = MemoryLog()
    log._stored.extend(history(seed))
    return log


async def names_of(engine) -> list[str]:
    async with engine.connect() as connection:
        return [one.name for one in await list_partitions(connection)]


async def counts_of(engine) -> dict[str, int]:
    async with engine.connect() as connection:
        found = await connection.execute(
            text("SELECT tableoid::regclass::text AS name, count(*) FROM events GROUP BY 1")
        )
        return {row.name: row.count for row in found}


async def alone(engine, *statements: str) -> None:
    """Each in a transaction, whole."""
    for statement in statements:
        async with engine.begin() as connection:
            await connection.execute(text(statement))


async def cut_short(engine, end: int) -> None:
    """As if the first partition had been made for fewer events."""
    await alone(
        engine,
        "ALTER TABLE events DETACH PARTITION events_first",
        "ALTER TABLE events ATTACH PARTITION events_first"
        f" FOR VALUES FROM (MINVALUE, MINVALUE) TO (1, {end + 1})",
    )


async def test_partitions_come_as_the_history_grows_and_hold_it_whole(database, engine):
    log = filled(3)
    await cut_short(engine, 100)
    async with persisting(log, database, partition_events=64) as progress:
        await committed(progress, len(log._stored))
    last = len(log._stored)
    ends = [100, *range(128, last + 64, 64)]
    assert await names_of(engine) == ["events_first", *(f"events_to_1_{end}" for end in ends[1:])]
    firsts = [1, *(end + 1 for end in ends[:-1])]
    held = await counts_of(engine)
    assert list(held.values()).count(64) >= 2
    assert held["events_first"] == 100
    assert sum(held.values()) == last
    assert held[f"events_to_1_{ends[-1]}"] == last - firsts[-1] + 1
    assert await stored_view(engine) == await folded(log)
    async with engine.connect() as connection:
        query = RowsQuery(log_epoch=1, after=Seq(0), last=Seq(last))
        rows = (await read_rows(connection, query)).events
    assert [(one.seq, one.payload) for one in rows] == [
        (one.seq, one.payload) for one in await read_all(log)
    ]


async def test_the_first_partition_of_a_new_cluster_is_as_long_as_the_others(database, engine):
    log = filled(3)
    async with persisting(log, database, partition_events=64) as progress:
        await committed(progress, len(log._stored))
    ends = range(64, len(log._stored) + 64, 64)
    assert await names_of(engine) == ["events_first", *(f"events_to_1_{end}" for end in ends[1:])]
    held = await counts_of(engine)
    assert held["events_first"] == held["events_to_1_128"] == 64
    assert await stored_view(engine) == await folded(log)


async def test_no_partition_lets_an_event_be_changed_or_removed(database, engine):
    log = filled(3)
    await cut_short(engine, 100)
    async with persisting(log, database, partition_events=64) as progress:
        await committed(progress, len(log._stored))
    admin = await asyncpg.connect(database.replace("tensorcast:secret@", "postgres:admin@"))
    for as_replica in ("", "SET LOCAL session_replication_role = replica; "):
        for table in ("events", "events_first", "events_to_1_128", "events_to_1_192"):
            for change in (
                f"UPDATE {table} SET v = 9",
                f"DELETE FROM {table}",
                f"TRUNCATE {table}",
            ):
                with pytest.raises(asyncpg.InsufficientPrivilegeError, match="never changed"):
                    await admin.execute(as_replica + change)
    await admin.close()
    async with engine.connect() as connection:
        with pytest.raises(DBAPIError, match="duplicate key"):
            await connection.execute(
                text("INSERT INTO events SELECT * FROM events WHERE seq IN (99, 150)")
            )


async def test_a_question_about_positions_looks_into_their_partitions_alone(database, engine):
    log = filled(3)
    await cut_short(engine, 100)
    async with persisting(log, database, partition_events=64) as progress:
        await committed(progress, len(log._stored))
    async with engine.connect() as connection:
        plan = await connection.execute(
            text("EXPLAIN SELECT * FROM events WHERE log_epoch = 1 AND seq > 130 AND seq < 140")
        )
        told = "\n".join(plan.scalars())
    assert "events_to_1_192" in told
    assert "events_first" not in told


async def test_an_older_database_keeps_its_rows_and_grants_where_they_lie(postgres_url, engine):
    """Up, down with several partitions, and up again: the rows, who may read them, and what keeps
    them from change stay."""
    await migrate(postgres_url)
    log = filled(4)
    async with persisting(log, postgres_url) as progress:
        await committed(progress, 100)
    await alone(engine, "DO $$ BEGIN CREATE ROLE reader; EXCEPTION WHEN OTHERS THEN END $$")

    async def to(revision: str) -> None:
        async with engine.begin() as connection:
            await connection.run_sync(functools.partial(run, target=revision))

    async def file_of(table: str) -> int:
        async with engine.connect() as connection:
            return await connection.scalar(text(f"SELECT pg_relation_filenode('{table}')"))

    await to(BEFORE)
    rows = "SELECT log_epoch, seq, event_id, payload FROM events ORDER BY seq"
    async with engine.connect() as connection:
        before = (await connection.execute(text(rows))).all()
    file = await file_of("events")
    await alone(engine, "GRANT SELECT ON events TO PUBLIC")
    await to(HEAD)
    assert await file_of("events_first") == file, "no row was written anew"
    async with engine.connect() as connection:
        assert (await connection.execute(text(rows))).all() == before
        grants = "SELECT count(*) FROM information_schema.role_table_grants WHERE table_name = "
        assert await connection.scalar(text(f"{grants}'events' AND grantee = 'PUBLIC'")) == 1
    await cut_short(engine, len(log._stored))
    await alone(engine, "UPDATE cursors SET room = 0")
    log._stored.extend(
        one.__class__(Seq(len(log._stored) + number), one.subject, b"junk")
        for number, one in enumerate(history(4)[:50], 1)
    )
    async with persisting(log, postgres_url, partition_events=16) as progress:
        await committed(progress, len(log._stored))
    assert len(await names_of(engine)) > 3
    await to(BEFORE)
    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM events")) == len(log._stored)
        with pytest.raises(DBAPIError, match="never changed"):
            await connection.execute(text("DELETE FROM events"))
    with pytest.raises(DBAPIError, match="never changed"):
        await alone(engine, "TRUNCATE events")
    await to(HEAD)
    assert await names_of(engine) == ["events_first"]
