"""The persister of KV blocks: copies the KV log into Postgres, each event exactly once.

It is a loop of its own beside the persister of the log, with its own connections to NATS and
Postgres, so that neither waits for the other. What the KV log has forgotten before it was copied is
missing in Postgres too; what nodes hold is right again at their next event. It appends nothing.
"""

from __future__ import annotations

import asyncio
import logging
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
    UNREADABLE,
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
from tensorcast.controlplane.store.dead_letters import (
    KV,
    NOTHING_REFUSED,
    Fault,
    Letter,
    Refused,
    forget_told_anew,
    is_retry_wanted,
    letter_row,
)
from tensorcast.controlplane.store.engine import brief
from tensorcast.controlplane.store.engine_block_rows import Told, fold_engines
from tensorcast.controlplane.store.engine_block_write import load_engine_views
from tensorcast.controlplane.store.seat import ALIVE_S, say_alive, try_seat, unseat_silent
from tensorcast.controlplane.store.write import REFUSALS, is_data_refusal
from tensorcast.log.blocks import BlockLog
from tensorcast.log.identity import now
from tensorcast.log.port import Stored
from tensorcast.schema.block_events import BlockRecorded
from tensorcast.schema.parking import FAULTS, NO_EVENT, explain, parked_id

BATCH_EVENTS_MAX: Final = 256
BATCH_BYTES_MAX: Final = 4 << 20
_STANDBY_POLL_S: Final = 1.0
_logger = logging.getLogger(__name__)


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
    clock = asyncio.get_running_loop().time
    look_s = clock()
    reading = log.read(position.created, after=position.seq, batch_max=BATCH_EVENTS_MAX)
    async with aclosing(with_ticks(reading, ALIVE_S)) as batches:
        async for stored in batches:
            if clock() > look_s:
                look_s = clock() + ALIVE_S
                if await is_retry_wanted(connection, KV):
                    first = (await log.reach()).first
                    await forget_told_anew(connection, position.log_epoch, first)
            if stored is None:
                await say_alive(connection, SEAT, term)
                continue
            for part in split_batch(stored):
                position = await _write(connection, speakers, engines, position, part)
                progress.committed_seq = position.seq


async def _write(
    connection: AsyncConnection,
    speakers: dict[str, Speaker],
    engines: dict[str, Told],
    position: BlockPosition,
    stored: Sequence[Stored],
    refused: Refused = NOTHING_REFUSED,
) -> BlockPosition:
    """Writes the events; one by one when Postgres refuses something of them, so that only the one
    that it refuses is parked. Modifies what is known."""
    batch = prepare_block_batch(speakers, engines, position, stored, refused)
    try:
        await write_block_batch(connection, batch)
    except REFUSALS as error:
        if refused or not is_data_refusal(error):
            raise
        if len(stored) == 1:
            said = {stored[0].seq: f"Postgres refuses what follows from it: {brief(error)}"}
            return await _write(connection, speakers, engines, position, stored, said)
        for one in stored:
            position = await _write(connection, speakers, engines, position, (one,))
        return position
    for letter in batch.letters:
        _logger.error("KV event %(seq)d is parked (%(aggregate_id)s): %(reason)s", letter)
    speakers.update(batch.fold.speakers)
    engines.update(batch.engines.views)
    return batch.last


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
    refused: Refused = NOTHING_REFUSED,
) -> BlockBatch:
    """What is to be written for the events; those that cannot be taken are parked, and the others
    go on without them: each says what is held in all. Pure but for the time that an unreadable
    event gets."""
    recorded = [read_block_event(one, now()) for one in stored]
    good, letters = sort_out(speakers, engines, stored, recorded, refused)
    return BlockBatch(
        previous=position,
        last=msgspec.structs.replace(position, seq=recorded[-1].seq),
        events=[block_event_row(position.log_epoch, one) for one in recorded],
        fold=fold_holdings(speakers, good),
        engines=fold_engines(engines, good),
        letters=[letter_row(KV, position.log_epoch, one) for one in letters],
    )


def sort_out(
    speakers: dict[str, Speaker],
    engines: dict[str, Told],
    stored: Sequence[Stored],
    recorded: Sequence[BlockRecorded],
    refused: Refused,
) -> tuple[Sequence[BlockRecorded], Sequence[Letter]]:
    """The events that can be taken, and the letters of the others. Pure."""
    bad = dict(refused)
    bad |= {one.seq: NO_EVENT for one in recorded if one.type == UNREADABLE and not one.v}
    try:
        fold_holdings(speakers, recorded)
        fold_engines(engines, recorded)
    except FAULTS:
        for one in recorded:
            try:
                fold_holdings(speakers, [one])
                fold_engines(engines, [one])
            except FAULTS as error:
                bad[one.seq] = explain(error)
    good = [one for one in recorded if one.seq not in bad]
    letters = [
        _letter(one.subject, read, bad[read.seq], is_refused=read.seq in refused)
        for one, read in zip(stored, recorded, strict=True)
        if read.seq in bad
    ]
    return good, letters


def _letter(subject: str, one: BlockRecorded, reason: str, *, is_refused: bool) -> Letter:
    who = next((name for name in ("node", "engine") if hasattr(one.event, name)), None)
    name = parked_id(who, getattr(one.event, who)) if who else parked_id("blocks", subject)
    fault = Fault.UNREADABLE if reason == NO_EVENT else Fault.FOLD
    fault = Fault.POSTGRES if is_refused else fault
    return Letter(seq=one.seq, name=name, type=one.type, fault=fault, reason=reason)
