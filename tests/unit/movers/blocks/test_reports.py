"""What a node tells of its blocks, into a KV log in memory."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest

from block_samples import SIZE, key, keys
from conformance.block_log import events_of, read_blocks
from tensorcast.log.memory import MemoryBlocks
from tensorcast.movers.blocks import reports
from tensorcast.movers.blocks.reports import BlockReports
from tensorcast.movers.reports import Life
from tensorcast.schema.block_events import (
    BlocksCleared,
    BlocksEvicted,
    BlocksStored,
    decode_blocks,
    iterate_keys,
)
from tensorcast.schema.ids import Epoch, NodeId, Seq, Tier

DRAM, DISK = Tier.DRAM, Tier.DISK


class Node:
    """A node that reports, and the log that hears it."""

    def __init__(self) -> None:
        self.log = MemoryBlocks()
        self.life = Life(NodeId("n1"))
        self.life.epoch = Epoch(1)
        self.reports = BlockReports(self.log, self.life, linger_s=0)

    async def told(self) -> list:
        """All events of the log, once everything is told."""
        async with asyncio.timeout(10):
            await self.reports.settled()
            last = (await self.log.reach()).last
            return events_of(await read_blocks(self.log, last)) if last else []

    async def held(self) -> dict[Tier, set[bytes]]:
        """What a listener believes."""
        found: dict[Tier, set[bytes]] = {tier: set() for tier in Tier}
        for event in await self.told():
            match event:
                case BlocksCleared():
                    found = {tier: set() for tier in Tier}
                case BlocksStored():
                    found[event.tier] |= set(iterate_keys(event))
                case BlocksEvicted():
                    found[event.tier] -= set(iterate_keys(event))
        return found


@asynccontextmanager
async def reporting(node: Node):
    task = asyncio.create_task(node.reports.run())
    try:
        await until(lambda: node.log._last > 0 or node.log.away)
        yield node
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(predicate) -> None:
    async with asyncio.timeout(10):
        while not predicate():  # noqa: ASYNC110 - it has no event of its own
            await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    """Tests do not wait: the task looks again at once."""
    monkeypatch.setattr(reports, "LOOK_S", 0)
    monkeypatch.setattr(reports, "RETRY_S", 0)


async def test_a_life_begins_with_what_the_node_holds():
    node = Node()
    node.reports.stored(DISK, [(one, SIZE) for one in keys(3)])
    async with reporting(node):
        first, second = await node.told()
    assert first == BlocksCleared(
        node=NodeId("n1"), epoch=Epoch(1), reason="a life of the node begins"
    )
    assert (second.tier, list(iterate_keys(second))) == (DISK, keys(3))


async def test_what_happens_between_two_tellings_is_told_as_one():
    node = Node()
    async with reporting(node):
        for number in range(100):
            node.reports.stored(DRAM, [(key(number), SIZE)])
        node.reports.evicted(DRAM, keys(50))
        node.reports.stored(DRAM, [(key(60), SIZE)])
        _, event = await node.told()
        assert isinstance(event, BlocksStored)
        assert list(iterate_keys(event)) == keys(50, 50)
        node.reports.evicted(DRAM, [key(50)])
        node.reports.stored(DRAM, [(key(50), SIZE)])
        assert len(await node.told()) == 2


async def test_events_after_a_beginning_have_it_as_their_cause():
    node = Node()
    node.reports.stored(DRAM, [(key(1), SIZE)])
    async with reporting(node):
        await node.told()
    found = [one.payload for one in await read_blocks(node.log, 2)]
    first, second = (decode_blocks(payload, Seq(1)) for payload in found)
    assert (first.cause, second.cause) == (None, first.id)
    assert first.actor == second.actor == "mover:n1"


async def test_any_thread_may_report():
    node = Node()

    def report(start: int) -> None:
        for number in range(start, start + 300):
            node.reports.stored(DRAM, [(key(number), SIZE)])
            if number % 3 == 0:
                node.reports.evicted(DRAM, [key(number)])

    async with reporting(node):
        threads = [threading.Thread(target=report, args=(n * 1000,)) for n in range(4)]
        for thread in threads:
            thread.start()
        await until(lambda: not any(thread.is_alive() for thread in threads))
        expected = {key(n * 1000 + m) for n in range(4) for m in range(300) if (n * 1000 + m) % 3}
        assert (await node.held())[DRAM] == expected


async def test_an_outage_delays_and_loses_nothing():
    node = Node()
    async with reporting(node):
        node.reports.stored(DRAM, [(key(1), SIZE)])
        await node.told()
        node.log.away = True
        node.reports.stored(DRAM, [(key(2), SIZE)])
        for _ in range(50):
            await asyncio.sleep(0)
        node.reports.evicted(DRAM, [key(1), key(2)])
        node.reports.stored(DRAM, [(key(3), SIZE)])
        node.log.away = False
        assert (await node.held())[DRAM] == {key(3)}
        kinds = [type(event) for event in await node.told()]
        assert kinds.count(BlocksCleared) == 1


async def test_too_long_an_outage_ends_with_everything_told_anew(monkeypatch):
    node = Node()
    node.reports._ledger._changes_max = 100
    async with reporting(node):
        node.reports.stored(DRAM, [(one, SIZE) for one in keys(20)])
        await node.told()
        node.log.away = True
        node.reports.evicted(DRAM, [key(0)])
        for _ in range(20):
            await asyncio.sleep(0)
        for number in range(1000, 2000):
            node.reports.stored(DISK, [(key(number), SIZE)])
            node.reports.evicted(DISK, [key(number)])
        assert node.reports._ledger.waiting <= 101
        node.log.away = False
        held = await node.held()
        assert (held[DRAM], held[DISK]) == (set(keys(19, 1)), set())
        events = await node.told()
        assert [one.reason for one in events if isinstance(one, BlocksCleared)][1:] == [
            "too many changes waited to be told"
        ]


async def test_a_node_that_joins_again_tells_everything_in_its_new_life():
    node = Node()
    async with reporting(node):
        node.reports.stored(DRAM, [(one, SIZE) for one in keys(2)])
        await node.told()
        node.life.epoch = Epoch(2)
        await until(lambda: node.log._last == 4)
        *_, began, stored = await node.told()
    assert isinstance(began, BlocksCleared)
    assert began.epoch == stored.epoch == 2
    assert list(iterate_keys(stored)) == keys(2)


@pytest.mark.parametrize("trouble", ["replaced", "forgotten", "long", "old"])
async def test_the_beginning_is_told_again_when_a_reader_would_miss_it(trouble, monkeypatch):
    monkeypatch.setattr(reports, "CHECK_S", 0)
    node = Node()
    async with reporting(node):
        node.reports.stored(DRAM, [(one, SIZE) for one in keys(2)])
        await node.told()
        if trouble == "replaced":
            node.log.replace()
        else:
            monkeypatch.setattr(reports, "ANEW_S_MIN", 0)
        if trouble == "forgotten":
            node.log.forget(Seq(1))
        elif trouble == "long":
            monkeypatch.setattr(reports, "READ_KEYS", -7)
        elif trouble == "old":
            monkeypatch.setattr(reports, "limits", lambda: (1 << 30, 0))
        before = node.log._last
        await until(lambda: node.log._last >= (before if trouble != "replaced" else 0) + 2)
        monkeypatch.undo()
    events = events_of(await read_blocks(node.log, before + 1))
    assert any(isinstance(event, BlocksCleared) for event in events)
    assert (await node.held())[DRAM] == set(keys(2))


async def test_who_reports_when_nobody_listens_any_more_is_not_told_off():
    node = Node()
    async with reporting(node):
        pass
    node.reports.stored(DRAM, [(key(1), SIZE)])
    node.reports.evicted(DRAM, [key(1)])
    node.reports.cleared()
