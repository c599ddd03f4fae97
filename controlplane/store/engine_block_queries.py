"""What the API reads about the blocks in engines' own caches. Raises Unavailable while Postgres is
away; writes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from tensorcast.controlplane.store.block_tables import engine_blocks, engine_views
from tensorcast.controlplane.store.engine import connecting
from tensorcast.controlplane.store.engine_block_rows import Told

ROWS_MAX: Final = 1_000_000


class Holder(msgspec.Struct, frozen=True):
    """A block of a prefix in an engine's medium."""

    engine: str
    medium: str
    prefix: bytes


async def read_views(engine: AsyncEngine) -> Mapping[str, tuple[Told, tuple[int, ...]]]:
    """What is known of each engine, and the sizes of its blocks in tokens."""
    sizes: dict[str, list[int]] = {}
    async with connecting(engine) as connection:
        distinct = select(engine_blocks.c.engine, engine_blocks.c.block_tokens).distinct()
        for row in await connection.execute(distinct):
            sizes.setdefault(row.engine, []).append(row.block_tokens)
        found = (await connection.execute(select(engine_views))).all()
    return {
        row.engine: (
            Told(row.life, row.is_exact, row.reason, row.batch, row.blocks, row.seq, row.at),
            tuple(sorted(sizes.get(row.engine, ()))),
        )
        for row in found
    }


async def find_holders(
    engine: AsyncEngine, prefixes: Sequence[bytes], block_tokens: int
) -> tuple[Holder, ...]:
    """Which engines hold blocks of `block_tokens` tokens of these prefixes, and where."""
    async with connecting(engine) as connection:
        found = await connection.execute(
            select(engine_blocks.c.engine, engine_blocks.c.medium, engine_blocks.c.prefix)
            .where(
                engine_blocks.c.prefix.in_(list(prefixes)),
                engine_blocks.c.block_tokens == block_tokens,
            )
            .distinct()
            .limit(ROWS_MAX)
        )
        return tuple(Holder(row.engine, row.medium, row.prefix) for row in found)
