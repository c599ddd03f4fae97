"""The persister: copies the log into Postgres, each event exactly once, whatever is killed.

It and the persister of KV blocks alone write to Postgres, each to tables of its own. Any number may
run: one has the seat, the others wait for it (`store/seat.py`). Position and term are in the
transaction, which refuses one that lost its seat without noticing. It appends nothing but what the
log has lost (`continuity.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from tensorcast.controlplane.services.continuity import ensure_continuity
from tensorcast.controlplane.services.copying import keep_copying
from tensorcast.controlplane.services.progress import ChainHead, Progress
from tensorcast.controlplane.services.ticking import with_ticks
from tensorcast.controlplane.settings import PARTITION_EVENTS
from tensorcast.controlplane.store.cells import as_text, as_uuid
from tensorcast.controlplane.store.chain import load_hash
from tensorcast.controlplane.store.dead_letters import (
    LOG,
    NOTHING_REFUSED,
    Letter,
    Refused,
    is_retry_wanted,
    letter_row,
    retry_parked,
    take_recorded,
)
from tensorcast.controlplane.store.engine import brief
from tensorcast.controlplane.store.load import load_view
from tensorcast.controlplane.store.rows import event_row, find_state, read_event
from tensorcast.controlplane.store.seat import ALIVE_S, say_alive, try_seat, unseat_silent
from tensorcast.controlplane.store.write import (
    REFUSALS,
    SEAT,
    Batch,
    Position,
    is_data_refusal,
    load_position,
    write_batch,
)
from tensorcast.log.folding import Folding
from tensorcast.log.identity import now
from tensorcast.log.port import Stored
from tensorcast.log.restore import RestorableLog
from tensorcast.schema.chain import HASH_BYTES, chain_events
from tensorcast.schema.cluster import ClusterView, State
from tensorcast.schema.events import UnknownEvent, aggregate_of

BATCH_EVENTS_MAX: Final = 1000
_STANDBY_POLL_S: Final = 0.5
_logger = logging.getLogger(__name__)


async def run_persister(
    log: RestorableLog,
    postgres_url: str,
    progress: Progress | None = None,
    folding: Folding | None = None,
    *,
    partition_events: int = PARTITION_EVENTS,
) -> None:
    """Copies for ever, into partitions of so many events. The database must be migrated.

    Postgres or NATS away: it waits and goes on where it stood. A log that is not the one whose
    events Postgres has is never copied: it is in `progress.refusal` until somebody mends it.
    """
    progress = Progress() if progress is None else progress
    copy = partial(
        _copy,
        log,
        progress=progress,
        folding=folding or Folding(),
        partition_events=partition_events,
    )
    await keep_copying("persister", postgres_url, progress, copy)


async def _copy(
    log: RestorableLog,
    connection: AsyncConnection,
    *,
    progress: Progress,
    folding: Folding,
    partition_events: int,
) -> None:
    """One life of the writer: from getting the lock to the first trouble."""
    while (term := await try_seat(connection, SEAT)) is None:
        progress.problem = None
        progress.committed_seq = (await load_position(connection)).seq
        if await unseat_silent(connection, SEAT):
            _logger.warning("the persister at work has fallen silent: this one takes over")
        await asyncio.sleep(_STANDBY_POLL_S)
    position = msgspec.structs.replace(await load_position(connection), term=term)
    await ensure_continuity(log, connection, position)
    progress.refusal = None
    view = await retry_parked(connection, await load_view(connection, position), position)
    head = await load_hash(connection, position.log_epoch, position.seq)
    progress.committed_seq = position.seq
    progress.head = ChainHead(position.log_epoch, position.seq, head)
    progress.is_active = True
    write = partial(write_batch, connection, partition_events=partition_events)
    reading = log.read(after=position.seq, batch_max=BATCH_EVENTS_MAX)
    async with aclosing(with_ticks(reading, ALIVE_S)) as batches:
        progress.problem = None
        async for stored in batches:
            if view.parked and await is_retry_wanted(connection, LOG):
                view = await retry_parked(connection, view, position)
            if stored is None:
                await say_alive(connection, SEAT, term)
                continue
            view, position, head = await _write(write, folding, view, position, head, stored)
            progress.committed_seq = position.seq
            progress.head = ChainHead(position.log_epoch, position.seq, head)


async def _write(
    write: Callable[[Batch], Awaitable[None]],
    folding: Folding,
    view: ClusterView,
    position: Position,
    head: bytes,
    stored: Sequence[Stored],
    refused: Refused = NOTHING_REFUSED,
) -> tuple[ClusterView, Position, bytes]:
    """Writes the events. When Postgres refuses something of them they are written one by one; the
    one that it refuses to have in a read model is parked. One that it refuses to have in the
    history is trouble."""
    after, batch = prepare_batch(view, position, head, stored, refused, folding)
    try:
        await write(batch)
    except REFUSALS as error:
        if refused or not is_data_refusal(error):
            raise
        if len(stored) == 1:
            reason = f"Postgres refuses what follows from it: {brief(error)}"
            said = {stored[0].seq: reason}
            return await _write(write, folding, view, position, head, stored, said)
        for one in stored:
            view, position, head = await _write(write, folding, view, position, head, (one,))
        return view, position, head
    for letter in batch.letters:
        _logger.error("event %(seq)d is parked (%(aggregate_id)s): %(reason)s", letter)
    return after, batch.last, batch.hashes[-HASH_BYTES:]


def prepare_batch(
    view: ClusterView,
    position: Position,
    head: bytes,
    stored: Sequence[Stored],
    refused: Refused = NOTHING_REFUSED,
    folding: Folding | None = None,
) -> tuple[ClusterView, Batch]:
    """The view after the events, and what is to be written for them; `head` is the hash of the
    event before them. Pure but for the time that an unreadable event gets."""
    folding, seen_at = folding or Folding(1), now()
    recorded = [read_event(one, seen_at, folding.decode) for one in stored]
    changed: dict[tuple[str, str], None] = {}
    letters: list[Letter] = []
    for one, read in zip(stored, recorded, strict=True):
        view, letter = take_recorded(view, one, read, refused, folding)
        if letter is not None:
            letters.append(letter)
        elif not isinstance(read.event, UnknownEvent):
            changed[aggregate_of(read.event)] = None
    rows = [
        event_row(position.log_epoch, one, read, view)
        for one, read in zip(stored, recorded, strict=True)
    ]
    states: list[State] = [
        state for key in changed if (state := find_state(view, *key)) is not None
    ]
    last = msgspec.structs.replace(
        position, seq=recorded[-1].seq, event_id=as_uuid(recorded[-1].id)
    )
    hashes = chain_events(
        head,
        position.log_epoch,
        ((one.seq, as_text(one.subject).encode(), one.payload) for one in stored),
    )
    return view, Batch(
        previous=position,
        last=last,
        events=rows,
        states=states,
        hashes=hashes,
        letters=[letter_row(LOG, position.log_epoch, one) for one in letters],
    )
