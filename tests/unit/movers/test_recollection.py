"""What is remembered of a log is a view of it, whatever was written when."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from histories import Dice
from tensorcast.log.follower import Follower
from tensorcast.log.memory import MemoryLog
from tensorcast.movers.journal import Journal, Report, plan
from tensorcast.movers.recollection import Recollection, Remembered, find_in, recall
from tensorcast.schema.cluster import ClusterView, park
from tensorcast.schema.commands import JoinNode
from tensorcast.schema.ids import Epoch, EventId, NodeId, Seq

FILE = "view.db"


class Desk:
    """A mover's memory of a log that a test writes."""

    def __init__(
        self, folder: Path, log: MemoryLog | None = None, begun: Remembered | None = None
    ) -> None:
        self.log = log or MemoryLog()
        self.follower = Follower(self.log, view=begun.view if begun else None)
        self.journal = Journal(folder / "journal.db")
        self.recollection = Recollection(folder / FILE, "test", self.follower, self.journal, begun)
        self.folder = folder

    async def keep(self) -> ClusterView:
        """Catches up, writes, and returns the view that was to be written."""
        view = await self.follower.wait_for(await self.log.last_seq(), 30)
        for _ in range(10_000):
            if self.recollection.seen == view.at:
                break
            await asyncio.sleep(0)
        await self.recollection.keep("made then")
        return view

    async def write(self, dice: Dice, count: int) -> None:
        for _ in range(count):
            view = await self.follower.wait_for(await self.log.last_seq(), 30)
            await self.log.append(dice.drafts(view))

    def recall(self, cluster: str = "test") -> ClusterView | None:
        found = recall(self.folder / FILE, cluster)
        return found and found.view


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    made = Desk(tmp_path)
    async with running(made):
        yield made


@asynccontextmanager
async def running(made: Desk) -> AsyncIterator[None]:
    """Has a desk at work."""
    tasks = [
        asyncio.ensure_future(made.follower.run()),
        asyncio.ensure_future(made.recollection.watch()),
    ]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    made.recollection.close()
    made.journal.close()


async def test_the_view_comes_back_as_it_was_written_in_several_goes(desk: Desk):
    dice = Dice(5)
    for _ in range(5):
        await desk.write(dice, 40)
        assert await desk.keep() == desk.recall()


async def test_nothing_is_remembered_before_it_was_written(desk: Desk):
    assert desk.recall() is None
    await desk.keep()
    assert desk.recall() is None


async def test_another_cluster_fold_or_a_broken_file_is_not_used(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    await desk.write(Dice(1), 5)
    await desk.keep()
    assert desk.recall("other") is None
    monkeypatch.setattr("tensorcast.movers.recollection.fold_name", lambda: "newer")
    assert desk.recall() is None
    monkeypatch.undo()
    assert desk.recall() is not None
    with sqlite3.connect(desk.folder / FILE) as db:
        db.execute("UPDATE states SET state = 'x'")
    assert desk.recall() is None
    (desk.folder / FILE).write_bytes(b"no database" * 1000)
    assert desk.recall() is None


async def test_a_life_follows_only_the_very_log_from_there(desk: Desk):
    await desk.write(Dice(2), 20)
    view = await desk.keep()
    found = recall(desk.folder / FILE, "test")
    assert found is not None
    assert found.view == view
    same, shorter, other, later = MemoryLog(), MemoryLog(), MemoryLog(), MemoryLog()
    for log, end in ((same, None), (shorter, -1), (other, None), (later, None)):
        log._stored.extend(desk.log._stored[:end])
        log.created = "made then"
    assert await find_in(same, found) is found
    later.created = "made anew"
    other._stored[-1] = msgspec.structs.replace(other._stored[0], seq=view.at)
    for log in (shorter, other, later):
        assert await find_in(log, found) is None
    parked = msgspec.structs.replace(found, view=park(view, Seq(1), "node:n9", "?"))
    assert await find_in(same, parked) is None
    assert await find_in(same, msgspec.structs.replace(found, event=None)) is None


async def test_a_file_that_a_life_begins_with_is_written_on(tmp_path: Path):
    first = Desk(tmp_path)
    dice = Dice(3)
    async with running(first):
        await first.write(dice, 30)
        await first.keep()
    found = recall(tmp_path / FILE, "test")
    second = Desk(tmp_path, first.log, found)
    async with running(second):
        await second.write(dice, 20)
        assert await second.keep() == second.recall()


async def test_reports_that_the_log_shows_already_are_remembered(desk: Desk):
    """The journal had no time to take them out: its next life must not send them again."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    join = JoinNode(node=NodeId("n1"), epoch=Epoch(1), address="a:1", tiers={}, transports=("tcp",))
    report = Report(id=EventId("event-1"), at=at, actor="mover:n1", command=join)
    unsent = Report(id=EventId("event-2"), at=at, actor="mover:n1", command=join)
    await desk.journal.record([report, unsent])
    await desk.log.append(plan(ClusterView(), [report]).drafts)
    await desk.keep()
    found = recall(desk.folder / FILE, "test")
    assert found is not None
    assert found.shown == ("event-1",)
