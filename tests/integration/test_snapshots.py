"""Snapshots in Postgres: made beside the persister, never believed blindly, made anew when due."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest
from sqlalchemy import func, select, text

from histories import Dice
from samples import record
from stores import committed, database, engine, persisting, until
from story import to_draft
from tensorcast.controlplane.core.snapshots import base_of
from tensorcast.controlplane.services import snapshots as service
from tensorcast.controlplane.services.api_postgres import PostgresHistory
from tensorcast.controlplane.store import queries
from tensorcast.controlplane.store.load import fold
from tensorcast.controlplane.store.snapshots import open_snapshot
from tensorcast.controlplane.store.tables import snapshot_parts, snapshots
from tensorcast.log.follower import Follower
from tensorcast.log.memory import MemoryLog
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.folds import fold_name
from tensorcast.schema.ids import Seq
from tensorcast.schema.policy_events import PolicyConfigured

__all__ = ["database", "engine"]  # fixtures
EVERY = 40


class History:
    """A random legal history in a log, and the view after each of its events."""

    def __init__(self, seed: int) -> None:
        self.log = MemoryLog()
        self.views = [ClusterView()]
        self._dice = Dice(seed)

    async def grow(self, count: int) -> None:
        goal = len(self.views) + count
        while len(self.views) < goal:
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
    async with persisting(log, url) as progress:
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


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(service, "POLL_S", 0.01)
    monkeypatch.setattr(service, "RETRY_S", 0.05)


async def made(engine) -> list[tuple[int, int, int]]:
    """Number, base and position of all layers of this fold."""
    async with engine.connect() as connection:
        found = await connection.execute(
            select(snapshots.c.number, snapshots.c.after, snapshots.c.seq)
            .where(snapshots.c.fold == fold_name())
            .order_by(snapshots.c.number)
        )
        return [tuple(row) for row in found]


async def grow_by_snapshots(history: History, engine, progress, count: int) -> None:
    """Lets the history grow until `count` more snapshots are there."""
    goal = len(await made(engine)) + count
    async with asyncio.timeout(30):
        while len(await made(engine)) < goal:
            await history.grow(EVERY // 2)
            await committed(progress, history.last)
            await asyncio.sleep(0.03)


async def test_every_moment_is_the_fold_of_what_came_before(database, engine):
    history = History(1)
    async with serving(history.log, database) as progress:
        await grow_by_snapshots(history, engine, progress, 6)
        await history.grow(EVERY // 2)
        await committed(progress, history.last)
    layers = await made(engine)
    positions = {0: 0} | {number: seq for number, _, seq in layers}
    for number, after, _ in layers:
        assert after == positions[base_of(number)]
    for seq in range(0, history.last + 1, 7):
        assert await queries.view_at(engine, Seq(seq)) == history.views[seq]
    remembering = PostgresHistory(engine)
    for seq in (history.last, history.last - 1, 90, 91, history.last, 0, 1):
        assert await remembering.view_at(Seq(seq)) == history.views[seq]


async def test_a_history_without_snapshots_gets_them_and_another_fold_loses_its_own(
    database, engine
):
    """As after an upgrade: what another fold made is dropped, and all is made anew."""
    history = History(2)
    await history.grow(5 * EVERY)
    async with persisting(history.log, database) as progress:
        await committed(progress, history.last)
    async with engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO snapshots"
                " VALUES ('0-older', 1, 1, 0, 1, gen_random_uuid(), 0, 0, 1, '')"
            )
        )
        await connection.execute(text("INSERT INTO snapshot_parts VALUES ('0-older', 1, 1, 0, '')"))
    assert await queries.view_at(engine, history.last) == history.views[-1]
    async with serving(history.log, database) as progress:
        await committed(progress, history.last)
        await until_made(engine, 4)
    for table in (snapshots, snapshot_parts):
        async with engine.connect() as connection:
            folds = select(table.c.fold).distinct()
            assert list(await connection.scalars(folds)) == [fold_name()]
    async with engine.connect() as connection:
        view = await open_snapshot(connection, 1, history.last)
    assert view is not None
    assert view == history.views[view.at]


async def until_made(engine, count: int) -> None:
    async with asyncio.timeout(30):
        while len(await made(engine)) < count:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.02)


SPOILERS = {
    "a byte is another": (
        "UPDATE snapshot_parts SET payload = set_byte(payload, 5, 255 - get_byte(payload, 5))"
        " WHERE number = {n} AND part = 0"
    ),
    "a part is gone": "DELETE FROM snapshot_parts WHERE number = {n} AND part = 0",
    "a layer is gone": "DELETE FROM snapshots WHERE number = {n}",
    "its words are others": "UPDATE snapshots SET skipped = 7 WHERE number = {n}",
    "it is of another history": (
        "UPDATE snapshots SET event_id = gen_random_uuid() WHERE number = {n}"
    ),
}


@pytest.mark.parametrize("spoiler", SPOILERS.values(), ids=SPOILERS)
async def test_what_is_spoiled_is_passed_over_and_made_anew(database, engine, spoiler):
    history = History(3)
    await history.grow(7 * EVERY)
    async with serving(history.log, database):
        await until_made(engine, 6)
    for number in (6, 4):  # the last of a chain, and one in the middle
        async with engine.begin() as connection:
            await connection.execute(text(spoiler.format(n=number)))
        for seq in (history.last, 5 * EVERY + 3, 3 * EVERY):
            assert await queries.view_at(engine, Seq(seq)) == history.views[seq]
    async with serving(history.log, database):
        await until_spotless(engine, 6)


async def until_spotless(engine, count: int) -> None:
    async with asyncio.timeout(30):
        while True:
            async with engine.connect() as connection:
                bad = await service.find_bad(connection, 1)
                parts = await connection.scalar(
                    select(func.count(snapshot_parts.c.number.distinct()))
                )
            if bad is None and len(await made(engine)) >= count <= parts:
                return
            await asyncio.sleep(0.02)


async def test_only_the_process_that_persists_makes_them(database, engine):
    history = History(4)
    await history.grow(3 * EVERY)
    async with persisting(history.log, database) as progress:
        await committed(progress, history.last)
    progress.is_active = False
    maker = asyncio.create_task(
        service.run_snapshots(Follower(history.log), progress, database, events_every=EVERY)
    )
    await asyncio.sleep(0.2)
    assert await made(engine) == []
    progress.is_active = True
    await until(lambda: not maker.done())
    await until_made(engine, 3)
    maker.cancel()
    await asyncio.gather(maker, return_exceptions=True)
    assert msgspec.structs.asdict(await queries.view_at(engine, Seq(100)))["at"] == 100


async def test_a_log_with_integers_beyond_64_bits_gets_snapshots_too(database, engine):
    """An older release took them; they must not end the control plane."""
    history = History(5)
    parameters: dict[str, object] = {"versions": 10**30}
    event = PolicyConfigured(policy="of-old", parameters=parameters)
    await history.log.append((to_draft(record(event, 1)),))
    history.views.append(fold(history.views[-1], history.log._stored))
    await history.grow(3 * EVERY)
    async with serving(history.log, database):
        await until_made(engine, 3)
    async with engine.connect() as connection:
        view = await open_snapshot(connection, 1, history.last)
    assert view is not None
    assert view.policies["of-old"].parameters == parameters
    assert await queries.view_at(engine, history.last) == history.views[-1]


async def test_a_snapshot_that_fails_ends_nothing_and_is_told(database, engine, monkeypatch):
    def fail(view, after):
        raise OverflowError("It is too long.")

    history = History(6)
    await history.grow(2 * EVERY)
    with monkeypatch.context() as failing:
        failing.setattr(service, "pack", fail)
        async with serving(history.log, database) as progress, asyncio.timeout(30):
            while progress.snapshots is None:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.02)
            assert progress.snapshots == "OverflowError: It is too long."
            failing.undo()
            await until_made(engine, 1)
            assert progress.snapshots is None
