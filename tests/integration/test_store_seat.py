"""The seat of the one that writes to Postgres: one at a time, and the silent are unseated."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from conformance.log import cordoned, draft
from stores import committed, database, engine, persisting, until
from tensorcast.controlplane.store.engine import make_engine
from tensorcast.controlplane.store.seat import (
    Seat,
    confirm_term,
    say_alive,
    try_seat,
    unseat_silent,
)
from tensorcast.controlplane.store.write import SEAT, Batch, load_position, write_batch
from tensorcast.log.memory import MemoryLog
from tensorcast.schema.errors import Conflict

__all__ = ["database", "engine"]  # fixtures

OTHER = Seat("another seat", 77)


@pytest.fixture
async def two(database):
    """Two connections of two processes."""
    engines = [make_engine(database, name=name, pooled=False) for name in ("one", "two")]
    connections = [await one.connect() for one in engines]
    yield connections
    for connection in connections:
        await connection.invalidate()
        await connection.close()
    for one in engines:
        await one.dispose()


async def test_each_that_sits_down_begins_a_term(two):
    first, second = two
    assert await try_seat(first, SEAT) == 1
    assert await try_seat(second, SEAT) is None
    assert await try_seat(second, OTHER) == 1
    await first.invalidate()
    async with asyncio.timeout(10):
        while (term := await try_seat(second, SEAT)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert term == 2


async def test_one_that_speaks_keeps_its_seat(two):
    first, second = two
    term = await try_seat(first, SEAT)
    for _ in range(5):
        await asyncio.sleep(0.05)
        await say_alive(first, SEAT, term)
        assert not await unseat_silent(second, SEAT, silent_s=30)
    assert await try_seat(second, SEAT) is None


async def test_one_that_postgres_works_for_is_not_silent(two):
    first, second = two
    await try_seat(first, SEAT)
    working = asyncio.create_task(first.execute(text("SELECT pg_sleep(1)")))
    await asyncio.sleep(0.4)
    assert not await unseat_silent(second, SEAT, silent_s=0.1)
    await working


async def test_a_silent_one_loses_its_seat_and_what_it_had_begun(two, engine):
    first, second = two
    position = await load_position(first)
    term = await try_seat(first, SEAT)
    await confirm_term(first, SEAT, term)  # its transaction holds the row
    await asyncio.sleep(0.3)
    assert await unseat_silent(second, SEAT, silent_s=0.2)
    async with asyncio.timeout(10):
        while (newer := await try_seat(second, SEAT)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert newer == term + 1
    with pytest.raises(DBAPIError):
        await first.commit()
    late = msgspec.structs.replace(position, term=term)
    async with engine.connect() as connection:
        with pytest.raises(Conflict, match="taken over"):
            await write_batch(connection, Batch(late, late, [], [], b""))
        with pytest.raises(Conflict, match="is over"):
            await say_alive(connection, SEAT, term)
        async with connection.begin():
            with pytest.raises(Conflict, match="is over"):
                await confirm_term(connection, SEAT, term)
    await say_alive(second, SEAT, newer)


async def test_a_persister_that_is_deposed_waits_and_writes_nothing(database, engine):
    """It had the position right, and only the term is another one."""
    log = MemoryLog()
    await log.append([draft(cordoned("n1"))])
    async with persisting(log, database) as progress:
        await committed(progress, 1)
        async with engine.begin() as connection:
            await connection.execute(text("UPDATE cursors SET term = term + 1"))
        await log.append([draft(cordoned("n2"))])
        await until(lambda: progress.problem is not None)
        assert "taken over" in progress.problem
        await until(lambda: progress.committed_seq == 2)
        await until(lambda: progress.problem is None)
