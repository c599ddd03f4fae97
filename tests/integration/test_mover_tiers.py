"""The tiers of a node: straight to the disk, past a small memory, within the budgets."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controlplanes import scheduling
from mover_nodes import MIB, Content, MoverNode, Observer, SlowSource, observing
from servers import NatsServer
from tensorcast.movers.core.eviction import APART_S
from tensorcast.movers.disk_pulls import choose_window
from tensorcast.movers.partial import PREFIX
from tensorcast.schema.aggregates.operation import OperationStatus
from tensorcast.schema.aggregates.replica import ReplicaStatus
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import (
    LoseReplica,
    PinArtifact,
    RemoveArtifact,
    RemoveKey,
    UnpinArtifact,
)
from tensorcast.schema.errors import OutOfCapacity
from tensorcast.schema.faults import FaultKind
from tensorcast.schema.ids import Key, Tier, replica_id
from tensorcast.schema.work import Evict, Load, Materialize, Persist, Verify

SMALL = 8 * MIB


@contextmanager
def running(folder: Path, nats: NatsServer, **nodes: dict[str, str]) -> Iterator[list[MoverNode]]:
    """Movers by name, each with more settings."""
    started = [MoverNode(name, folder / name, nats.url, **more) for name, more in nodes.items()]
    try:
        for node in started:
            node.start()
        yield started
    finally:
        for node in started:
            node.close()


def put(node: MoverNode, content: Content, key: str = "m") -> None:
    with node.application() as application:
        application.put(content, key=key)


def read(node: MoverNode, key: str = "m") -> bytes:
    with node.application() as application, application.get(key) as reading:
        return reading.bytes()


def status(view: ClusterView, content: Content, node: str, tier: Tier) -> ReplicaStatus | None:
    found = view.replicas.get(replica_id(content.id, node, tier))
    return found and found.status


def has_bytes(node: MoverNode, beginning: bytes) -> bool:
    """Whether a segment of the node begins with these bytes."""
    segments = node.store.named()
    return any(os.pread(fd, len(beginning), 0) == beginning for _, fd in segments)


async def test_an_artifact_larger_than_the_memory_goes_to_the_disk(
    tmp_path: Path, nats_server: NatsServer
):
    """From memory to a disk, from there to another disk, and from there to memory."""
    content = Content([5 * MIB, 333, 30 * MIB, 7, 1])
    small = {"TENSORCAST_DRAM_BYTES": str(SMALL)}
    with running(tmp_path, nats_server, n1={}, n2=small, n3=small) as (n1, n2, n3):
        async with observing(nats_server.url) as observer:
            put(n1, content)
            for node in (n2, n3):
                work = Materialize(artifact=content.id, tier=Tier.DISK)
                done = await observer.succeeded(await observer.issue(node.name, work))
                assert done.bytes_moved == content.manifest.size_bytes
                verify = Verify(artifact=content.id, tier=Tier.DISK)
                await observer.succeeded(await observer.issue(node.name, verify))
                with node.application() as application:
                    stats = application.stats()
                    assert (stats.used_bytes, stats.replicas) == (0, 0)
                    assert stats.free_bytes <= SMALL
                    assert stats.disk_used_bytes > content.manifest.size_bytes
                if node is n2:  # the next one finds it on this disk alone
                    evict = Evict(artifact=content.id, tier=Tier.DRAM)
                    await observer.succeeded(await observer.issue("n1", evict))
            assert read(n1) == content.bytes
            events = await observer.events()
    mine = [e.type for e in events if e.actor == "mover:n2" and e.type.startswith("replica")]
    assert mine[0] == "replica.started"
    assert mine[-1] == "replica.ready"
    assert "replica.filled" in mine


async def test_reading_what_never_fits_is_refused_at_once_and_says_what_helps(
    tmp_path: Path, nats_server: NatsServer
):
    content = Content([20 * MIB])
    small = {"TENSORCAST_DRAM_BYTES": str(SMALL)}
    with running(tmp_path, nats_server, n1={}, n2=small) as (n1, n2):
        async with observing(nats_server.url) as observer:
            put(n1, content)
            with n2.application() as application:
                began = time.monotonic()
                with pytest.raises(OutOfCapacity, match="--tier disk") as caught:
                    application.get("m")
                assert time.monotonic() - began < 5
            assert not caught.value.retryable
            view = await observer.view()
    (operation,) = view.operations.values()
    assert operation.fault is not None
    assert operation.fault.kind is FaultKind.OUT_OF_CAPACITY
    assert not operation.fault.retryable


async def test_a_pull_to_the_disk_goes_on_where_a_crash_stopped_it(
    tmp_path: Path, nats_server: NatsServer
):
    content = Content([24 * MIB])
    total = content.manifest.chunks_total
    source = SlowSource("n1", content, 10)
    with running(tmp_path, nats_server, n2={"TENSORCAST_DRAM_BYTES": str(SMALL)}) as (n2,):
        async with observing(nats_server.url) as observer:
            try:
                await source.join(observer)
                work = Materialize(artifact=content.id, tier=Tier.DISK)
                operation = await observer.issue("n2", work)
                half = replica_id(content.id, "n2", Tier.DISK)
                await observer.until(
                    lambda view: half in view.replicas and len(view.replicas[half].chunks) >= 8
                )
                n2.kill()
                assert list((tmp_path / "n2" / "data" / "disk").glob(f"{PREFIX}*"))
                source.hold_all()
                n2.start()
                done = await observer.succeeded(operation)
            finally:
                source.close()
            kept = total - done.bytes_moved // MIB
            assert kept >= 8
            verify = Verify(artifact=content.id, tier=Tier.DISK)
            await observer.succeeded(await observer.issue("n2", verify))
            assert not list((tmp_path / "n2" / "data" / "disk").glob(f"{PREFIX}*"))


async def test_half_a_disk_replica_is_served(tmp_path: Path, nats_server: NatsServer):
    """A chain over disks: the second node gets from the first what that one has so far."""
    content = Content([12 * MIB])
    window = choose_window(SMALL, content.manifest.chunk_bytes) // MIB
    source = SlowSource("n1", content, 6)
    small = {"TENSORCAST_DRAM_BYTES": str(SMALL)}
    with running(tmp_path, nats_server, n2=small, n3={}) as (_, n3):
        async with observing(nats_server.url) as observer:
            try:
                await source.join(observer)
                work = Materialize(artifact=content.id, tier=Tier.DISK)
                operation = await observer.issue("n2", work)
                half = replica_id(content.id, "n2", Tier.DISK)
                there = 6 // window * window
                await observer.until(
                    lambda view: half in view.replicas and len(view.replicas[half].chunks) >= there
                )
                source.chunks = ChunkSet()  # from now on only n2 has any
                other = await observer.issue("n3", Materialize(artifact=content.id))
                await asyncio.to_thread(
                    n3.wait_until, lambda: has_bytes(n3, content.bytes[: there * MIB])
                )
                source.hold_all()
                await observer.succeeded(operation)
                await observer.succeeded(other)
            finally:
                source.close()
            assert read(n3, content.id) == content.bytes


async def test_the_disk_never_holds_more_than_its_budget(tmp_path: Path, nats_server: NatsServer):
    one, two = Content([6 * MIB], seed=1), Content([6 * MIB], seed=2)
    limits = {"TENSORCAST_DISK_BYTES": str(10 * MIB), "TENSORCAST_ROOM_WAIT_S": "0.5"}
    with running(tmp_path, nats_server, n1=limits, n2={}) as (n1, _):
        async with observing(nats_server.url) as observer:
            put(n1, one, "one")
            put(n1, two, "two")
            await observer.succeeded(await observer.issue("n1", Persist(artifact=one.id)))
            failed = await observer.ended(await observer.issue("n1", Persist(artifact=two.id)))
            assert failed.status is OperationStatus.FAILED
            assert failed.fault is not None
            assert failed.fault.kind is FaultKind.OUT_OF_CAPACITY
            view = await observer.view()
            assert status(view, two, "n1", Tier.DISK) is None
            assert view.nodes["n1"].tiers[Tier.DISK] == 10 * MIB
            # The node says what may go as soon as a copy is elsewhere.
            await observer.succeeded(await observer.issue("n2", Materialize(artifact=one.id)))
            waiting = await observer.issue("n1", Persist(artifact=two.id))
            await observer.succeeded(
                await observer.issue("n1", Evict(artifact=one.id, tier=Tier.DISK))
            )
            await observer.succeeded(waiting)
            with n1.application() as application:
                assert application.stats().disk_used_bytes <= 10 * MIB
            events = await observer.events()
    pressed = [e.event for e in events if e.type == "node.pressured"]
    assert any(event.tier is Tier.DISK and event.candidates for event in pressed)


async def test_what_is_only_on_the_disk_is_loaded_for_a_reader(
    tmp_path: Path, nats_server: NatsServer
):
    content = Content([5 * MIB, 9])
    with running(tmp_path, nats_server, n1={}) as (n1,):
        async with observing(nats_server.url) as observer:
            put(n1, content)
            await observer.succeeded(await observer.issue("n1", Persist(artifact=content.id)))
            evict = Evict(artifact=content.id, tier=Tier.DRAM)
            await observer.succeeded(await observer.issue("n1", evict))
            assert read(n1) == content.bytes
            view = await observer.until(
                lambda view: status(view, content, "n1", Tier.DRAM) is ReplicaStatus.READY
            )
    assert any(isinstance(o.work, Load) and o.policy == "demand" for o in view.operations.values())


@pytest.mark.slow
async def test_what_is_cold_goes_down_and_what_is_popular_comes_back(
    tmp_path: Path, nats_server: NatsServer
):
    """Nobody waits for either: marks are passed, and policies answer."""
    cold, warm, hot = (Content([size * MIB], seed=size) for size in (8, 7, 4))
    limits = {"TENSORCAST_DRAM_BYTES": str(20 * MIB)}
    with running(tmp_path, nats_server, n1=limits) as (n1,):
        async with observing(nats_server.url) as observer:
            with scheduling(nats_server.url, tmp_path / "controlplane.log"):
                put(n1, cold, "cold")
                for _ in range(2):
                    assert read(n1, "cold") == cold.bytes
                    await asyncio.sleep(APART_S)
                put(n1, warm, "warm")
                put(n1, hot, "hot")
                await observer.until(
                    lambda view: (
                        status(view, cold, "n1", Tier.DISK) is ReplicaStatus.READY
                        and status(view, cold, "n1", Tier.DRAM) is ReplicaStatus.GONE
                    )
                )
                await observer.execute(RemoveKey(key=Key("warm")))
                await observer.execute(RemoveArtifact(artifact=warm.id))
                await observer.until(
                    lambda view: status(view, cold, "n1", Tier.DRAM) is ReplicaStatus.READY
                )
            view = await observer.view()
            events = await observer.events()
    policies = {o.policy for o in view.operations.values()}
    assert policies == {"evict", "promote"}
    order = [e.type for e in events if cold.id in str(e.event) and e.type.startswith("replica")]
    assert order.index("replica.evicting") > 1, "written first, and dropped then"
    assert status(view, hot, "n1", Tier.DRAM) is ReplicaStatus.READY


async def test_a_promotion_lets_nothing_go(tmp_path: Path, nats_server: NatsServer):
    one, two = Content([6 * MIB], seed=1), Content([6 * MIB], seed=2)
    small = {"TENSORCAST_DRAM_BYTES": str(SMALL)}
    with running(tmp_path, nats_server, n1=small) as (n1,):
        async with observing(nats_server.url) as observer:
            put(n1, one, "one")
            await observer.succeeded(await observer.issue("n1", Persist(artifact=one.id)))
            await observer.succeeded(
                await observer.issue("n1", Evict(artifact=one.id, tier=Tier.DRAM))
            )
            put(n1, two, "two")
            lift = await observer.issue("n1", Load(artifact=one.id, if_room=True))
            failed = await observer.ended(lift)
            assert failed.fault is not None
            assert not failed.fault.retryable
            events = await observer.events()
    assert not [e for e in events if e.type == "node.pressured" and e.event.candidates]


def test_a_budget_that_no_machine_has_is_refused(tmp_path: Path, nats_server: NatsServer):
    node = MoverNode("n1", tmp_path / "n1", nats_server.url, TENSORCAST_DRAM_BYTES=str(1 << 50))
    try:
        node.launch()
        node.wait_until_ended()
        assert node.status == 2
        assert "more than" in node.log_text()
    finally:
        node.close()


async def test_pins_outlive_restarts_and_can_be_repeated(tmp_path: Path, nats_server: NatsServer):
    content = Content([3 * MIB])
    with running(tmp_path, nats_server, n1={}) as (n1,):
        async with observing(nats_server.url) as observer:
            put(n1, content)
            for _ in range(3):
                await observer.execute(PinArtifact(artifact=content.id))
            n1.kill()
            n1.start()
            evict = Evict(artifact=content.id, tier=Tier.DRAM)
            refused = await observer.ended(await observer.issue("n1", evict))
            assert refused.status is OperationStatus.FAILED
            assert n1.stop() == 0
            n1.start()
            refused = await observer.ended(await observer.issue("n1", evict))
            assert refused.status is OperationStatus.FAILED
            assert read(n1) == content.bytes
            for _ in range(2):  # one end is enough, however often it was pinned
                await observer.execute(UnpinArtifact(artifact=content.id))
            await observer.succeeded(await observer.issue("n1", evict))
            events = await observer.events()
    kinds = [e.type for e in events if e.type in ("artifact.pinned", "artifact.unpinned")]
    assert kinds == ["artifact.pinned", "artifact.unpinned"]


async def test_images_that_no_longer_fit_into_memory_go_to_the_disk(
    tmp_path: Path, nats_server: NatsServer
):
    contents = [Content([3 * MIB], seed=n) for n in range(5)]
    with running(tmp_path, nats_server, n1={}) as (n1,):
        restart_smaller(n1, contents)
        async with observing(nats_server.url) as observer:
            assert "has room for 8 MiB" in " ".join(n1.statuses)
            n1.wait_until(lambda: not images_of(n1))
            await n1_settled(observer, contents, Tier.DISK, 3)
            await n1_settled(observer, contents, Tier.DRAM, 2)
            view = await observer.view()
            for n, content in enumerate(contents):
                if status(view, content, "n1", Tier.DRAM) is ReplicaStatus.READY:
                    assert read(n1, f"m{n}") == content.bytes
            types = [event.type for event in await observer.events()]
        assert "replica.lost" not in types
        n1.stop()
        n1.start(TENSORCAST_DRAM_BYTES=str(256 * MIB))
        assert [read(n1, f"m{n}") for n in range(5)] == [c.bytes for c in contents]


async def test_images_without_room_anywhere_wait_and_come_back(
    tmp_path: Path, nats_server: NatsServer
):
    contents = [Content([3 * MIB], seed=n) for n in range(5)]
    with running(tmp_path, nats_server, n1={}, n2={}) as (n1, n2):
        restart_smaller(n1, contents, TENSORCAST_DISK_BYTES=str(MIB))
        n1.wait_until(lambda: "3 artifacts wait (9 MiB)" in " ".join(n1.statuses))
        waiting = images_of(n1)
        assert len(waiting) == 3
        async with observing(nats_server.url) as observer:
            view = await observer.view()
            assert {status(view, c, "n1", Tier.DRAM) for c in contents} == {ReplicaStatus.READY}
            assert [read(n2, f"m{n}") for n in range(5)] == [c.bytes for c in contents]  # to peers
            removed = next(c for c in contents if c.id in waiting)
            await observer.succeeded(
                await observer.issue("n1", Evict(artifact=removed.id, tier=Tier.DRAM))
            )
            assert images_of(n1) == waiting - {removed.id}
            here = next(c for c in contents if c.id not in waiting)
            await observer.succeeded(
                await observer.issue("n1", Evict(artifact=here.id, tier=Tier.DRAM))
            )
            n1.wait_until(lambda: len(images_of(n1)) == 1)  # memory is free: one comes back
            n1.stop()
            n1.start(TENSORCAST_DRAM_BYTES=str(256 * MIB))
            n1.wait_until(lambda: not images_of(n1))
            view = await observer.view()
            kept = [c for c in contents if c not in (removed, here)]
            assert {status(view, c, "n1", Tier.DRAM) for c in kept} == {ReplicaStatus.READY}
            assert "replica.lost" not in [event.type for event in await observer.events()]


async def test_an_image_whose_replica_was_given_up_is_taken_back(
    tmp_path: Path, nats_server: NatsServer
):
    content = Content([3 * MIB])
    with running(tmp_path, nats_server, n1={}) as (n1,):
        put(n1, content)
        n1.stop()
        n1.store.close()
        async with observing(nats_server.url) as observer:
            view = await observer.view()
            lost = LoseReplica(
                replica=replica_id(content.id, "n1", Tier.DRAM),
                epoch=view.nodes["n1"].epoch,
                detail="It found no room.",
            )
            await observer.execute(lost)
        n1.start()
        assert read(n1) == content.bytes
        n1.wait_until(lambda: not images_of(n1))


def images_of(node: MoverNode) -> set[str]:
    """The artifacts that have an image on the node's disk."""
    folder = node.folder / "data" / "hibernate"
    return {path.stem for path in folder.glob("*.image")}


def restart_smaller(node: MoverNode, contents: list[Content], **environ: str) -> None:
    """Puts what the memory has room for, and starts the node again with room for two of it."""
    for n, content in enumerate(contents):
        put(node, content, f"m{n}")
    node.stop()
    node.store.close()
    assert images_of(node) == {content.id for content in contents}
    node.start(TENSORCAST_DRAM_BYTES=str(SMALL), **environ)


async def n1_settled(observer: Observer, contents: list[Content], tier: Tier, count: int) -> None:
    """Waits until so many have a replica in the tier of n1."""
    while True:
        view = await observer.view()
        ready = [status(view, c, "n1", tier) is ReplicaStatus.READY for c in contents]
        if sum(ready) == count:
            return
        await asyncio.sleep(0.02)
