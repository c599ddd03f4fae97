"""A start from a snapshot is a start from the first event, for all that follows the log."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from histories import Dice
from rigs import running_rig
from stores import committed, database, engine, folded, persisting, read_all
from tensorcast.controlplane.services import snapshots as service
from tensorcast.controlplane.services.beginning import find_beginning
from tensorcast.controlplane.services.scheduler import Scheduler
from tensorcast.controlplane.store.load import fold
from tensorcast.controlplane.store.snapshots import last_layer
from tensorcast.log.follower import Follower
from tensorcast.log.memory import MemoryLog
from tensorcast.log.port import Stored
from tensorcast.schema import cluster
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.codec import decode, encode
from tensorcast.schema.errors import Rejected
from tensorcast.schema.ids import Seq
from tensorcast.schema.subjects import subject_of

__all__ = ["database", "engine"]  # fixtures
EVERY = 10
BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
RECORDED = sorted((Path(__file__).parents[1] / "replay").glob("v*.ndjson"))


def recorded_log(path: Path) -> MemoryLog:
    log = MemoryLog()
    for seq, line in enumerate(path.read_bytes().splitlines(), 1):
        subject = subject_of("test", decode(line, Seq(seq)).event)
        log._stored.append(Stored(Seq(seq), subject, line))
    return log


def random_log(seed: int, count: int = 120) -> MemoryLog:
    """A legal history in which five seconds lie between two events."""
    dice, view, log = Dice(seed), ClusterView(), MemoryLog()
    while len(log._stored) < count:
        for one in dice.drafts(view):
            at = BEGIN + timedelta(seconds=5 * len(log._stored))
            payload = encode(msgspec.structs.replace(one, at=at))
            stored = Stored(Seq(len(log._stored) + 1), subject_of("test", one.event), payload)
            log._stored.append(stored)
            view = fold(view, (stored,))
    return log


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(service, "POLL_S", 0.01)
    monkeypatch.setattr(service, "RETRY_S", 0.05)


async def keep(log: MemoryLog, url: str, engine) -> None:
    """Has the log in Postgres, with snapshots almost to its end."""
    last = await log.last_seq()
    reached = [0]

    async def look() -> None:
        async with engine.connect() as connection:
            layer = await last_layer(connection, 1)
            reached[0] = layer.seq if layer else 0

    follower = Follower(log)
    async with persisting(log, url) as progress:
        making = service.run_snapshots(follower, progress, url, events_every=EVERY)
        tasks = [asyncio.create_task(follower.run()), asyncio.create_task(making)]
        await committed(progress, last)
        async with asyncio.timeout(60):
            while reached[0] <= last - 2 * EVERY:
                await look()
                await asyncio.sleep(0.02)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def remembered(log: MemoryLog, beginning: ClusterView):
    """What a scheduler knows at the end of the log, when it began there."""
    last = await log.last_seq()
    async with running_rig() as rig:
        scheduler = Scheduler(rig.writer, rig.follower, reacted=last, view=beginning)
        await scheduler.retries.recall(beginning, log)
        for stored in (await read_all(log))[beginning.at :]:
            await scheduler.take(stored)
    recorded = decode(stored.payload, stored.seq)
    counts = {name: scheduler._guard.count(name, recorded) for name in scheduler._guard._written}
    pending = {name: (one.attempt, one.cause) for name, one in scheduler.retries.pending.items()}
    return scheduler.view, pending, {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize("source", [*RECORDED, 1], ids=lambda one: getattr(one, "stem", one))
async def test_all_is_known_that_is_known_from_the_first_event_on(database, engine, source):
    log = random_log(source) if isinstance(source, int) else recorded_log(source)
    await keep(log, database, engine)
    last, whole = await log.last_seq(), await folded(log)
    from_nothing = await remembered(log, ClusterView())
    began = set()
    for reacted in (None, last, last - 3, last // 2, 1, 0):
        beginning = await find_beginning(log, database, reacted=reacted)
        assert beginning.at <= (last if reacted is None else reacted)
        assert fold(beginning, tuple(await read_all(log))) == whole
        known = await remembered(log, beginning)
        assert known[:2] == from_nothing[:2]
        if reacted is not None:  # without a scheduler nobody counts what policies write
            assert known == from_nothing
        began.add(beginning.at)
    assert max(began) > last - 2 * EVERY - 1
    assert len(began) > 2 or isinstance(source, Path)


async def test_a_scheduler_begins_a_minute_before_the_last_event_that_it_answered(database, engine):
    log = random_log(4)
    await keep(log, database, engine)
    last = await log.last_seq()
    beginning = await find_beginning(log, database, reacted=last)
    assert 0 < beginning.at <= last - 12  # of five seconds each
    alone = await find_beginning(log, database, reacted=None)
    assert alone.at > beginning.at


async def test_what_another_release_could_not_take_is_taken(database, engine, monkeypatch):
    log = random_log(5)
    whole = await folded(log)
    kind = max(whole.keys, key=lambda key: whole.keys[key].moves)
    evolve = cluster.evolve

    def stumble(view, recorded, event):
        if getattr(event, "key", None) == kind:
            raise Rejected("An older release does not know how.")
        return evolve(view, recorded, event)

    with monkeypatch.context() as older:
        older.setattr(cluster, "evolve", stumble)
        assert (await folded(log)).parked
        await keep(log, database, engine)
    beginning = await find_beginning(log, database, reacted=None)
    assert beginning.at
    assert not beginning.parked
    assert fold(beginning, tuple(await read_all(log))) == whole


async def test_nothing_is_believed_of_another_log_or_without_postgres(database, engine):
    log = random_log(6)
    await keep(log, database, engine)
    other = random_log(7, len(log._stored))
    assert await find_beginning(log, database, reacted=None) != ClusterView()
    for log_of, url in ((other, database), (log, "postgresql://nobody@127.0.0.1:1/x"), (log, "")):
        assert await find_beginning(log_of, url, reacted=None) == ClusterView()
