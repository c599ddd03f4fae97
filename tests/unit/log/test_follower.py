from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from conformance.log import cordoned, draft
from tensorcast.log import follower as module
from tensorcast.log.follower import Follower
from tensorcast.log.memory import MemoryLog
from tensorcast.log.port import Stored
from tensorcast.schema.cluster import ClusterView, project
from tensorcast.schema.codec import decode
from tensorcast.schema.errors import Timeout, Unavailable
from tensorcast.schema.events import NodeJoined
from tensorcast.schema.ids import Epoch, NodeId, Seq


def joined(node: str) -> NodeJoined:
    return NodeJoined(
        node=NodeId(node), epoch=Epoch(1), address="a:1", tiers={}, transports=("tcp",)
    )


@asynccontextmanager
async def following(follower: Follower):
    task = asyncio.create_task(follower.run())
    try:
        yield follower
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_it_folds_what_is_there_and_what_comes():
    log = MemoryLog()
    await log.append([draft(joined("n1"))])
    async with following(Follower(log)) as follower:
        view = await follower.wait_for(Seq(1), 5)
        assert list(view.nodes) == ["n1"]
        await log.append([draft(joined("n2")), draft(cordoned("n1"))])
        view = await follower.wait_until(lambda view: "n2" in view.nodes, 5)
        assert view is follower.view
        assert view.at == 3


async def test_it_goes_on_from_a_view():
    log = MemoryLog()
    await log.append([draft(joined("n1")), draft(joined("n2"))])
    stored = await log.read_one(Seq(1))
    view = project(ClusterView(), decode(stored.payload, stored.seq))
    async with following(Follower(log, view=view)) as follower:
        view = await follower.wait_for(Seq(2), 5)
        assert sorted(view.nodes) == ["n1", "n2"]
        assert view.skipped == 0


async def test_waiting_ends_with_a_timeout_that_says_where_it_stands():
    async with following(Follower(MemoryLog())) as follower:
        with pytest.raises(Timeout, match=r"Event 9 .* last one is 0"):
            await follower.wait_for(Seq(9), 0.01)
        with pytest.raises(Timeout):
            await follower.wait_until(lambda view: bool(view.nodes), 0.01)


async def test_catching_up_takes_as_long_as_it_goes_on(monkeypatch):
    monkeypatch.setattr(module, "TELL_S", 0.01)
    log, told = MemoryLog(), list[Seq]()

    def tell(seen: Seq) -> None:
        """Each time that it is told, one more comes."""
        told.append(seen)
        log._stored.append(Stored(Seq(seen + 1), "tc.default.log.node.n1", b"junk"))
        log._wake()

    async with following(Follower(log)) as follower:
        view = await follower.catch_up(Seq(4), 30, tell)
        assert view.at == 4
        assert told == sorted(told)
        with pytest.raises(Timeout, match=r"Event 9 .* last one is 4"):
            await follower.catch_up(Seq(9), 0.05)


async def test_an_unreadable_event_is_counted_and_passed_over():
    log = MemoryLog()
    log._stored.append(Stored(Seq(1), "tc.default.log.node.n1", b"junk"))
    await log.append([draft(joined("n2"))])
    async with following(Follower(log)) as follower:
        view = await follower.wait_for(Seq(2), 5)
        assert (view.at, view.skipped, list(view.nodes)) == (2, 1, ["n2"])


async def test_a_subscriber_sees_each_event_with_the_view_after_it():
    log = MemoryLog()
    await log.append([draft(joined("n1"))])
    async with following(Follower(log)) as follower:
        await follower.wait_for(Seq(1), 5)
        with follower.subscribe() as subscription:
            assert subscription.view.at == 1
            await log.append([draft(joined(f"m{number}")) for number in range(3)])
            await follower.wait_for(Seq(4), 5)
            for number in range(3):
                view, recorded = await anext(subscription)
                assert recorded.event == joined(f"m{number}")
                assert view.at == recorded.seq == number + 2
                assert len(view.nodes) == number + 2
            waiting = asyncio.ensure_future(anext(subscription))
            await asyncio.sleep(0)
            assert not waiting.done()
        with pytest.raises(StopAsyncIteration):
            await waiting


async def test_a_closed_subscription_still_gives_what_it_has():
    log = MemoryLog()
    async with following(Follower(log)) as follower:
        subscription = follower.subscribe()
        await log.append([draft(joined("n1"))])
        await follower.wait_for(Seq(1), 5)
        subscription.close()
        subscription.close()
        await log.append([draft(joined("n2"))])
        await follower.wait_for(Seq(2), 5)
        assert [recorded.seq async for _, recorded in subscription] == [1]


async def test_a_slow_subscriber_holds_nobody_back_and_is_told():
    log = MemoryLog()
    async with following(Follower(log)) as follower:
        slow, fast = follower.subscribe(events_max=2), follower.subscribe()
        await log.append([draft(joined(f"n{number}")) for number in range(4)])
        await follower.wait_for(Seq(4), 5)
        with pytest.raises(Unavailable, match="2 events behind"):
            await anext(slow)
        assert [(await anext(fast))[1].seq for _ in range(4)] == [1, 2, 3, 4]
        await log.append([draft(cordoned("n1"))])
        await follower.wait_for(Seq(5), 5)
        with pytest.raises(Unavailable):
            await anext(slow)
