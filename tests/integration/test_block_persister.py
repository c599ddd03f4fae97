"""KV events in Postgres: each once, whatever is killed, and what nodes hold is what they said."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from block_samples import SIZE, block_draft, cleared, evicted, key, keys, stored
from conformance.block_log import read_blocks
from stores import database, engine, until
from tensorcast.controlplane.services.block_persister import run_block_persister, split_batch
from tensorcast.controlplane.services.progress import Progress
from tensorcast.controlplane.store import block_queries
from tensorcast.controlplane.store.block_tables import kv_events, kv_logs
from tensorcast.log.blocks import BlockLog, JetStreamBlocks
from tensorcast.log.jetstream import connect_log
from tensorcast.log.memory import MemoryBlocks
from tensorcast.log.port import Stored
from tensorcast.movers.core.block_changes import BlockLedger, Teller
from tensorcast.schema.api import BlockQuery
from tensorcast.schema.block_events import decode_blocks
from tensorcast.schema.blocks import unpack_key
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.ids import Epoch, NodeId, Seq, Tier

__all__ = ["database", "engine"]  # fixtures


@asynccontextmanager
async def persisting(log: BlockLog, url: str):
    progress = Progress()
    task = asyncio.create_task(run_block_persister(log, url, progress))
    try:
        yield progress
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Node:
    """A node that stores and evicts at random, and tells of it."""

    def __init__(self, name: str, seed: int) -> None:
        self.ledger, self.teller = BlockLedger(), Teller(NodeId(name))
        self.name = name
        self.epoch = Epoch(1)
        self.dice = random.Random(seed)
        self.ledger.begin_anew("start")

    async def live(self, log: BlockLog, steps: int) -> None:
        for _ in range(steps):
            tier = self.dice.choice(list(Tier))
            some = [key(self.dice.randrange(200), f"s{n % 2}") for n in range(20)]
            self.ledger.stored(tier, [(one, self.dice.choice((SIZE, 9))) for one in some])
            self.ledger.evicted(tier, self.dice.sample(some, 5))
            if self.dice.random() < 0.1:
                self.epoch = Epoch(self.epoch + self.dice.randrange(2))
                self.ledger.begin_anew("again")
            events = list(self.teller.events(self.ledger.take(), self.epoch))
            if events:
                await append_surely(log, [block_draft(event) for event in events])

    def holds(self) -> dict:
        found: dict = {}
        for tier, held in self.ledger.held.items():
            for one, size in held.items():
                place = (self.name, tier.value, unpack_key(one).space)
                blocks, size_bytes = found.get(place, (0, 0))
                found[place] = (blocks + 1, size_bytes + size)
        return found


async def append_surely(log: BlockLog, drafts: list) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await log.append(drafts)
            except Unavailable:
                await asyncio.sleep(0.05)
            else:
                return


async def rows_of(engine) -> list:
    columns = [kv_events.c[name] for name in ("seq", "event_id", "type", "node", "keys")]
    async with engine.connect() as connection:
        found = await connection.execute(select(*columns).order_by(kv_events.c.seq))
        return [(row[0], str(row[1]), *row[2:]) for row in found]


async def check_copied(log: BlockLog, engine, nodes: list[Node]) -> None:
    """Postgres has each event once, in order, and what the nodes hold."""
    last = (await log.reach()).last
    expected = []
    for one in await read_blocks(log, last):
        read = decode_blocks(one.payload, one.seq)
        packed = getattr(read.event, "keys", None)
        expected.append((one.seq, read.id, read.type, read.event.node, packed))
    assert await rows_of(engine) == expected
    held = await block_queries.holdings(engine)
    assert {place: (one.blocks, one.size_bytes) for place, one in held.items()} == {
        place: count for node in nodes for place, count in node.holds().items()
    }


@pytest.mark.parametrize("seed", range(2))
async def test_postgres_holds_the_events_and_what_they_lead_to(database, engine, seed):
    log = MemoryBlocks()
    nodes = [Node("n1", seed), Node("n2", seed + 50)]
    for _ in range(3):  # each with another persister
        async with persisting(log, database) as progress:
            await asyncio.gather(*(node.live(log, 15) for node in nodes))
            last = (await log.reach()).last
            await until(lambda last=last: progress.committed_seq >= last)
            assert progress.problem is None
        await check_copied(log, engine, nodes)


async def test_who_holds_a_block_is_found_by_its_key(database, engine):
    log = MemoryBlocks()
    await log.append(
        [
            block_draft(event)
            for event in (
                cleared("n1"),
                cleared("n2"),
                stored(keys(500), "n1", sizes=tuple(range(1, 501))),
                stored(keys(3, 10), "n2", tier=Tier.DISK),
                evicted([key(10)], "n2", tier=Tier.DISK),
                stored([key(11)], "n1", epoch=2),
            )
        ]
    )
    async with persisting(log, database) as progress:
        await until(lambda: progress.committed_seq >= 6)
    mentions = await block_queries.find_mentions(engine, unpack_key(key(11)), None)
    assert [(one.seq, one.node, one.size_bytes, one.counts) for one in mentions] == [
        (6, "n1", SIZE, True),
        (4, "n2", SIZE, True),
        (3, "n1", 12, False),
    ]
    mentions = await block_queries.find_mentions(engine, unpack_key(key(10)), NodeId("n2"))
    assert [(one.type, one.size_bytes) for one in mentions] == [
        ("blocks.evicted", 0),
        ("blocks.stored", SIZE),
    ]
    for absent in (key(9999), key(1, "other"), key(1, rank=1)):
        assert await block_queries.find_mentions(engine, unpack_key(absent), None) == ()


async def test_events_are_answered_as_pages(database, engine):
    log = MemoryBlocks()
    await log.append([block_draft(cleared("n1"))])
    for number in range(5):
        await log.append([block_draft(stored(keys(3, number), f"n{number % 2}"))])
    async with persisting(log, database) as progress:
        await until(lambda: progress.committed_seq >= 6)

    async def ask(**query) -> list[int]:
        found = await block_queries.find_block_events(engine, BlockQuery(**query))
        return [one.seq for one in found]

    assert await ask() == [1, 2, 3, 4, 5, 6]
    assert await ask(limit=2) == [1, 2]
    assert await ask(limit=2, newest=True) == [5, 6]
    assert await ask(since=Seq(4)) == [5, 6]
    assert await ask(node=NodeId("n0")) == [2, 4, 6]
    assert await ask(type="blocks.cleared") == [1]
    assert await ask(space="llama", limit=1) == [2]
    (one,) = await block_queries.find_block_events(
        engine, BlockQuery(since=Seq(1), limit=1, with_keys=True)
    )
    assert b'"keys":"' in bytes(one.data)
    assert b'"blocks":3' in bytes(one.data)


async def test_another_log_of_the_same_name_is_copied_beside_the_first(database, engine):
    log = MemoryBlocks()
    await log.append([block_draft(cleared()), block_draft(stored(keys(3)))])
    async with persisting(log, database) as progress:
        await until(lambda: progress.committed_seq >= 2)
        log.replace()
        await log.append([block_draft(cleared())])
        await until(lambda: progress.committed_seq == 1)
    async with engine.connect() as connection:
        found = (await connection.execute(select(kv_logs).order_by(kv_logs.c.epoch))).all()
        assert [(row.epoch, row.created, row.seq) for row in found] == [(1, "1", 2), (2, "2", 1)]
    assert len(await rows_of(engine)) == 3


async def test_what_the_log_forgot_is_missing_and_nothing_else(database, engine):
    log = MemoryBlocks()
    node = Node("n1", 3)
    await node.live(log, 5)
    async with persisting(log, database) as progress:
        await until(lambda: progress.committed_seq >= log._last)
    before = log._last
    await node.live(log, 10)
    log.forget(Seq(before + 4))
    node.ledger.begin_anew("the log has forgotten the beginning")
    await node.live(log, 1)
    async with persisting(log, database) as progress:
        await until(lambda: progress.committed_seq >= log._last)
    seqs = [seq for seq, *_ in await rows_of(engine)]
    assert seqs == [*range(1, before + 1), *range(before + 5, log._last + 1)]
    held = await block_queries.holdings(engine)
    assert {place: (one.blocks, one.size_bytes) for place, one in held.items()} == node.holds()


async def test_rows_are_never_changed_but_old_ones_may_go(database, engine):
    log = MemoryBlocks()
    await log.append([block_draft(cleared())])
    async with persisting(log, database) as progress:
        await until(lambda: progress.committed_seq >= 1)
    with pytest.raises(DBAPIError, match="never changed"):
        async with engine.begin() as connection:
            await connection.execute(text("UPDATE kv_events SET node = 'n2'"))
    async with engine.begin() as connection:
        await connection.execute(text("DELETE FROM kv_events WHERE at < now()"))
    assert await rows_of(engine) == []


def test_a_batch_is_split_by_its_size():
    events = [Stored(Seq(n), "s", bytes(3 << 20)) for n in range(3)]
    assert [[one.seq for one in part] for part in split_batch(events)] == [[0], [1], [2]]
    assert [len(part) for part in split_batch([Stored(Seq(1), "s", b"x")] * 9)] == [9]


PERSISTER = """
import asyncio, sys
from tensorcast.controlplane.services.block_persister import run_block_persister
from tensorcast.log.blocks import JetStreamBlocks
from tensorcast.log.jetstream import connect_log

async def main(nats_url, postgres_url):
    log = await connect_log(nats_url, "c", name="persister")
    await run_block_persister(JetStreamBlocks(log.connection, "c"), postgres_url)

asyncio.run(main(*sys.argv[1:]))
"""


async def count(engine) -> int:
    async with engine.connect() as connection:
        return await connection.scalar(text("SELECT coalesce(max(seq), 0) FROM kv_events"))


async def reached(engine, seq: int) -> None:
    async with asyncio.timeout(60):
        while await count(engine) < seq:  # noqa: ASYNC110 - another process writes
            await asyncio.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_each_event_is_there_once_whatever_is_killed(
    nats_server, postgres_server, database, engine
):
    """The persister, NATS and Postgres are killed while nodes go on telling."""
    log = await connect_log(nats_server.url, "c", name="load")
    blocks = JetStreamBlocks(log.connection, "c")
    nodes = [Node("n1", 1), Node("n2", 2)]
    stopped = asyncio.Event()

    async def live(node: Node) -> None:
        while not stopped.is_set():
            await node.live(blocks, 1)
            await asyncio.sleep(0.01)

    writing = asyncio.gather(*map(live, nodes))
    start = [sys.executable, "-c", PERSISTER, nats_server.url, database]
    for victim in (None, None, nats_server, postgres_server):
        process = subprocess.Popen(start)  # noqa: ASYNC220 - it only starts
        try:
            if victim is None:
                await reached(engine, await count(engine) + 5)
            else:
                victim.kill()
                await asyncio.sleep(0.2)
                victim.start()
        finally:
            process.kill()
            process.wait()
    stopped.set()
    await writing
    process = subprocess.Popen(start)  # noqa: ASYNC220 - it only starts
    try:
        await reached(engine, (await blocks.reach()).last)
    finally:
        process.kill()
        process.wait()
    await check_copied(blocks, engine, nodes)
    await log.aclose()
