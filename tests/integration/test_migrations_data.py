"""Migrations down and up again on a database that a real history has filled."""

from __future__ import annotations

import functools

import pytest
from sqlalchemy import select

from histories import Dice
from stores import committed, database, engine, folded, persisting, stored_view
from tensorcast.controlplane.store.block_tables import metadata
from tensorcast.controlplane.store.load import fold
from tensorcast.controlplane.store.migrate import HEAD, run
from tensorcast.log.memory import MemoryLog

__all__ = ["database", "engine"]  # fixtures
MADE_ANEW = {"snapshots", "snapshot_parts", "store_jobs"}
"""What is made from the rest when there is time for it, or tells of works."""
UNEQUAL = {
    "room",
    "updated_at",
    "told_at",
    "started_at",
    "ended_at",
    "term",
    "parked_at",
    "tried_at",
}


async def contents(engine) -> dict[str, object]:
    """All rows of all tables, but for when they were written; the hashes of the chain as one."""
    found: dict[str, object] = {}
    async with engine.connect() as connection:
        for name, table in metadata.tables.items():
            if name in MADE_ANEW:
                continue
            columns = [column for column in table.columns if column.name not in UNEQUAL]
            order = list(table.primary_key)
            rows = (await connection.execute(select(*columns).order_by(*order))).all()
            found[name] = [tuple(row) for row in rows]
            if name == "chain":
                found[name] = b"".join(row.hashes for row in rows)
    return found


@pytest.mark.slow
async def test_every_step_down_and_up_again_leaves_the_same_data(database, engine):
    """However far down it goes: what a step takes away comes back from the history, or from the
    log, when the persister goes on."""
    log = MemoryLog()
    dice, view = Dice(7), await folded(log)
    while view.at < 150:
        await log.append(dice.drafts(view))
        view = fold(view, tuple(log._stored[view.at :]))
    async with persisting(log, database) as progress:
        await committed(progress, view.at)
    before = await contents(engine)
    assert all(before[name] for name in ("events", "chain", "replicas", "engines", "signals"))
    for number in range(int(HEAD) - 1, -1, -1):
        target = f"{number:04}" if number else "base"
        for revision in (target, HEAD):
            async with engine.begin() as connection:
                await connection.run_sync(functools.partial(run, target=revision))
        async with persisting(log, database) as progress:
            await committed(progress, view.at)
        after = await contents(engine)
        differing = [name for name in before if before[name] != after[name]]
        assert differing == [], f"after going down to {target}"
        assert await stored_view(engine) == view
