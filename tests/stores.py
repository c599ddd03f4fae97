"""Helpers of tests that look into Postgres: a migrated database, a persister in a task, what both
sides say.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from tensorcast.controlplane.services.persister import run_persister
from tensorcast.controlplane.services.progress import Progress
from tensorcast.controlplane.settings import PARTITION_EVENTS
from tensorcast.controlplane.store.engine import make_engine
from tensorcast.controlplane.store.load import fold, load_view
from tensorcast.controlplane.store.migrate import migrate
from tensorcast.controlplane.store.write import load_position
from tensorcast.log.port import Log
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.ids import Seq

WAIT_S_MAX = 60


@pytest.fixture
async def database(postgres_url):
    """The URL of a migrated database."""
    await migrate(postgres_url)
    return postgres_url


@pytest.fixture
async def engine(database):
    """An engine on the migrated database."""
    engine = make_engine(database, name="test")
    yield engine
    await engine.dispose()


@asynccontextmanager
async def persisting(log: Log, url: str, *, partition_events: int = PARTITION_EVENTS):
    """A persister at work; gives what it tells of itself."""
    progress = Progress()
    writing = run_persister(log, url, progress, partition_events=partition_events)
    task = asyncio.create_task(writing)
    try:
        yield progress
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(predicate, *, seconds: float = WAIT_S_MAX) -> None:
    """Waits for what a test has no other way to wait for."""
    async with asyncio.timeout(seconds):
        while not predicate():  # noqa: ASYNC110 - it has no event of its own
            await asyncio.sleep(0.01)


async def committed(progress: Progress, seq: int) -> None:
    """Waits until the persister has committed event `seq`, and nothing troubles it."""
    await until(lambda: progress.committed_seq >= seq)
    assert progress.problem is None
    assert progress.is_active


async def read_all(log: Log) -> list:
    """All events that the log has now."""
    stored = []
    last = await log.last_seq()
    while len(stored) < last:
        stored.append(await log.read_one(Seq(len(stored) + 1)))
    return stored


async def folded(log: Log) -> ClusterView:
    """The view that the log leads to."""
    return fold(ClusterView(), tuple(await read_all(log)))


async def stored_view(engine) -> ClusterView:
    """The view that the read models hold."""
    async with engine.connect() as connection:
        return await load_view(connection, await load_position(connection))
