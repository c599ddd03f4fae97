"""Three NATS servers: any one is killed at any moment under load, and nothing is lost."""

from __future__ import annotations

import asyncio
import random

import pytest

from conformance.log import cordoned, draft, read_until
from nats_trio import nats_trio
from stores import committed, database, engine, persisting
from tensorcast.controlplane.store.queries import committed_seq
from tensorcast.log.cursors import JetStreamCursors
from tensorcast.log.follower import Follower
from tensorcast.log.jetstream import connect_log
from tensorcast.log.writer import Writer
from tensorcast.schema.codec import decode
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.ids import Seq

__all__ = ["database", "engine", "nats_trio"]  # fixtures

pytestmark = [pytest.mark.slow, pytest.mark.failover, pytest.mark.timeout(180)]


async def connect_surely(url: str):
    """The log, once the servers have chosen who leads."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await connect_log(url, "c", name="test")
            except Unavailable:
                await asyncio.sleep(0.2)


async def store_surely(cursors: JetStreamCursors, seq: Seq) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                return await cursors.store("reader", seq)
            except Unavailable:
                await asyncio.sleep(0.2)


class Producers:
    """Writers that go on, and what was acknowledged to them."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.acknowledged: dict[str, int] = {}
        self.stopped = False

    async def produce(self, name: str) -> None:
        number = 0
        while not self.stopped:
            drafts = [draft(cordoned(f"{name}-{number}-{part}"), 0) for part in range(3)]
            number += 1
            try:
                seqs = await self.writer.append(drafts)
            except Unavailable:
                continue  # nobody was told that it is there
            self.acknowledged.update(zip((one.id for one in drafts), seqs, strict=True))
            await asyncio.sleep(0.02)

    async def more(self, count: int) -> None:
        goal = len(self.acknowledged) + count
        async with asyncio.timeout(60):
            while len(self.acknowledged) < goal:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_any_server_is_killed_and_nothing_is_lost(nats_trio, database, engine):
    log = await connect_surely(nats_trio.url)
    writer, follower = Writer(log, retry_s=60.0), Follower(log)
    producers = Producers(writer)
    dice = random.Random(7)
    async with asyncio.TaskGroup() as group, persisting(log, database) as progress:
        running = [group.create_task(part.run()) for part in (writer, follower)]
        working = [group.create_task(producers.produce(f"p{n}")) for n in range(4)]
        await producers.more(30)
        cursors = JetStreamCursors(log)
        await cursors.store("reader", Seq(1))
        for victim in (0, 1, 2):
            await asyncio.sleep(dice.uniform(0, 0.3))
            nats_trio.servers[victim].kill()
            await producers.more(60)
            nats_trio.servers[victim].start()
            await producers.more(30)
        await store_surely(cursors, Seq(7))
        assert await cursors.load("reader") == 7
        producers.stopped = True
        await asyncio.wait(working)
        last = await log.last_seq()
        await follower.wait_for(last, 60)
        await committed(progress, last)
        for task in running:
            task.cancel()
    stored = [decode(one.payload, one.seq) for one in await read_until(log, last)]
    there = {one.id: one.seq for one in stored}
    assert len(there) == len(stored) == last
    assert producers.acknowledged.items() <= there.items()
    assert await committed_seq(engine) == last
    await log.aclose()
