"""Movers among themselves: pulls, chains, demand reads, operations and their events."""

from __future__ import annotations

import getpass
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mover_nodes import MIB, Content, MoverNode, Observer, observing
from servers import NatsServer
from tensorcast.schema.aggregates.operation import OperationStatus
from tensorcast.schema.aggregates.replica import ReplicaStatus
from tensorcast.schema.commands import (
    AcquireLease,
    PinArtifact,
    RemoveArtifact,
    UnpinArtifact,
)
from tensorcast.schema.errors import NotFound, Unavailable
from tensorcast.schema.faults import FaultKind
from tensorcast.schema.ids import LeaseId, Tier, replica_id
from tensorcast.schema.work import Evict, Load, Materialize, Persist, Verify


@pytest.fixture
def nodes(tmp_path: Path, nats_server: NatsServer) -> Iterator[list[MoverNode]]:
    nodes = [MoverNode(name, tmp_path / name, nats_server.url) for name in ("n1", "n2", "n3")]
    for node in nodes:
        node.start()
    yield nodes
    for node in nodes:
        node.close()


def put(node: MoverNode, content: Content, key: str = "m") -> None:
    with node.application() as application:
        application.put(content, key=key)


def read(node: MoverNode, key: str = "m") -> bytes:
    with node.application("user:bob@test") as application, application.get(key) as reading:
        return reading.bytes()


async def test_an_operation_makes_a_replica_and_says_why(
    nodes: list[MoverNode], nats_server: NatsServer
):
    content = Content([20 * MIB, 7, 3 * MIB])
    async with observing(nats_server.url) as observer:
        put(nodes[0], content)
        operation = await observer.issue("n2", Materialize(artifact=content.id))
        done = await observer.succeeded(operation)
        assert done.bytes_moved == content.manifest.size_bytes
        assert done.transports == {"tcp": content.manifest.size_bytes}
        assert read(nodes[1]) == content.bytes
        events = await observer.events()
    mine = {event.type: event for event in events if event.actor == "mover:n2"}
    (issued,) = [event for event in events if event.type == "operation.issued"]
    started = mine["operation.started"]
    assert started.cause == issued.id
    for name in ("replica.started", "replica.ready", "operation.succeeded"):
        assert mine[name].cause == started.id


async def test_a_demand_read_issues_one_operation_for_many_readers(
    nodes: list[MoverNode], nats_server: NatsServer
):
    content = Content([16 * MIB])
    put(nodes[0], content)
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda _: read(nodes[1]), range(6)))
    assert all(data == content.bytes for data in found)
    async with observing(nats_server.url) as observer:
        await observer.view()
        view = await observer.until(lambda view: not view.open_operations)
        events = await observer.events()
    (operation,) = view.operations.values()
    assert operation.policy == "demand"
    assert operation.bytes_moved == content.manifest.size_bytes  # one transfer, shared
    (issued,) = [event for event in events if event.type == "operation.issued"]
    assert issued.actor == f"user:{getpass.getuser()}@test"


async def test_what_is_there_is_an_immediate_success(
    nodes: list[MoverNode], nats_server: NatsServer
):
    content = Content([MIB])
    async with observing(nats_server.url) as observer:
        put(nodes[0], content)
        operation = await observer.issue("n1", Materialize(artifact=content.id))
        assert (await observer.succeeded(operation)).bytes_moved == 0


async def test_without_a_source_it_fails_with_a_sentence(
    nodes: list[MoverNode], nats_server: NatsServer
):
    content = Content([4 * MIB])
    async with observing(nats_server.url) as observer:
        put(nodes[0], content)
        assert nodes[0].stop() == 0
        operation = await observer.issue("n2", Materialize(artifact=content.id))
        ended = await observer.ended(operation)
        assert ended.status is OperationStatus.FAILED
        assert ended.fault is not None
        assert ended.fault.kind is FaultKind.UNAVAILABLE
        assert "no node that is up" in ended.fault.detail
        with nodes[1].application() as application, pytest.raises(Unavailable):
            application.get("m")
        # The source comes back with what it had: nothing was lost by stopping it.
        nodes[0].start()
        assert read(nodes[1]) == content.bytes
        assert read(nodes[0]) == content.bytes


async def test_a_chain_of_three(nodes: list[MoverNode], nats_server: NatsServer):
    content = Content([48 * MIB])
    async with observing(nats_server.url) as observer:
        put(nodes[0], content)
        second = await observer.issue("n2", Materialize(artifact=content.id), "second")
        third = await observer.issue(
            "n3", Materialize(artifact=content.id, sources=("n2",)), "third"
        )
        await observer.succeeded(second)
        await observer.succeeded(third)
        assert read(nodes[2]) == content.bytes


async def test_persist_load_and_a_disk_as_source(nodes: list[MoverNode], nats_server: NatsServer):
    content = Content([5 * MIB, 3, MIB])
    async with observing(nats_server.url) as observer:
        put(nodes[0], content)
        await observer.succeeded(await observer.issue("n1", Persist(artifact=content.id)))
        await observer.succeeded(
            await observer.issue("n1", Verify(artifact=content.id, tier=Tier.DISK))
        )
        await observer.succeeded(
            await observer.issue("n1", Evict(artifact=content.id, tier=Tier.DRAM))
        )
        assert read(nodes[1]) == content.bytes  # n2 pulls from the disk of n1
        loaded = await observer.succeeded(await observer.issue("n1", Load(artifact=content.id)))
        assert loaded.transports == {"disk": content.manifest.size_bytes}
        assert read(nodes[0]) == content.bytes
        await observer.succeeded(
            await observer.issue("n1", Evict(artifact=content.id, tier=Tier.DISK))
        )
        view = await observer.view()
        assert view.replicas[replica_id(content.id, "n1", Tier.DISK)].status is ReplicaStatus.GONE
        again = await observer.ended(await observer.issue("n1", Load(artifact=content.id), "x"))
        assert again.status is OperationStatus.SUCCEEDED  # it is in memory already
        missing = await observer.ended(
            await observer.issue("n3", Persist(artifact=content.id), "y")
        )
        assert missing.fault is not None
        assert missing.fault.kind is FaultKind.NOT_FOUND


async def test_pins_and_leases_keep_a_replica(nodes: list[MoverNode], nats_server: NatsServer):
    content = Content([MIB])
    evict = Evict(artifact=content.id, tier=Tier.DRAM)
    async with observing(nats_server.url) as observer:
        put(nodes[0], content)
        await observer.execute(PinArtifact(artifact=content.id))
        refused = await observer.ended(await observer.issue("n1", evict, "pinned"))
        assert refused.fault is not None
        assert refused.fault.kind is FaultKind.DENIED
        await observer.execute(UnpinArtifact(artifact=content.id))
        await observer.execute(
            AcquireLease(
                lease=LeaseId("l1"), artifact=content.id, node="n1", holder="x", ttl_s=60.0
            )
        )
        refused = await observer.ended(await observer.issue("n1", evict, "leased"))
        assert refused.fault is not None
        assert read(nodes[0]) == content.bytes


async def test_a_removed_artifact_is_not_found(nodes: list[MoverNode], nats_server: NatsServer):
    content = Content([MIB])
    async with observing(nats_server.url) as observer:
        put(nodes[0], content)
        removed = await observer.execute(RemoveArtifact(artifact=content.id))
        with nodes[0].application() as application:
            with pytest.raises(NotFound, match="was removed"):
                application.get(content.id, after=removed.seq)
            application.put(content, key="back")
            with application.get("back") as reading:
                assert reading.bytes() == content.bytes


async def test_damage_is_found_reported_and_mended(nodes: list[MoverNode], nats_server: NatsServer):
    content = Content([8 * MIB])
    async with observing(nats_server.url) as observer:
        put(nodes[0], content)
        await observer.succeeded(await observer.issue("n2", Materialize(artifact=content.id)))
        _damage(nodes[1], 3 * MIB + 5)
        verify = await observer.issue("n2", Verify(artifact=content.id, tier=Tier.DRAM))
        ended = await observer.ended(verify)
        assert ended.fault is not None
        assert ended.fault.kind is FaultKind.CORRUPT
        view = await observer.view()
        damaged = view.replicas[replica_id(content.id, "n2", Tier.DRAM)]
        assert damaged.status is ReplicaStatus.FILLING
        assert list(damaged.chunks) == [0, 1, 2, 4, 5, 6, 7]
        assert read(nodes[1]) == content.bytes  # a reader has it mended first
        await observer.view()
        view = await observer.until(lambda view: not view.open_operations)
        mended = [o for o in view.operations.values() if o.policy == "demand"]
        assert [operation.bytes_moved for operation in mended] == [MIB]


async def test_a_peer_that_sends_damage_is_to_be_checked(
    nodes: list[MoverNode], nats_server: NatsServer
):
    content = Content([8 * MIB])
    async with observing(nats_server.url) as observer:
        put(nodes[0], content)
        _damage(nodes[0], 3 * MIB + 5)
        _damage(nodes[0], 6 * MIB + 5)
        operation = await observer.issue("n2", Materialize(artifact=content.id))
        ended = await observer.ended(operation)
        assert ended.fault is not None
        assert ended.fault.kind is FaultKind.CORRUPT
        assert re.search("Node n1 sent chunk [36]", ended.fault.detail)
        events = await observer.events()
        (asked,) = [event for event in events if event.type == "artifact.verification_requested"]
        (started,) = [event for event in events if event.type == "operation.started"]
        assert asked.event.replicas == (replica_id(content.id, "n1", Tier.DRAM),)
        assert (asked.actor, asked.cause) == ("mover:n2", started.id)


def _damage(node: MoverNode, offset: int) -> None:
    """Flips a bit in the memory that the supervisor keeps for the mover."""
    import os

    for _, fd in node.store.named():
        writable = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
        byte = os.pread(writable, 1, offset)
        os.pwrite(writable, bytes([byte[0] ^ 1]), offset)
        os.close(writable)


async def test_a_newer_life_fences_the_older(
    nodes: list[MoverNode], nats_server: NatsServer, tmp_path: Path
):
    twin = MoverNode("n1", tmp_path / "twin", nats_server.url)
    twin.start()
    try:
        nodes[0].wait_until_ended()
        assert nodes[0].status == 3
        assert "fenced" in nodes[0].log_text()
        assert twin.is_running()
    finally:
        twin.close()


async def test_a_folder_is_for_one_mover(nodes: list[MoverNode], nats_server: NatsServer):
    began = time.monotonic()
    pid, nodes[0].pid = nodes[0].pid, None
    nodes[0].launch()
    nodes[0].wait_until_ended()
    assert nodes[0].status == 1
    assert "Another mover uses" in nodes[0].log_text()
    assert time.monotonic() - began < 20
    nodes[0].pid = pid


async def test_a_node_that_was_given_up_joins_again(
    nodes: list[MoverNode], nats_server: NatsServer
):
    from tensorcast.schema.aggregates.node import NodeStatus
    from tensorcast.schema.commands import LoseNode

    content = Content([MIB])
    put(nodes[0], content)
    async with observing(nats_server.url) as observer:
        view = await observer.view()
        epoch = view.nodes["n1"].epoch
        await observer.execute(LoseNode(node="n1", epoch=epoch, silent_s=9.0))
        view = await observer.until(lambda view: view.nodes["n1"].epoch == epoch + 1)
        assert view.nodes["n1"].status is NodeStatus.UP
        await _still_works(observer, nodes, content)


async def _still_works(observer: Observer, nodes: list[MoverNode], content: Content) -> None:
    operation = await observer.issue("n2", Materialize(artifact=content.id))
    await observer.succeeded(operation)
    assert read(nodes[0]) == read(nodes[1]) == content.bytes
