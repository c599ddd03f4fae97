"""A small batch is one statement: it writes what the steps of a large one write, or nothing."""

from __future__ import annotations

import msgspec
import pytest
from sqlalchemy import func, select, update

from histories import Dice
from stores import database, engine, folded, read_all, stored_view
from tensorcast.controlplane.services.persister import prepare_batch
from tensorcast.controlplane.store.chain import load_hash
from tensorcast.controlplane.store.load import fold
from tensorcast.controlplane.store.statement import write_at_once
from tensorcast.controlplane.store.tables import chain, cursors, events
from tensorcast.controlplane.store.write import (
    CURSOR,
    Position,
    driver_of,
    load_position,
    write_batch,
)
from tensorcast.log.memory import MemoryLog
from tensorcast.schema.chain import HASH_BYTES
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.errors import Conflict, Corrupt
from tensorcast.schema.ids import Seq

__all__ = ["database", "engine"]  # fixtures

COUNT = 130
ROOM = 50


@pytest.fixture
async def log() -> MemoryLog:
    log, dice = MemoryLog(), Dice(5)
    view = ClusterView()
    while view.at < COUNT:
        await log.append(dice.drafts(view))
        view = fold(view, tuple(log._stored[view.at :]))
    return log


async def write(engine, log: MemoryLog, size: int, *, upto: int = 1 << 30) -> Position:
    """Writes the log in batches of `size` events."""
    stored = (await read_all(log))[:upto]
    view = ClusterView()
    async with engine.connect() as connection:
        position = await load_position(connection)
        head = await load_hash(connection, position.log_epoch, position.seq)
        for start in range(0, len(stored), size):
            part = stored[start : start + size]
            view, batch = prepare_batch(view, position, head, part)
            await write_batch(connection, batch)
            position, head = batch.last, batch.hashes[-HASH_BYTES:]
        assert await load_position(connection) == position
        assert await load_hash(connection, position.log_epoch, position.seq) == head
    return position


@pytest.mark.parametrize("size", [9, 65])
async def test_it_writes_what_the_steps_write(engine, log, size):
    position = await write(engine, log, size)
    assert await stored_view(engine) == await folded(log)
    async with engine.connect() as connection:
        found = await connection.execute(
            select(events.c.seq, events.c.subject, events.c.payload).order_by(events.c.seq)
        )
        stored = [(one.seq, one.subject, one.payload) for one in await read_all(log)]
        assert [tuple(row) for row in found] == stored
        rows = await connection.scalar(select(func.count()).select_from(chain))
    assert rows == -(-position.seq // size)


async def test_who_was_overtaken_writes_nothing(engine, log):
    position = await write(engine, log, 10, upto=20)
    stored = await read_all(log)
    stale = msgspec.structs.replace(position, seq=Seq(19))
    late = msgspec.structs.replace(position, term=position.term + 1)
    for before in (stale, late):
        _, batch = prepare_batch(ClusterView(), before, bytes(HASH_BYTES), stored[20:25])
        async with engine.connect() as connection:
            with pytest.raises(Conflict, match="taken over"):
                await write_batch(connection, batch)
            assert await load_position(connection) == position
            assert await connection.scalar(select(func.count()).select_from(events)) == 20


async def test_another_event_at_a_position_is_refused_as_a_whole(engine, log):
    position = await write(engine, log, 10, upto=20)
    stored = await read_all(log)
    back = msgspec.structs.replace(position, seq=Seq(0), event_id=None)
    async with engine.begin() as connection:
        await connection.exec_driver_sql("UPDATE cursors SET seq = 0, event_id = NULL")
    other = [
        *stored[:19],
        msgspec.structs.replace(stored[20], seq=Seq(20)),
        *(msgspec.structs.replace(one, seq=Seq(one.seq + 1)) for one in stored[20:25]),
    ]
    _, batch = prepare_batch(ClusterView(), back, bytes(HASH_BYTES), other)
    async with engine.connect() as connection:
        with pytest.raises(Corrupt, match="another event at position 20"):
            await write_batch(connection, batch)
        assert (await load_position(connection)).seq == 0
        assert await connection.scalar(select(func.count()).select_from(events)) == 20


async def test_without_room_it_writes_nothing(engine, log):
    """Then the steps make the next partition."""
    stored = await read_all(log)
    position = await write(engine, log, 10, upto=45)
    view = fold(ClusterView(), stored[:45])
    async with engine.connect() as connection:
        driver = await driver_of(connection)
        head = await load_hash(connection, position.log_epoch, position.seq)
        await connection.execute(update(cursors).values(room=ROOM))
        await connection.commit()
        for last, is_written in ((ROOM + 1, False), (ROOM, True)):
            _, batch = prepare_batch(view, position, head, stored[45:last])
            assert await write_at_once(driver, CURSOR, batch, {}) is is_written
            at = last if is_written else 45
            assert (await load_position(connection)).seq == at
            assert await connection.scalar(select(func.count()).select_from(events)) == at
            await connection.rollback()
