"""The seat of the one that writes: who has it, in which term, and how it is taken from one that
has fallen silent.

A lock that lives and dies with its connection seats one writer. Each one that sits down begins a
new term, and every transaction of a writer is for its own term only: one that was paused, and wakes
up when another sits there, can write nothing. A process that was stopped keeps its connection, and
so the lock; its session is ended by whoever waits, once it has said nothing for a few seconds.
"""

from __future__ import annotations

from typing import Final

import msgspec
from sqlalchemy import func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from tensorcast.controlplane.store.tables import cursors
from tensorcast.schema.errors import Conflict

SILENT_S_MAX: Final = 5.0
"""A writer that says nothing for so long has lost its seat."""
ALIVE_S: Final = 1.0
"""How often a writer that has nothing to write says that it is there."""
FIRST_EPOCH: Final = 1

_UNSEAT: Final = text(
    """
    SELECT pg_terminate_backend(a.pid)
    FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.classid::bigint = :high AND l.objid::bigint = :low
      AND (a.state <> 'active' OR a.wait_event_type = 'Client')
      AND clock_timestamp() - a.state_change > make_interval(secs => :silent_s)
    """
)


class Seat(msgspec.Struct, frozen=True):
    """One seat. `name` is the row of `cursors` that counts its terms; `lock` any number that
    nobody else uses in this database."""

    name: str
    lock: int


async def try_seat(connection: AsyncConnection, seat: Seat) -> int | None:
    """Takes the seat for as long as the connection lives, and begins a new term, whose number it
    returns; None when another one has it. Safe to repeat."""
    taken = await connection.scalar(select(func.pg_try_advisory_lock(seat.lock)))
    term = await _begin_term(connection, seat) if taken else None
    await connection.commit()
    return term


async def _begin_term(connection: AsyncConnection, seat: Seat) -> int:
    first = insert(cursors).values(name=seat.name, log_epoch=FIRST_EPOCH, seq=0, term=1)
    again = first.on_conflict_do_update(
        index_elements=["name"], set_={"term": cursors.c.term + 1}
    ).returning(cursors.c.term)
    return int((await connection.execute(again)).scalar_one())


async def unseat_silent(
    connection: AsyncConnection, seat: Seat, *, silent_s: float = SILENT_S_MAX
) -> bool:
    """Ends the session of a writer that has said nothing for `silent_s`, and with it what it has
    not committed. False when there is none, or it speaks. A statement that Postgres itself works
    at is no silence."""
    numbers = {"high": seat.lock >> 32, "low": seat.lock & 0xFFFF_FFFF, "silent_s": silent_s}
    ended = (await connection.execute(_UNSEAT, numbers)).scalars().all()
    await connection.commit()
    return any(ended)


async def confirm_term(connection: AsyncConnection, seat: Seat, term: int) -> None:
    """Makes sure, inside the caller's transaction, that the term is not over, and that it does not
    end before that transaction. Raises Conflict."""
    held = await connection.execute(
        update(cursors)
        .where(cursors.c.name == seat.name, cursors.c.term == term)
        .values(updated_at=func.now())
    )
    if held.rowcount != 1:
        raise Conflict(
            f"Term {term} of the {seat.name} is over.", hint="Another one has taken over."
        )


async def say_alive(connection: AsyncConnection, seat: Seat, term: int) -> None:
    """Says that the writer is there, outside of a transaction. Raises Conflict when its term is
    over."""
    found = await connection.scalar(select(cursors.c.term).where(cursors.c.name == seat.name))
    await connection.commit()
    if found != term:
        raise Conflict(
            f"Term {term} of the {seat.name} is over.", hint="Another one has taken over."
        )
