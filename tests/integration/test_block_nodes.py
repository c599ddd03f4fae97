"""KV blocks of real movers: told of, found by others, spilled, and back after a crash."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from mover_nodes import MoverNode
from stores import until
from tensorcast.client.blocks import Blocks
from tensorcast.log.blocks import JetStreamBlocks
from tensorcast.log.follower import Follower
from tensorcast.log.jetstream import connect_log
from tensorcast.movers.blocks.projection import BlockProjection
from tensorcast.schema.aggregates.node import NodeStatus
from tensorcast.schema.blocks import BlockKey, BlockPut, pack_key
from tensorcast.schema.ids import NodeId

MIB = 1 << 20
SIZE = 1 << 16

pytestmark = [pytest.mark.timeout(120)]


def keys(count: int, start: int = 0) -> list[bytes]:
    return [pack_key(BlockKey("llama", n.to_bytes(16, "big"))) for n in range(start, start + count)]


def content(number: int) -> bytes:
    return number.to_bytes(4, "big") * (SIZE // 4)


def client(node: MoverNode) -> Blocks:
    return Blocks(str(node.socket), node.name, "test", "user:ada@test")


@pytest.fixture
def node(tmp_path, nats_server):
    node = MoverNode(
        "n1",
        tmp_path / "n1",
        nats_server.url,
        TENSORCAST_KV_BYTES=str(16 * MIB),
        TENSORCAST_KV_DISK_BYTES=str(64 * MIB),
    )
    node.start()
    yield node
    node.close()


@asynccontextmanager
async def watching(nats_url: str):
    """Another node's opinion of where blocks are."""
    log = await connect_log(nats_url, "test", name="watch")
    follower = Follower(log)
    blocks = JetStreamBlocks(log.connection, "test")
    projection = BlockProjection(blocks, log, follower, NodeId("n9"))
    tasks = [asyncio.create_task(follower.run()), asyncio.create_task(projection.run())]
    try:
        yield projection, follower
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await log.aclose()


def found(projection: BlockProjection, count: int) -> int:
    return sum(nodes == ("n1",) for nodes in projection.locate(keys(count)))


async def test_what_a_mover_holds_is_known_elsewhere_through_crashes(node, nats_server):
    blocks = client(node)
    states = await asyncio.to_thread(blocks.put, keys(300), [content(n) for n in range(300)])
    assert set(states) == {BlockPut.STORED}  # more than fits into memory: some are on disk
    async with watching(nats_server.url) as (projection, follower):
        await until(lambda: found(projection, 300) == 300)
        assert projection.address(NodeId("n1"))
        blocks.evict(keys(10))
        await until(lambda: found(projection, 300) == 290)
        blocks.close()

        node.kill()
        node.start()
        await until(lambda: follower.view.nodes[NodeId("n1")].epoch == 2)
        blocks = client(node)
        # What was in memory is gone; what was on the disk is back, and right.
        here = blocks.exists(keys(300))
        there = [number for number in range(300) if here[number]]
        assert len(there) >= 30
        await until(lambda: found(projection, 300) == len(there))
        got = blocks.get([keys(300)[number] for number in there])
        assert [bytes(one) for one in got] == [content(number) for number in there]
        del got
        blocks.close()

        node.stop()
        await until(lambda: follower.view.nodes[NodeId("n1")].status is NodeStatus.LEFT)
        assert found(projection, 300) == 0


async def test_a_log_that_was_away_learns_everything_in_the_end(node, nats_server):
    blocks = client(node)
    blocks.put(keys(20), [content(n) for n in range(20)])
    await asyncio.to_thread(nats_server.kill)
    blocks.put(keys(20, 20), [content(n) for n in range(20, 40)])
    blocks.evict(keys(5))
    assert sum(blocks.exists(keys(40))) == 35  # no use of the log is made
    nats_server.start()
    async with watching(nats_server.url) as (projection, _):
        await until(lambda: found(projection, 40) == 35)
    blocks.close()
