"""Exactly once, whatever is killed: the persister, Postgres, NATS, again and again under load."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys

import pytest
from sqlalchemy import select

from conformance.log import read_until
from histories import Dice
from stores import committed, database, engine, persisting, stored_view, until
from tensorcast.controlplane.services.continuity import check_start
from tensorcast.controlplane.store.load import fold
from tensorcast.controlplane.store.queries import committed_seq
from tensorcast.controlplane.store.tables import events
from tensorcast.log.follower import Follower
from tensorcast.log.jetstream import connect_log
from tensorcast.log.restore import Restored, find_restored
from tensorcast.log.writer import Writer
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.errors import Unavailable

__all__ = ["database", "engine"]  # fixtures

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PERSISTER = """
import asyncio, sys
from tensorcast.controlplane.services.persister import run_persister
from tensorcast.log.jetstream import connect_log

async def main(nats_url, postgres_url):
    await run_persister(await connect_log(nats_url, "c", name="persister"), postgres_url)

asyncio.run(main(*sys.argv[1:]))
"""


def start_persister(nats_url: str, postgres_url: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", PERSISTER, nats_url, postgres_url])


def kill(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()


class Load:
    """A writer that goes on appending a random legal history until it is told to stop."""

    def __init__(self, log, seed: int) -> None:
        self.log = log
        self.dice = Dice(seed)
        self.count = 0
        self.stopped = False
        self.ended = asyncio.Event()

    async def stop(self) -> None:
        """Ends after the append that is under way."""
        self.stopped = True
        await self.ended.wait()

    async def run(self) -> None:
        follower, writer = Follower(self.log), Writer(self.log)
        tasks = [asyncio.create_task(part.run()) for part in (follower, writer)]
        while not self.stopped:
            drafts = self.dice.drafts(follower.view)
            seqs = await writer.append(drafts)
            self.count += len(drafts)
            await follower.wait_for(seqs[-1], 60)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.ended.set()


@contextlib.asynccontextmanager
async def loaded(nats_server, seed: int):
    """A log under load; at the end of the block the load has stopped."""
    log = await connect_log(nats_server.url, "c", name="load")
    load = Load(log, seed)
    task = asyncio.create_task(load.run())
    try:
        yield log, load
        await load.stop()
    finally:
        task.cancel()
        await log.aclose()


async def check_exactly_once(nats_server, engine, count: int) -> None:
    """Postgres has each event once, in order, and the states that they lead to."""
    log = await connect_log(nats_server.url, "c", name="check")
    last = await log.last_seq()
    assert last == count
    stored = await read_until(log, last)
    await log.aclose()
    async with engine.connect() as connection:
        found = await connection.execute(
            select(events.c.seq, events.c.subject, events.c.payload).order_by(events.c.seq)
        )
        rows = [tuple(row) for row in found]
    assert rows == [(one.seq, one.subject, one.payload) for one in stored]
    view = fold(ClusterView(), tuple(stored))
    assert view.skipped == 0
    assert await stored_view(engine) == view


async def caught_up(engine, count: int) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(Unavailable):
                if await committed_seq(engine) >= count:
                    return
            await asyncio.sleep(0.05)


def again(few, *more):
    """What is repeated: `few` at each run, and `more` by `scripts/test long`."""
    return [few, *(pytest.param(one, marks=pytest.mark.long) for one in more)]


@pytest.mark.parametrize("pauses_s", again((0.0, 0.1, 0.3), (0.0, 0.05, 0.1, 0.2, 0.15, 0.3)))
async def test_the_persister_is_killed_again_and_again(nats_server, database, engine, pauses_s):
    async with loaded(nats_server, 1) as (_, load):
        for pause_s in pauses_s:
            process = start_persister(nats_server.url, database)
            before = await committed_seq(engine)
            await caught_up(engine, before + 1)
            await asyncio.sleep(pause_s)
            kill(process)
        assert await committed_seq(engine) > 0
    process = start_persister(nats_server.url, database)
    await caught_up(engine, load.count)
    kill(process)
    await check_exactly_once(nats_server, engine, load.count)


async def test_a_standby_takes_over_from_one_that_is_killed(nats_server, database, engine):
    async with loaded(nats_server, 2) as (log, load):
        process = start_persister(nats_server.url, database)
        await caught_up(engine, 1)
        async with persisting(log, database) as standby:
            await until(lambda: standby.committed_seq > 0)
            assert not standby.is_active
            kill(process)
            await until(lambda: standby.is_active)
            await load.stop()
            await committed(standby, load.count)
    await check_exactly_once(nats_server, engine, load.count)


@pytest.mark.parametrize("times", again(2, 5))
async def test_postgres_is_killed_again_and_again(
    nats_server, postgres_server, database, engine, times
):
    async with loaded(nats_server, 3) as (log, load), persisting(log, database) as progress:
        for _ in range(times):
            goal = progress.committed_seq + 50
            await until(lambda goal=goal: progress.committed_seq >= goal)
            postgres_server.kill()
            await until(lambda: progress.problem is not None)
            assert "Postgres" in progress.problem
            postgres_server.start()
            await until(lambda: progress.problem is None and progress.is_active)
        await load.stop()
        await committed(progress, load.count)
    await check_exactly_once(nats_server, engine, load.count)


@pytest.mark.parametrize("times", again(2, 5))
async def test_nats_is_killed_again_and_again(nats_server, database, engine, times):
    async with loaded(nats_server, 4) as (log, load), persisting(log, database) as progress:
        for _ in range(times):
            goal = progress.committed_seq + 50
            await until(lambda goal=goal: progress.committed_seq >= goal)
            nats_server.kill()
            await asyncio.sleep(0.3)
            nats_server.start()
        await load.stop()
        await until(lambda: progress.committed_seq >= load.count and progress.problem is None)
    await check_exactly_once(nats_server, engine, load.count)


async def test_a_lost_log_is_refused_when_the_cluster_comes_back(nats_server, database, engine):
    """NATS lost its disk, and the cluster went on without anybody noticing."""
    async with loaded(nats_server, 5) as (log, load), persisting(log, database) as progress:
        await until(lambda: progress.committed_seq >= 20)
        await load.stop()
        await committed(progress, load.count)
    kept = await committed_seq(engine)
    nats_server.kill()
    nats_server.forget()
    nats_server.start()
    async with loaded(nats_server, 6) as (log, load):
        await until(lambda: load.count > kept)
        async with persisting(log, database) as progress:
            await until(lambda: progress.problem is not None)
            assert "another event at position 1" in progress.problem
            assert "Restore" in progress.problem
    assert await committed_seq(engine) == kept


async def test_a_lost_log_is_filled_again_from_postgres(nats_server, database, engine):
    """NATS lost its disk, and nobody wrote to the new log before the control plane looked."""
    async with loaded(nats_server, 7) as (log, load), persisting(log, database) as progress:
        await until(lambda: progress.committed_seq >= 1500)
        await load.stop()
        await committed(progress, load.count)
    nats_server.kill()
    nats_server.forget()
    nats_server.start()
    log = await connect_log(nats_server.url, "c", name="again")
    await asyncio.gather(*(check_start(log, database) for _ in range(3)))
    assert await log.last_seq() == load.count + 1
    found = await find_restored(log.connection, "c")
    assert found == (load.count + 1, Restored(log.created, 0, load.count))
    async with persisting(log, database) as progress:
        await committed(progress, load.count + 1)
    await log.aclose()
    await check_exactly_once(nats_server, engine, load.count + 1)
