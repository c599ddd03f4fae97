"""Movers, sources, supervisors, NATS and disks that die at the worst moment."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mover_nodes import MIB, Content, MoverNode, Observer, SlowSource, observing
from servers import NatsServer
from tensorcast.schema.aggregates.node import NodeStatus
from tensorcast.schema.aggregates.operation import OperationStatus
from tensorcast.schema.aggregates.replica import ReplicaStatus
from tensorcast.schema.commands import (
    CancelOperation,
    LeaveNode,
    RetryOperation,
)
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.faults import FaultKind
from tensorcast.schema.ids import OperationId, Tier, replica_id
from tensorcast.schema.work import Evict, Materialize

pytestmark = pytest.mark.slow

TOTAL, HELD = 48, 20
CONTENT = Content([TOTAL * MIB])


@pytest.fixture
def node(tmp_path: Path, nats_server: NatsServer) -> Iterator[MoverNode]:
    node = MoverNode("n1", tmp_path / "n1", nats_server.url)
    node.start()
    yield node
    node.close()


@pytest.fixture
def source() -> Iterator[SlowSource]:
    source = SlowSource("source", CONTENT, HELD)
    yield source
    source.close()


async def half_way(observer: Observer, source: SlowSource, name: str = "op") -> OperationId:
    """An operation of n1 that has pulled all that the source holds and waits for the rest."""
    operation = await observer.issue("n1", Materialize(artifact=source.content.id), name)
    await _happens(source.asked.is_set)
    await asyncio.sleep(0.3)
    return operation


async def _happens(predicate, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not predicate():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def read(node: MoverNode, what: str = CONTENT.id) -> bytes:
    with node.application() as application, application.get(what) as reading:
        return reading.bytes()


async def test_a_killed_mover_resumes_where_it_stood(
    node: MoverNode, source: SlowSource, nats_server: NatsServer
):
    async with observing(nats_server.url) as observer:
        await source.join(observer)
        operation = await half_way(observer, source)
        node.kill()
        assert len(node.store) == 1
        source.hold_all()
        node.start()
        done = await observer.succeeded(operation)
        assert done.bytes_moved == (TOTAL - HELD) * MIB
        assert read(node) == CONTENT.bytes
        events = await observer.events()
        assert [e.type for e in events].count("operation.succeeded") == 1
        with node.application() as application:
            stats = application.stats()
        assert (stats.segments, stats.replicas, stats.journal_pending) == (1, 1, 0)
        assert len(node.store) == 1


async def test_what_came_before_the_crash_is_told_by_the_operation_that_goes_on(
    node: MoverNode, source: SlowSource, nats_server: NatsServer
):
    async with observing(nats_server.url) as observer:
        await source.join(observer)
        operation = await half_way(observer, source)
        node.kill()
        ((_, fd),) = node.store.named()
        writable = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
        os.pwrite(writable, CONTENT.bytes, 0)  # as if all but the last had come, with no word yet
        os.pwrite(writable, b"nothing", (TOTAL - 1) * MIB)
        os.close(writable)
        source.hold_all()
        node.start()
        done = await observer.succeeded(operation)
        assert done.bytes_moved == MIB
        mine = [e for e in await observer.events() if e.actor == "mover:n1"]
        starts = [e.id for e in mine if e.type == "operation.started"]
        told = [e.cause for e in mine if e.type == "replica.filled"]
        assert len(starts) == 2
        assert starts[1] in told
        assert set(told) <= set(starts)


async def test_without_its_memory_it_starts_again(
    node: MoverNode, source: SlowSource, nats_server: NatsServer
):
    async with observing(nats_server.url) as observer:
        await source.join(observer)
        operation = await half_way(observer, source)
        node.kill()
        node.store.close()  # the supervisor died too
        source.hold_all()
        node.start()
        done = await observer.succeeded(operation)
        assert done.bytes_moved == TOTAL * MIB
        assert read(node) == CONTENT.bytes
        assert "replica.lost" in [event.type for event in await observer.events()]


async def test_damage_while_it_was_dead_is_pulled_again(
    node: MoverNode, source: SlowSource, nats_server: NatsServer
):
    async with observing(nats_server.url) as observer:
        await source.join(observer)
        operation = await half_way(observer, source)
        node.kill()
        ((_, fd),) = node.store.named()
        writable = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
        os.pwrite(writable, b"garbage", 5 * MIB)
        os.close(writable)
        source.hold_all()
        node.start()
        done = await observer.succeeded(operation)
        assert done.bytes_moved == (TOTAL - HELD + 1) * MIB
        assert read(node) == CONTENT.bytes


async def test_another_source_takes_over(
    node: MoverNode, source: SlowSource, nats_server: NatsServer
):
    other = SlowSource("other", CONTENT, 0)
    try:
        async with observing(nats_server.url) as observer:
            await source.join(observer)
            await other.join(observer)
            operation = await half_way(observer, source)
            source.close()
            other.hold_all()
            done = await observer.succeeded(operation)
            assert done.bytes_moved == TOTAL * MIB
            assert read(node) == CONTENT.bytes
    finally:
        other.close()


async def test_a_source_that_comes_back_is_used_at_once(
    node: MoverNode, source: SlowSource, nats_server: NatsServer
):
    other = SlowSource("other", CONTENT, 0)  # it waits as well, and never gets anything
    again = SlowSource("source", CONTENT, TOTAL)
    try:
        async with observing(nats_server.url) as observer:
            await source.join(observer)
            await other.join(observer)
            operation = await half_way(observer, source)
            began = time.monotonic()
            source.close()
            await again.join(observer, epoch=2)
            done = await observer.succeeded(operation)
            assert time.monotonic() - began < 3
            assert done.attempt == 1
            assert read(node) == CONTENT.bytes
    finally:
        other.close()
        again.close()


async def test_those_who_wait_for_each_other_give_up_soon(
    node: MoverNode, source: SlowSource, nats_server: NatsServer
):
    async with observing(nats_server.url) as observer:
        await source.join(observer)
        began = time.monotonic()
        operation = await observer.issue("n1", Materialize(artifact=CONTENT.id))
        ended = await observer.ended(operation)
        assert time.monotonic() - began < 6
        assert ended.fault is not None
        assert ended.fault.kind is FaultKind.UNAVAILABLE
        lacking = f"No node that is up has {TOTAL - HELD} of the {TOTAL} chunks"
        assert lacking in ended.fault.detail


async def test_bytes_that_are_nowhere_take_no_memory(
    node: MoverNode, source: SlowSource, nats_server: NatsServer
):
    async with observing(nats_server.url) as observer:
        await source.join(observer)
        view = await observer.view()
        epoch = view.nodes["source"].epoch
        await observer.execute(LeaveNode(node=source.name, epoch=epoch))
        operation = await observer.issue("n1", Materialize(artifact=CONTENT.id))
        ended = await observer.ended(operation)
        assert ended.fault is not None
        assert "are nowhere: no node that is up has them" in ended.fault.detail
        with node.application() as application:
            assert application.stats().segments == 0


async def test_a_source_that_reads_its_images_back_is_waited_for(
    node: MoverNode, tmp_path: Path, nats_server: NatsServer
):
    contents = [Content([8 * MIB], seed=n) for n in range(6)]
    with node.application() as application:
        for content in contents:
            application.put(content)
    assert node.stop() == 0
    node.store.close()
    other = MoverNode("n2", tmp_path / "n2", nats_server.url)
    try:
        other.start()
        async with observing(nats_server.url) as observer:
            node.start()
            issued = [await observer.issue("n2", Materialize(artifact=c.id)) for c in contents]
            for operation in issued:
                assert (await observer.succeeded(operation)).attempt == 1
    finally:
        other.close()


async def test_a_retry_moves_only_what_is_missing(
    node: MoverNode, source: SlowSource, nats_server: NatsServer
):
    async with observing(nats_server.url) as observer:
        await source.join(observer)
        operation = await half_way(observer, source)
        source.close()
        failed = await observer.ended(operation)
        assert failed.status is OperationStatus.FAILED
        assert failed.fault is not None
        assert failed.fault.kind is FaultKind.UNAVAILABLE
        assert failed.fault.retryable
        again = SlowSource("source", CONTENT, TOTAL)
        try:
            await again.join(observer, epoch=2)
            await observer.execute(RetryOperation(operation=operation))
            await observer.until(lambda view: view.operations[operation].attempt == 2)
            done = await observer.succeeded(operation)
            assert done.bytes_moved == (TOTAL - HELD) * MIB
            assert read(node) == CONTENT.bytes
        finally:
            again.close()


async def test_a_cancelled_pull_drops_what_it_has(
    node: MoverNode, source: SlowSource, nats_server: NatsServer
):
    async with observing(nats_server.url) as observer:
        await source.join(observer)
        operation = await half_way(observer, source)
        await observer.execute(CancelOperation(operation=operation, reason="test"))
        replica = replica_id(CONTENT.id, "n1", Tier.DRAM)
        await observer.until(
            lambda view: view.replicas[replica].status is ReplicaStatus.GONE, timeout_s=10
        )
        with node.application() as application:
            stats = application.stats()
            assert (stats.replicas, stats.used_bytes) == (0, 0)
            source.hold_all()
            with application.get(CONTENT.id) as reading:  # and it can be had again
                assert reading.bytes() == CONTENT.bytes


async def test_a_put_overtakes_a_pull(node: MoverNode, source: SlowSource, nats_server: NatsServer):
    async with observing(nats_server.url) as observer:
        await source.join(observer)
        operation = await half_way(observer, source)
        with node.application() as application:
            assert not application.put(CONTENT, key="m").existed
        assert read(node, "m") == CONTENT.bytes
        await observer.succeeded(operation)
        with node.application() as application:
            stats = application.stats()
            assert (stats.replicas, stats.used_bytes) == (1, TOTAL * MIB)


async def test_memory_survives_kill_and_stop(node: MoverNode, nats_server: NatsServer):
    contents = [Content([3 * MIB], seed=n) for n in range(3)]
    async with observing(nats_server.url) as observer:
        with node.application() as application:
            for n, content in enumerate(contents):
                application.put(content, key=f"m{n}")
            _, fd = application.open_put(MIB)  # never sealed
            node.kill()
            os.close(fd)
        node.start()
        assert [read(node, f"m{n}") for n in range(3)] == [c.bytes for c in contents]
        with node.application() as application:
            assert application.stats().used_bytes == 3 * 4 * MIB
        node.take_in()
        assert len(node.store) == 3
        assert node.stop() == 0
        node.store.close()
        view = await observer.view()
        assert view.nodes["n1"].status is NodeStatus.LEFT
        images = node.folder / "data" / "hibernate"
        assert len(list(images.iterdir())) == 3
        node.start()
        assert [read(node, f"m{n}") for n in range(3)] == [c.bytes for c in contents]
        await _happens(lambda: not list(images.iterdir()))
        types = [event.type for event in await observer.events()]
        assert "replica.lost" not in types
        assert types.count("replica.ready") == 3


async def test_an_eviction_is_finished_by_the_next_life(node: MoverNode, nats_server: NatsServer):
    content = Content([MIB])
    async with observing(nats_server.url) as observer:
        with node.application() as application:
            application.put(content, key="m")
        node.kill()
        operation = await observer.issue("n1", Evict(artifact=content.id, tier=Tier.DRAM))
        node.start()
        await observer.succeeded(operation)
        with node.application() as application:
            assert application.stats().used_bytes == 0
        node.take_in()
        assert len(node.store) <= 1  # a free segment may be kept for the next put


async def test_without_nats_it_goes_on_and_reports_later(
    node: MoverNode, source: SlowSource, nats_server: NatsServer
):
    async with observing(nats_server.url) as observer:
        await source.join(observer)
        operation = await half_way(observer, source)
    nats_server.kill()
    source.hold_all()
    # A demand read of what is known never waits for the log.
    await _happens(lambda: _is_readable(node))
    with node.application() as application:
        assert application.stats().journal_pending > 0
    node.kill()
    nats_server.start()
    node.start()
    async with observing(nats_server.url) as observer:
        await observer.view()
        await observer.succeeded(operation)
        types = [event.type for event in await observer.events()]
        assert types.count("operation.succeeded") == 1
        assert types.count("replica.ready") == 1
    assert read(node) == CONTENT.bytes


def _is_readable(node: MoverNode) -> bool:
    with suppress(TensorCastError), node.application() as application:
        reading = application.get(CONTENT.id, timeout_s=0.5)
        reading.close()
        return True
    return False


async def test_it_waits_for_nats_at_its_start(tmp_path: Path, nats_server: NatsServer):
    nats_server.kill()
    node = MoverNode("n1", tmp_path / "n1", nats_server.url)
    try:
        node.launch()
        node.wait_until(lambda: any("NATS" in status for status in node.statuses))
        nats_server.start()
        node.wait_until(lambda: node.socket.exists())
        with node.application() as application:
            assert application.stats().epoch == 1
        nats_server.kill()
        began = time.monotonic()
        assert node.stop() == 0
        assert time.monotonic() - began < 15
    finally:
        node.close()


async def test_another_log_is_refused(node: MoverNode, nats_server: NatsServer, tmp_path: Path):
    with node.application() as application:
        application.put(Content([MIB]))
    assert node.stop() == 0
    store = nats_server.folder / "jetstream"
    nats_server.kill()
    store.rename(tmp_path / "aside")
    nats_server.start()
    node.launch()
    node.wait_until_ended()
    assert node.status == 1
    sentence = "The log of cluster test is not the one this node knows"
    assert sentence in node.log_text()
    assert any(sentence in status for status in node.statuses)
    nats_server.kill()
    shutil.rmtree(store)
    (tmp_path / "aside").rename(store)
    nats_server.start()
    node.start()
    with node.application() as application:
        assert application.stats().epoch == 2


async def test_a_stop_with_nothing_to_do_is_quick(node: MoverNode):
    began = time.monotonic()
    assert node.stop() == 0
    assert time.monotonic() - began < 1.5
