"""Writes what is told of engines' own caches, inside the transaction of the KV persister."""

from __future__ import annotations

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from tensorcast.controlplane.store.block_tables import engine_blocks, engine_views
from tensorcast.controlplane.store.engine_block_rows import EngineFold, Told, view_row
from tensorcast.controlplane.store.write import driver_of, merge_rows
from tensorcast.schema.ids import EngineId


async def load_engine_views(connection: AsyncConnection) -> dict[str, Told]:
    """What is known of each engine."""
    found = await connection.execute(select(engine_views))
    views = {
        row.engine: Told(row.life, row.is_exact, row.reason, row.batch, row.blocks, row.seq, row.at)
        for row in found
    }
    await connection.commit()
    return views


async def write_engine_fold(connection: AsyncConnection, fold: EngineFold) -> None:
    """Writes what a batch changes, inside the caller's transaction, which a statement has begun."""
    if fold.cleared:
        gone = engine_blocks.c.engine.in_(sorted(fold.cleared))
        await connection.execute(delete(engine_blocks).where(gone))
    evicted = [place for place, row in fold.blocks.items() if row is None]
    if evicted:
        driver = await driver_of(connection)
        await driver.execute(_EVICT, *map(list, zip(*evicted, strict=True)))
    held = [row for row in fold.blocks.values() if row is not None]
    await merge_rows(connection, engine_blocks, held)
    views = [view_row(EngineId(engine), told) for engine, told in fold.views.items()]
    await merge_rows(connection, engine_views, views)


_EVICT = (
    "DELETE FROM engine_blocks USING"
    " unnest($1::text[], $2::text[], $3::integer[], $4::bytea[])"
    " AS gone (engine, medium, grp, hash)"
    " WHERE engine_blocks.engine = gone.engine AND engine_blocks.medium = gone.medium"
    " AND engine_blocks.layer_group = gone.grp AND engine_blocks.hash = gone.hash"
)
