"""What is asked of the parked events, and how they are asked to be tried again. Raises Unavailable
while Postgres is away."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from tensorcast.controlplane.store.engine import connecting
from tensorcast.controlplane.store.tables import dead_letters
from tensorcast.schema.api_store import LETTERS_MAX, DeadLetter, DeadPage, DeadQuery
from tensorcast.schema.ids import Seq

Counts = Mapping[tuple[str, str], int]
"""How many events are parked, by log and fault."""


async def find_letters(engine: AsyncEngine, query: DeadQuery) -> DeadPage:
    """As `DeadQuery` says."""
    conditions = [dead_letters.c.seq > query.after]
    if query.seq is not None:
        conditions.append(dead_letters.c.seq == query.seq)
    statement = (
        select(dead_letters)
        .where(*conditions)
        .order_by(dead_letters.c.log.desc(), dead_letters.c.log_epoch, dead_letters.c.seq)
        .limit(max(1, min(query.limit, LETTERS_MAX)))
    )
    async with connecting(engine) as connection:
        rows = (await connection.execute(statement)).mappings().all()
        total = await connection.scalar(
            select(func.count()).select_from(dead_letters).where(*conditions)
        )
    letters = tuple(
        DeadLetter(
            log=row["log"],
            seq=Seq(row["seq"]),
            kind=row["aggregate_kind"],
            id=row["aggregate_id"],
            type=row["type"],
            fault=row["fault"],
            reason=row["reason"],
            parked_at=row["parked_at"],
            tried_at=row["tried_at"],
        )
        for row in rows
    )
    return DeadPage(letters=letters, total=int(total or 0))


async def count_letters(engine: AsyncEngine) -> Counts:
    """How many there are."""
    statement = select(dead_letters.c.log, dead_letters.c.fault, func.count()).group_by(
        dead_letters.c.log, dead_letters.c.fault
    )
    async with connecting(engine) as connection:
        return {(log, fault): count for log, fault, count in await connection.execute(statement)}


async def want_retry(engine: AsyncEngine) -> int:
    """Asks the writers to try all again; tells how many there are."""
    async with connecting(engine) as connection, connection.begin():
        found = await connection.execute(update(dead_letters).values(wanted_at=func.now()))
    return int(found.rowcount)


async def count_wanted(engine: AsyncEngine) -> int:
    """How many have not been tried again yet, of those that somebody asked for."""
    statement = select(func.count()).where(dead_letters.c.wanted_at.is_not(None))
    async with connecting(engine) as connection:
        return int(await connection.scalar(statement) or 0)
