"""Read models made anew beside the live ones, while the persister goes on."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys

import pytest
from sqlalchemy import inspect, text

from histories import Dice
from stores import committed, database, engine, folded, persisting, stored_view, until
from tensorcast.controlplane.rebuilder import rebuild
from tensorcast.controlplane.store import rebuild as work
from tensorcast.controlplane.store.jobs import list_jobs
from tensorcast.controlplane.store.load import fold
from tensorcast.controlplane.store.tables import READ_MODELS
from tensorcast.log.memory import MemoryLog
from tensorcast.log.port import Stored
from tensorcast.schema.errors import Conflict
from tensorcast.schema.ids import Seq

__all__ = ["database", "engine"]  # fixtures


async def grow(log: MemoryLog, seed: int, count: int) -> None:
    dice, view = Dice(seed), await folded(log)
    goal = view.at + count
    while view.at < goal:
        await log.append(dice.drafts(view))
        view = fold(view, tuple(log._stored[view.at :]))


async def shape(engine) -> list[object]:
    """Columns, indexes and keys of the read models."""

    def look(connection):
        found = inspect(connection)
        return [
            (
                name,
                [(c["name"], str(c["type"]), c["nullable"]) for c in found.get_columns(name)],
                sorted((i["name"], tuple(i["column_names"])) for i in found.get_indexes(name)),
                found.get_pk_constraint(name),
            )
            for name in sorted(table.name for table in READ_MODELS.values())
        ] + sorted(found.get_schema_names())

    async with engine.connect() as connection:
        return await connection.run_sync(look)


async def run(engine, *statements: str) -> None:
    async with engine.begin() as connection:
        for statement in statements:
            await connection.execute(text(statement))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_what_is_made_anew_is_what_the_log_says_also_while_it_grows(
    database, engine, seed, monkeypatch
):
    """Whatever was wrong in the live tables, and wherever events come in between."""
    chance = random.Random(seed)
    monkeypatch.setattr(work, "STEP_EVENTS", chance.randrange(20, 200))
    monkeypatch.setattr(work, "CLOSE_EVENTS", chance.choice([0, 5, 1000]))
    monkeypatch.setattr(work, "ROWS_AT_ONCE", 7)
    log = MemoryLog()
    await grow(log, seed, 300)
    junk = Stored(Seq(await log.last_seq() + 1), "tc.default.log.node.n1", b"junk")
    log._stored.append(junk)
    before = await shape(engine)
    await run(engine, "GRANT SELECT ON replicas TO PUBLIC")
    async with persisting(log, database) as progress:
        await committed(progress, await log.last_seq())
        await run(engine, "DELETE FROM replicas", "UPDATE nodes SET status = 'odd'")
        growing = asyncio.create_task(grow(log, seed + 9, 200))
        seq = await rebuild(database)
        assert seq >= 300
        await growing
        await grow(log, seed + 20, 50)
        await until(lambda: progress.committed_seq >= len(log._stored))
    assert await stored_view(engine) == await folded(log)
    assert await shape(engine) == before
    async with engine.connect() as connection:
        grants = "SELECT count(*) FROM information_schema.role_table_grants WHERE table_name = "
        assert await connection.scalar(text(f"{grants}'replicas' AND grantee = 'PUBLIC'")) == 1
    [job] = await list_jobs(engine)
    assert (job.name, job.phase, job.problem) == ("rebuild", "done", None)
    assert job.ended_at is not None


@pytest.mark.slow
async def test_a_rebuild_that_is_killed_changes_nothing_and_the_next_one_begins_anew(
    database, engine
):
    log = MemoryLog()
    await grow(log, 5, 400)
    async with persisting(log, database) as progress:
        await committed(progress, await log.last_seq())
    before, view = await shape(engine), await stored_view(engine)
    environ = {**os.environ, "TENSORCAST_POSTGRES_URL": database}
    command = [sys.executable, "-m", "tensorcast.controlplane.rebuilder"]
    async with engine.connect() as holding:  # a reader that stays: the swap waits for it
        await holding.execute(text("SELECT 1 FROM keys"))
        process = subprocess.Popen(command, env=environ)  # noqa: ASYNC220 - it only starts
        async with asyncio.timeout(60):
            while not any(j.phase == "waits for readers" for j in await list_jobs(engine)):
                assert process.poll() is None
                await asyncio.sleep(0.05)
        with pytest.raises(Conflict, match="at work already"):
            await rebuild(database)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert await stored_view(engine) == view
    assert await rebuild(database) == view.at
    assert await stored_view(engine) == view
    assert await shape(engine) == before
