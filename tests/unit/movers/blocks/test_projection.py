"""Where blocks are, as a mover follows it in a KV log in memory."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from block_samples import block_draft, cleared, evicted, key, keys, stored
from conformance.log import draft
from tensorcast.log.follower import Follower
from tensorcast.log.memory import MemoryBlocks, MemoryLog
from tensorcast.movers.blocks import projection
from tensorcast.movers.blocks.projection import BlockProjection
from tensorcast.schema.events import NodeJoined, NodeLeft, NodeLost
from tensorcast.schema.ids import Epoch, NodeId, Seq, Tier

OWN = NodeId("n0")


class World:
    """A cluster's two logs, and one mover that follows both."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.blocks = MemoryBlocks()
        self.follower = Follower(self.log)
        self.projection = BlockProjection(self.blocks, self.log, self.follower, OWN)

    async def happens(self, event) -> None:
        (seq,) = await self.log.append([draft(event)])
        await self.follower.wait_for(seq, 5)

    async def joins(self, node: str, epoch: int = 1) -> None:
        await self.happens(
            NodeJoined(
                node=NodeId(node),
                epoch=Epoch(epoch),
                address=f"{node}:4000",
                tiers={Tier.DRAM: 1},
                transports=("tcp",),
            )
        )

    async def tell(self, *events) -> None:
        await self.blocks.append([block_draft(event) for event in events])

    async def known(self) -> None:
        last = (await self.blocks.reach()).last
        async with asyncio.timeout(5):
            while self.projection.at < last:  # noqa: ASYNC110 - it has no event of its own
                await asyncio.sleep(0)


async def turns() -> None:
    """Lets the tasks do what they can."""
    for _ in range(20):
        await asyncio.sleep(0)


@asynccontextmanager
async def following(world: World):
    task = asyncio.create_task(world.projection.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def world(monkeypatch):
    monkeypatch.setattr(projection, "RETRY_S", 0)
    world = World()
    task = asyncio.create_task(world.follower.run())
    yield world
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_it_follows_what_comes(world):
    await world.joins("n1")
    async with following(world):
        await world.tell(cleared(), stored(keys(3)), evicted([key(1)]))
        await world.known()
        assert world.projection.locate(keys(4)) == [("n1",), (), ("n1",), ()]
        assert len(world.projection) == 2


async def test_who_comes_late_learns_what_is_there(world):
    for name in ("n1", "n2"):
        await world.joins(name)
        await world.tell(cleared(name), stored(keys(2), name))
    await world.tell(cleared("n1"), stored([key(7)], "n1"))
    world.blocks.forget(Seq(2))
    async with following(world):
        await world.known()
        assert world.projection.locate([key(0), key(7)]) == [("n2",), ("n1",)]
        assert len(world.projection) == 3


async def test_only_what_is_needed_is_read(world):
    await world.joins("n1")
    await world.tell(*(stored([key(n)], "n9") for n in range(10)), cleared(), stored([key(99)]))
    async with following(world):
        await world.known()
        assert len(world.projection) == 1


async def test_a_node_that_is_not_up_is_not_named(world):
    async with following(world):
        await turns()  # it reads before the node speaks
        await world.tell(cleared(), stored(keys(1)))
        await world.known()
        assert world.projection.locate(keys(1)) == [()]  # the log has not shown that it joined
        await world.joins("n1")
        assert world.projection.locate(keys(1)) == [("n1",)]
        assert world.projection.address(NodeId("n1")) == "n1:4000"
        await world.happens(NodeLost(node=NodeId("n1"), epoch=Epoch(1), silent_s=9.0))
        assert world.projection.locate(keys(1)) == [()]
        assert world.projection.address(NodeId("n1")) is None
        await world.joins("n1", 2)
        assert world.projection.locate(keys(1)) == [()]
        await world.tell(cleared("n1", 2), stored(keys(1), "n1", 2))
        await world.known()
        assert world.projection.locate(keys(1)) == [("n1",)]
        await world.happens(NodeLeft(node=NodeId("n1"), epoch=Epoch(2)))
        assert world.projection.locate(keys(1)) == [()]


async def test_another_log_is_followed_from_its_beginning(world):
    await world.joins("n1")
    async with following(world):
        await world.tell(cleared(), stored(keys(5)))
        await world.known()
        world.blocks.replace()
        await world.tell(cleared(), stored([key(9)]))
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            while world.projection.locate([key(9)]) != [("n1",)]:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert world.projection.locate([key(0)]) == [()]


async def test_while_the_log_is_away_what_was_known_stays(world):
    await world.joins("n1")
    world.blocks.away = True
    async with following(world):
        await turns()
        assert world.projection.locate(keys(1)) == [()]
        world.blocks.away = False
        await world.tell(cleared(), stored(keys(1)))
        await world.known()
        world.blocks.away = True
        world.blocks._wake()
        await turns()
        assert world.projection.locate(keys(1)) == [("n1",)]
