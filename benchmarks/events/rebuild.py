"""Read models made anew from a long history, in a database of its own."""

from __future__ import annotations

import gc
import time
from collections.abc import Awaitable

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from events.measures import OURS, Line
from events.rig import Rig
from events.stories import drafts_of
from tensorcast.controlplane.main import GARBAGE_THRESHOLDS
from tensorcast.controlplane.services.persister import prepare_batch
from tensorcast.controlplane.store.chain import load_hash
from tensorcast.controlplane.store.engine import connecting, make_engine
from tensorcast.controlplane.store.load import rebuild
from tensorcast.controlplane.store.migrate import migrate
from tensorcast.controlplane.store.rebuild import rebuild_beside
from tensorcast.controlplane.store.tables import READ_MODELS
from tensorcast.controlplane.store.write import Position, load_position, write_batch
from tensorcast.log.batch import prepare
from tensorcast.log.port import APPEND_EVENTS_MAX, Stored
from tensorcast.schema.chain import HASH_BYTES
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.ids import Seq

PART = 60_000


class Quietly:
    """Hears how far the work is, and keeps it."""

    async def say(self, phase: str, done: int, total: int) -> None: ...


async def measure(rig: Rig, count: int) -> list[Line]:
    """From the first event to read models that are committed: in their places in one transaction,
    as at a start, and beside the live ones, and swapped."""
    url = rig.create_database()
    await migrate(url)
    engine = make_engine(url, name="bench", pooled=False)
    gc.set_threshold(*GARBAGE_THRESHOLDS)  # as the control plane does
    try:
        async with connecting(engine) as connection:
            position = await _fill(connection, count)
            return [
                await _time(connection, "rebuild", count, rebuild(connection, position)),
                await _time(connection, "rebuild beside", count, _beside(connection)),
            ]
    finally:
        await engine.dispose()


async def _fill(connection: AsyncConnection, count: int) -> Position:
    """As the persister does."""
    view, position = ClusterView(), await load_position(connection)
    head = await load_hash(connection, position.log_epoch, position.seq)
    for stored in _history(count):
        view, batch = prepare_batch(view, position, head, stored)
        await write_batch(connection, batch)
        position, head = batch.last, batch.hashes[-HASH_BYTES:]
    return position


async def _beside(connection: AsyncConnection) -> None:
    await rebuild_beside(connection, Quietly())


async def _time(
    connection: AsyncConnection, what: str, count: int, work: Awaitable[object]
) -> Line:
    began, cpu_s = time.perf_counter(), time.process_time()
    await work
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
    rows = [
        await connection.scalar(select(func.count()).select_from(table))
        for table in READ_MODELS.values()
    ]
    await connection.commit()
    return {
        "what": what,
        "contender": OURS,
        "events": count,
        "rows": sum(rows),
        "seconds": seconds,
        "cpu_s": cpu_s,
        "rate": count / seconds,
    }


def _history(count: int):
    """Events as they lie in a log, in batches."""
    seq = 0
    for part in range(0, count, PART):
        drafts = drafts_of(f"h{part}", min(PART, count - part))
        for start in range(0, len(drafts), APPEND_EVENTS_MAX):
            entries = prepare("bench", drafts[start : start + APPEND_EVENTS_MAX])
            yield [
                Stored(Seq(seq + number), one.subject, one.payload)
                for number, one in enumerate(entries, 1)
            ]
            seq += len(entries)
