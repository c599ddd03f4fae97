"""A history in Postgres with partitions and snapshots that are small enough to archive some of."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import text

from histories import Dice
from stores import committed, persisting
from tensorcast.controlplane.archiver import archive
from tensorcast.controlplane.services import snapshots as service
from tensorcast.controlplane.store.archives import hold_floor
from tensorcast.controlplane.store.archiving import Limits
from tensorcast.controlplane.store.engine import make_engine
from tensorcast.controlplane.store.load import fold
from tensorcast.controlplane.store.migrate import migrate
from tensorcast.controlplane.store.snapshots import last_layer
from tensorcast.log.follower import Follower
from tensorcast.log.memory import MemoryLog
from tensorcast.log.port import Stored
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.ids import Seq

EVERY = 40
PARTITION = 64
FIRST_END = 100
CLUSTER = "default"


class History:
    """A random legal history in a log, with an event that nobody can read; and the view after each
    of its events."""

    def __init__(self, seed: int, junk_at: int = 30) -> None:
        self.log = MemoryLog()
        self.views = [ClusterView()]
        self._dice = Dice(seed)
        self._junk_at = junk_at

    async def grow(self, count: int) -> None:
        goal = len(self.views) + count
        while len(self.views) < goal:
            if len(self.views) == self._junk_at:
                junk = Stored(Seq(self._junk_at), "tc.default.log.node.lost", b"junk")
                self.log._stored.append(junk)
            else:
                await self.log.append(self._dice.drafts(self.views[-1]))
            for one in self.log._stored[len(self.views) - 1 :]:
                self.views.append(fold(self.views[-1], (one,)))

    @property
    def last(self) -> Seq:
        return self.views[-1].at


@asynccontextmanager
async def serving(log: MemoryLog, url: str):
    """A persister, and the maker of snapshots beside it."""
    follower = Follower(log)
    async with persisting(log, url, partition_events=PARTITION) as progress:
        tasks = [
            asyncio.create_task(follower.run()),
            asyncio.create_task(service.run_snapshots(follower, progress, url, events_every=EVERY)),
        ]
        try:
            yield progress
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def cut_short(engine, end: int = FIRST_END) -> None:
    """As if the first partition had been made for fewer events."""
    async with engine.begin() as connection:
        await connection.execute(text("ALTER TABLE events DETACH PARTITION events_first"))
        await connection.execute(
            text(
                "ALTER TABLE events ATTACH PARTITION events_first"
                f" FOR VALUES FROM (MINVALUE, MINVALUE) TO (1, {end + 1})"
            )
        )


async def reached(engine) -> int:
    """The event of the last snapshot."""
    async with engine.connect() as connection:
        layer = await last_layer(connection, 1)
    return layer.seq if layer else 0


SEED, EVENTS = 5, 400


async def prepare(url: str) -> History:
    """Writes a history, with snapshots almost to its end."""
    await migrate(url)
    engine = make_engine(url, name="test", pooled=False)
    history = History(SEED)
    while len(history.views) < EVENTS:
        await history.grow(EVERY // 2)
    await cut_short(engine)
    async with serving(history.log, url) as progress:
        await committed(progress, history.last)
        await wait_for(lambda: reached(engine), history.last - EVERY)
    await engine.dispose()
    return history


@pytest.fixture(scope="module")
def prepared(_shared_postgres):
    """The URL of a database with a history, to make copies of, and that history."""
    if _shared_postgres.pid is None:
        _shared_postgres.start()
    url = _shared_postgres.create_database()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "POLL_S", 0.01)
        return url, asyncio.run(prepare(url))


@pytest.fixture
def database(prepared, _shared_postgres):
    """The URL of a copy of its own."""
    return _shared_postgres.create_database(prepared[0].rpartition("/")[2])


@pytest.fixture
async def history(prepared):
    """A copy of the history that `database` has."""
    fresh = History(SEED + 1)
    await fresh.log.restore(prepared[1].log._stored)
    fresh.views = list(prepared[1].views)
    return fresh


async def wait_for(ask, goal: int) -> None:
    """Until a number that is asked for has reached a goal."""
    async with asyncio.timeout(60):
        while await ask() < goal:  # noqa: ASYNC110 - it has no event of its own
            await asyncio.sleep(0.02)


async def archive_before(url: str, folder, seq: int) -> int:
    return await archive(url, CLUSTER, folder, Limits(before_seq=Seq(seq)))


async def floor_of(engine) -> int:
    async with engine.connect() as connection:
        return await hold_floor(connection, 1)
