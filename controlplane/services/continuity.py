"""Whether the log goes on where Postgres stands, and what follows when it does not.

Postgres behind the log: the persister catches up. The log behind Postgres, or made anew (its disk
was lost, an older copy was put back): the events that it lacks are put back from Postgres, the same
bytes at the same positions, and a signal in the log says so. Anything else (another event at a
position that both have, a row that is missing) would mix two histories: it is refused, with the
place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

import msgspec
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from tensorcast.controlplane.store.archives import hold_floor
from tensorcast.controlplane.store.cells import as_text
from tensorcast.controlplane.store.chain import find_hash
from tensorcast.controlplane.store.engine import REPAIR, connecting, make_engine
from tensorcast.controlplane.store.load import read_history
from tensorcast.controlplane.store.seat import try_seat, unseat_silent
from tensorcast.controlplane.store.tables import events
from tensorcast.controlplane.store.write import SEAT, Position, load_position
from tensorcast.log.identity import new_event_id, now
from tensorcast.log.port import Stored
from tensorcast.log.restore import TOPIC, RestorableLog, Restored, split_events
from tensorcast.schema.chain import chain_event
from tensorcast.schema.envelope import Draft
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.events import SignalEmitted
from tensorcast.schema.ids import Seq
from tensorcast.schema.wording import tell_count

REMEDY: Final = (
    "Restore the NATS folder that belongs to it, or start afresh with `tcctl down --purge`."
)
ACTOR: Final = "controlplane"
_TAIL: Final = 16
_SPREAD: Final = 48
_STANDBY_POLL_S: Final = 0.5
_logger = logging.getLogger(__name__)

_COUNT: Final = text(
    "SELECT count(*) FROM events WHERE log_epoch = :log_epoch AND seq > :floor AND seq <= :seq"
)
_GAP: Final = text(
    """
    SELECT min(previous) + 1 FROM (
        SELECT seq, lag(seq, 1, CAST(:floor AS bigint)) OVER (ORDER BY seq) AS previous FROM events
        WHERE log_epoch = :log_epoch AND seq > :floor AND seq <= :seq
    ) AS pairs WHERE seq <> previous + 1
    """
)


async def check_start(log: RestorableLog, postgres_url: str) -> None:
    """As `ensure_continuity`, with the position that the migrated database holds; of several
    control planes one mends, the others wait for it. Raises Unavailable as well when Postgres is
    away."""
    engine = make_engine(postgres_url, name="tensorcast start", pooled=False)
    try:
        async with connecting(engine) as connection:
            while True:
                position = await load_position(connection)
                if await compare(log, connection, position) is None:
                    return
                if await try_seat(connection, SEAT) is not None:
                    return await ensure_continuity(log, connection, position)
                await unseat_silent(connection, SEAT)
                await asyncio.sleep(_STANDBY_POLL_S)
    finally:
        await engine.dispose()


async def ensure_continuity(
    log: RestorableLog, connection: AsyncConnection, position: Position
) -> None:
    """Makes sure that the log has the events that Postgres has, and puts back what it lacks. For
    the one that has the seat. Raises Corrupt when they do not belong together or Postgres lacks
    events, Unavailable when the log cannot be asked."""
    kept = await compare(log, connection, position)
    if kept is not None:
        await _mend(log, connection, position, kept)


async def compare(
    log: RestorableLog, connection: AsyncConnection, position: Position
) -> Seq | None:
    """None when the log goes on where Postgres stands; the last event that it has when it lacks
    some. Looks at all positions in Postgres, and at the bytes of the last events and of some in
    between (`tcctl audit verify` reads all). Raises Corrupt, Unavailable."""
    if position.seq == 0:
        return None
    floor = await _check_rows(connection, position)
    last = await log.last_seq()
    shared = Seq(min(last, position.seq))
    places = choose_places(shared)
    rows = await _read_rows(connection, position.log_epoch, places)
    for seq in places:
        stored = await log.read_one(seq)
        if stored is not None and seq <= floor:
            is_same = await _is_chained(connection, position.log_epoch, stored)
        else:
            is_same = stored is not None and rows.get(seq) == (stored.subject, stored.payload)
        if not is_same:
            raise Corrupt(
                f"The log has another event at position {seq} than Postgres: it is older, made"
                " anew, or another cluster's.",
                hint=REMEDY,
            )
    return last if last < position.seq else None


def choose_places(last: Seq) -> tuple[Seq, ...]:
    """Which positions up to `last` are looked at: the first, the last ones, and some between."""
    spread = {1 + number * (last - 1) // _SPREAD for number in range(_SPREAD)} if last else set()
    return tuple(Seq(seq) for seq in sorted(spread | set(range(max(1, last - _TAIL), last + 1))))


async def _is_chained(connection: AsyncConnection, log_epoch: int, stored: Stored) -> bool:
    """Whether an event that only archives have is this one: the chain has its hash. (Of a very long
    subject the chain has a part.)"""
    previous = await find_hash(connection, log_epoch, stored.seq - 1)
    wanted = await find_hash(connection, log_epoch, stored.seq)
    await connection.commit()
    subject = as_text(stored.subject).encode()
    return previous is not None and wanted == chain_event(
        previous, log_epoch, stored.seq, subject, stored.payload
    )


async def _check_rows(connection: AsyncConnection, position: Position) -> Seq:
    """The last event that only archives have. Raises Corrupt, with the place, when a row of the
    history is missing."""
    floor = await hold_floor(connection, position.log_epoch)
    where = {"log_epoch": position.log_epoch, "seq": position.seq, "floor": floor}
    count = floor + await connection.scalar(_COUNT, where)
    missing = None
    if count != position.seq:
        missing = await connection.scalar(_GAP, where) or count + 1
    await connection.commit()
    if missing is not None:
        raise Corrupt(
            f"Postgres lacks event {missing}: its history has {count} of"
            f" {tell_count(position.seq, 'event')}.",
            hint=REPAIR,
        )
    return floor


async def _read_rows(
    connection: AsyncConnection, log_epoch: int, places: tuple[Seq, ...]
) -> Mapping[int, tuple[str, bytes]]:
    found = await connection.execute(
        select(events.c.seq, events.c.subject, events.c.payload).where(
            events.c.log_epoch == log_epoch, events.c.seq.in_(places)
        )
    )
    rows = {row.seq: (row.subject, row.payload) for row in found}
    await connection.commit()
    return rows


async def _mend(
    log: RestorableLog, connection: AsyncConnection, position: Position, kept: Seq
) -> None:
    """Puts back what the log lacks after event `kept`, and says so in it."""
    _logger.warning(
        "the log ends at event %d, Postgres has %d: putting back the others", kept, position.seq
    )
    history = read_history(connection, position.log_epoch, after=kept, to_seq=position.seq)
    async for batch in history:
        for part in split_events(batch):
            await log.restore(part)
    await connection.commit()
    said = Restored(log.created, kept, position.seq)
    event = SignalEmitted(topic=TOPIC, data=msgspec.to_builtins(said))
    await log.append([Draft(id=new_event_id(), at=now(), actor=ACTOR, event=event)])
    _logger.warning(
        "the log has its %d events again; what it had acknowledged after them is lost",
        position.seq,
    )
