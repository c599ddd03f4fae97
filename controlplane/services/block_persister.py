"""The persister of KV blocks: copies the KV log into Postgres, each event exactly once.

It is a loop of its own beside the persister of the log, with its own connections to NATS and
Postgres, so that neither waits for the other. What the KV log has forgotten before it was copied is
missing in Postgres too; what nodes hold is right again at their next event. It appends nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from tensorcast.controlplane.services.copying import keep_copying
from tensorcast.controlplane.services.progress import Progress
from tensorcast.controlplane.services.ticking import with_ticks
from tensorcast.controlplane.store.block_rows import (
    Speaker,
    block_event_row,
    fold_holdings,
    read_block_event,
)
from tensorcast.controlplane.store.block_write import (
    SEAT,
    BlockBatch,
    BlockPosition,
    load_block_position,
    load_speakers,
    write_block_batch,
)
from tensorcast.controlplane.store.engine_block_rows import Told, fold_engines
from tensorcast.controlplane.store.engine_block_write import load_engine_views
from tensorcast.controlplane.store.seat import ALIVE_S, say_alive, try_seat, unseat_silent
from tensorcast.log.blocks import BlockLog
from tensorcast.log.identity import now
from tensorcast.log.port import Stored

BATCH_EVENTS_MAX: Final = 256
BATCH_BYTES_MAX: Final = 4 << 20
_STANDBY_POLL_S: Final = 1.0


async def run_block_persister(
    log: BlockLog, postgres_url: str, progress: Progress | None = None
) -> None:
    """Copies for ever. The database must be migrated. Postgres or NATS away: it waits and goes on
    where it stood. Another log of the same name is copied from its beginning."""
    progress = Progress() if progress is None else progress
    copy = partial(_copy, log, progress=progress)
    await keep_copying("kv persister", postgres_url, progress, copy)


async def _copy(log: BlockLog, connection: AsyncConnection, *, progress: Progress) -> None:
    """One life of the writer: from getting the lock to the first trouble."""
    while (term := await try_seat(connection, SEAT)) is None:
        progress.problem = None
        await unseat_silent(connection, SEAT)
        await asyncio.sleep(_STANDBY_POLL_S)
    reach = await log.reach()
    position = await load_block_position(connection, reach.created)
    position = msgspec.structs.replace(position, term=term)
    speakers = await load_speakers(connection)
    engines = await load_engine_views(connection)
    progress.committed_seq = position.seq
    progress.is_active = True
    progress.problem = None
    reading = log.read(position.created, after=position.seq, batch_max=BATCH_EVENTS_MAX)
    async with aclosing(with_ticks(reading, ALIVE_S)) as batches:
        async for stored in batches:
            if stored is None:
                await say_alive(connection, SEAT, term)
                continue
            for part in split_batch(stored):
                batch = prepare_block_batch(speakers, engines, position, part)
                await write_block_batch(connection, batch)
                speakers.update(batch.fold.speakers)
                engines.update(batch.engines.views)
                position = batch.last
                progress.committed_seq = position.seq


def split_batch(stored: Sequence[Stored]) -> Iterator[Sequence[Stored]]:
    """Parts of a few megabytes: between two of them others have their turn."""
    start = size = 0
    for place, one in enumerate(stored):
        size += len(one.payload)
        if size > BATCH_BYTES_MAX and place > start:
            yield stored[start:place]
            start, size = place, len(one.payload)
    yield stored[start:]


def prepare_block_batch(
    speakers: dict[str, Speaker],
    engines: dict[str, Told],
    position: BlockPosition,
    stored: Sequence[Stored],
) -> BlockBatch:
    """What is to be written for the events. Pure but for the time that an unreadable event
    gets."""
    recorded = [read_block_event(one, now()) for one in stored]
    return BlockBatch(
        previous=position,
        last=msgspec.structs.replace(position, seq=recorded[-1].seq),
        events=[block_event_row(position.log_epoch, one) for one in recorded],
        fold=fold_holdings(speakers, recorded),
        engines=fold_engines(engines, recorded),
    )
