"""A watcher of a real ZMQ publisher: nothing is missed, or it says so."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest

from kv_publishers import CLEARED, Publisher, removed, stored, tokens
from tensorcast.engines.vllm import events
from tensorcast.engines.vllm.events import Sources, Watcher
from tensorcast.engines.vllm.kv_batches import pack_hash
from tensorcast.engines.vllm.telling import Teller
from tensorcast.schema.api_engine_blocks import Reported
from tensorcast.schema.engine_blocks import (
    ENGINE_BLOCK_EVENT_TYPES,
    EngineBlocksCleared,
    EngineBlocksStored,
)
from tensorcast.schema.errors import InvalidArgument, Unavailable
from tensorcast.schema.ids import EngineId, Seq
from tensorcast.schema.prefixes import name_prefixes

PATIENCE_S = 10.0


class Cluster:
    """What was told, folded as the cluster folds it. `away` makes it unreachable."""

    def __init__(self) -> None:
        self.away = 0
        self.created = "one"
        self.lives: list[str] = []
        self.events: list[object] = []
        self.held: dict[bytes, bytes] = {}
        self.is_exact: bool | None = None
        self.reason = ""
        self.told = asyncio.Event()

    async def report_blocks(self, reported):
        if self.away:
            self.away -= 1
            raise Unavailable("The control plane is not running.")
        for one in reported:
            event = msgspec.json.decode(one.data, type=ENGINE_BLOCK_EVENT_TYPES[one.type])
            self.events.append(event)
            self._take(event)
        self.told.set()
        return Reported(seq=Seq(len(self.events)), created=self.created)

    def _take(self, event):
        if isinstance(event, EngineBlocksCleared):
            self.lives.append(event.life)
            self.held.clear()
            self.is_exact, self.reason = event.is_exact, event.reason
            return
        assert event.life == self.lives[-1]
        if isinstance(event, EngineBlocksStored):
            self.held |= zip(event.iterate_hashes(), event.iterate_prefixes(), strict=True)
        else:
            for hash_ in event.iterate_hashes():
                self.held.pop(hash_, None)

    async def until(self, *numbers, is_exact=True):
        """Waits until it knows these blocks and no others."""
        wanted = set(map(pack_hash, numbers))
        try:
            async with asyncio.timeout(PATIENCE_S):
                while set(self.held) != wanted or self.is_exact is not is_exact:
                    await self.told.wait()
                    self.told.clear()
        except TimeoutError:
            raise AssertionError((set(self.held), self.is_exact, self.reason)) from None


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
async def engine(tmp_path):
    publisher = Publisher(tmp_path, keeps=5)
    serving = asyncio.create_task(publisher.serve())
    yield publisher
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    publisher.close()


@asynccontextmanager
async def watching(engine, cluster, *, replay=True, probe_s=0.2):
    sources = Sources(engine.events, engine.replay if replay else None)
    watcher = Watcher(sources, Teller(cluster, EngineId("e1")), probe_s=probe_s)
    running = asyncio.create_task(watcher.run())
    try:
        yield watcher
        assert not running.done(), running.exception()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_what_an_engine_holds_is_told_as_it_changes(engine, cluster):
    async with watching(engine, cluster):
        await cluster.until()
        await engine.publish(stored(1, 3))
        await cluster.until(1, 2, 3)
        assert list(cluster.held.values()) == name_prefixes(tokens(1, 3), 4)
        await engine.publish(removed(2), stored(4, 1, parent=3))
        await cluster.until(1, 3, 4)
        await engine.publish(CLEARED)
        await cluster.until()


async def test_who_comes_late_learns_all_that_happened(engine, cluster):
    await engine.publish(stored(1, 2), lost=True)
    await engine.publish(removed(1), lost=True)
    async with watching(engine, cluster):
        await cluster.until(2)


async def test_what_gets_lost_is_asked_again(engine, cluster):
    async with watching(engine, cluster, probe_s=30):
        await cluster.until()
        await engine.publish(stored(1, 1))
        await cluster.until(1)
        await engine.publish(stored(2, 1, parent=1), lost=True)
        await engine.publish(removed(1), lost=True)
        await engine.publish(stored(3, 1, parent=2))
        await cluster.until(2, 3)
        assert engine.asked[-1] == 0  # from the last batch that was seen on


async def test_the_last_batches_of_a_silent_engine_are_found_too(engine, cluster):
    async with watching(engine, cluster):
        await engine.publish(stored(1, 1))
        await cluster.until(1)
        await engine.publish(stored(2, 1, parent=1), lost=True)
        await cluster.until(1, 2)


async def test_what_nobody_can_tell_any_more_makes_the_view_partial(engine, cluster):
    async with watching(engine, cluster, probe_s=30):
        await cluster.until()
        await engine.publish(stored(1, 2))
        await cluster.until(1, 2)
        for number in range(10, 17):  # it keeps five
            await engine.publish(stored(number, 1), lost=True)
        await engine.publish(stored(30, 1))
        await cluster.until(13, 14, 15, 16, 30, is_exact=False)
        assert cluster.reason.startswith("Batches 1 to 3 are lost")
        await engine.publish(removed(1), stored(31, 1, parent=30))
        await cluster.until(13, 14, 15, 16, 30, 31, is_exact=False)
        await engine.publish(CLEARED, stored(40, 1))
        await cluster.until(40, is_exact=True)


async def test_an_engine_that_starts_anew_holds_nothing_of_before(engine, cluster):
    async with watching(engine, cluster):
        await engine.publish(stored(1, 2))
        await engine.publish(stored(3, 1, parent=2))
        await cluster.until(1, 2, 3)
        engine.restart()
        await engine.publish(stored(7, 1))
        await cluster.until(7)


async def test_an_engine_that_starts_anew_in_silence_is_noticed(engine, cluster):
    async with watching(engine, cluster):
        await engine.publish(stored(1, 2))
        await cluster.until(1, 2)
        engine.restart()
        await cluster.until()


async def test_another_life_that_has_come_as_far_is_not_taken_for_the_same(engine, cluster):
    """Its first batches are published before the watcher is connected again."""
    async with watching(engine, cluster, probe_s=30):
        await engine.publish(stored(1, 2))
        await cluster.until(1, 2)
        engine.restart()
        await engine.publish(stored(7, 1), lost=True)
        async with asyncio.timeout(PATIENCE_S):
            while pack_hash(7) not in cluster.held:
                number = 8 + await engine.publish(stored(8, 1, parent=7))
                await asyncio.sleep(0.1)
        assert number > 8
        await cluster.until(7, 8)


async def test_without_replay_it_knows_only_what_it_saw(engine, cluster):
    await engine.publish(stored(1, 2), lost=True)
    async with watching(engine, cluster, replay=False):
        await cluster.until(is_exact=False)
        async with asyncio.timeout(PATIENCE_S):  # until its subscription has arrived
            while not cluster.held:
                await engine.publish(stored(5, 1))
                await asyncio.sleep(0.05)
        await cluster.until(5, is_exact=False)
        await engine.publish(stored(6, 1, parent=5), lost=True)
        await engine.publish(stored(7, 1))
        await cluster.until(7, is_exact=False)
        await engine.publish(CLEARED)
        await cluster.until(is_exact=True)


async def test_bytes_that_are_no_batch_count_as_lost(engine, cluster):
    async with watching(engine, cluster, probe_s=30):
        await cluster.until()
        await engine.publish(stored(1, 1))
        await engine.publish(payload=b"\xff not a batch")
        await engine.publish(stored(3, 1))
        await cluster.until(3, is_exact=False)


async def test_a_cluster_that_is_away_is_told_later(engine, cluster, monkeypatch):
    monkeypatch.setattr("tensorcast.engines.vllm.telling.RETRY_S", 0.01)
    cluster.away = 5
    async with watching(engine, cluster):
        await engine.publish(stored(1, 2))
        await cluster.until(1, 2)


async def test_another_kv_log_is_told_everything(engine, cluster):
    async with watching(engine, cluster):
        await engine.publish(stored(1, 2))
        await cluster.until(1, 2)
        cluster.created, cluster.held = "two", {}
        await engine.publish(stored(3, 1, parent=2))
        await cluster.until(1, 2, 3)


async def test_many_blocks_are_told_in_parts(engine, cluster):
    async with watching(engine, cluster):
        await engine.publish(stored(1, 10_000))
        await cluster.until(*range(1, 10_001))
        sizes = [e.count for e in cluster.events if isinstance(e, EngineBlocksStored)]
        assert sizes == [4096, 4096, 1808]


async def test_an_address_that_cannot_be_is_told(tmp_path, cluster):
    watcher = Watcher(Sources("nowhere", None), Teller(cluster, EngineId("e1")))
    with pytest.raises(Unavailable, match="nowhere"):
        await watcher.run()


async def test_what_the_cluster_refuses_ends_the_watch(engine):
    class Refusing:
        async def report_blocks(self, reported):
            raise InvalidArgument("It makes no sense.")

    watcher = Watcher(Sources(engine.events, engine.replay), Teller(Refusing(), EngineId("e1")))
    with pytest.raises(InvalidArgument):
        await watcher.run()


async def test_a_replay_endpoint_that_is_silent_is_no_end(tmp_path, engine, cluster, monkeypatch):
    monkeypatch.setattr(events, "REPLAY_S_MAX", 0.1)
    sources = Sources(engine.events, f"ipc://{tmp_path}/nobody")
    watcher = Watcher(sources, Teller(cluster, EngineId("e1")), probe_s=0.2)
    running = asyncio.create_task(watcher.run())
    try:
        await cluster.until(is_exact=False)
        assert "does not say" in cluster.reason
        await engine.publish(stored(1, 1))
        await cluster.until(1, is_exact=False)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
