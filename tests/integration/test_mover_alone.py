"""Movers that start while NATS is away serve what they have, to readers and to peers, and tell the
log what happened when it is back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mover_nodes import MIB, Content, MoverNode, Observer, observing
from servers import NatsServer
from tensorcast.client import Context, NodeContext, connect_async
from tensorcast.movers.main import EXIT_BROKEN
from tensorcast.movers.mover import VIEW_FILE
from tensorcast.movers.recollection import recall
from tensorcast.schema.aggregates.node import NodeStatus
from tensorcast.schema.aggregates.replica import ReplicaStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.ids import NodeId, Tier, replica_id
from tensorcast.schema.work import Evict, Persist

WAIT_S = 30.0
IN_MEMORY = Content([3 * MIB, 17], seed=1)
ON_DISK = Content([2 * MIB, 5], seed=2)


@pytest.fixture
def nodes(tmp_path: Path, nats_server: NatsServer) -> Iterator[tuple[MoverNode, MoverNode]]:
    n1, n2 = (MoverNode(name, tmp_path / name, nats_server.url) for name in ("n1", "n2"))
    try:
        n1.start()
        n2.start()
        yield n1, n2
    finally:
        n1.close()
        n2.close()


async def prepare(observer: Observer, nodes: tuple[MoverNode, MoverNode]) -> None:
    """n1 has one artifact in memory and one on its disk alone, and both nodes remember it."""
    with nodes[0].application() as application:
        application.put(IN_MEMORY, key="memory")
        application.put(ON_DISK, key="disk")
    await observer.succeeded(await observer.issue("n1", Persist(artifact=ON_DISK.id)))
    evict = Evict(artifact=ON_DISK.id, tier=Tier.DRAM)
    await observer.succeeded(await observer.issue("n1", evict))
    last = (await observer.view()).at
    for node in nodes:
        remember(node, last)
        node.kill()


def remember(node: MoverNode, last: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        found = recall(node.folder / "data" / VIEW_FILE, "test")
        if found is not None and found.view.at >= last:
            return
        assert time.monotonic() < deadline, node.log_text()
        time.sleep(0.05)


def read(node: MoverNode, key: str) -> bytes:
    with node.application() as application, application.get(key) as reading:
        return reading.bytes()


def is_ready(view: ClusterView, content: Content, node: str) -> bool:
    found = view.replicas.get(replica_id(content.id, NodeId(node), Tier.DRAM))
    return found is not None and found.status is ReplicaStatus.READY


@pytest.mark.slow
async def test_movers_serve_without_nats_and_tell_it_afterwards(
    nats_server: NatsServer, nodes: tuple[MoverNode, MoverNode]
):
    n1, n2 = nodes
    async with observing(nats_server.url) as observer:
        await prepare(observer, nodes)
        nats_server.kill()
        n1.start()
        n2.start()
        assert read(n1, "memory") == IN_MEMORY.bytes
        assert read(n1, "disk") == ON_DISK.bytes
        assert read(n2, "memory") == IN_MEMORY.bytes, "from a peer"
        with n1.application() as application, pytest.raises(TensorCastError):
            application.get("unknown", timeout_s=2)
        nats_server.start()
        view = await observer.until(
            lambda view: (
                is_ready(view, ON_DISK, "n1")
                and is_ready(view, IN_MEMORY, "n1")
                and is_ready(view, IN_MEMORY, "n2")
                and view.nodes[NodeId("n1")].epoch == 2
                and view.nodes[NodeId("n2")].epoch == 2
            ),
            2 * WAIT_S,
        )
        assert {node.status for node in view.nodes.values()} == {NodeStatus.UP}
        assert view.skipped == 0
        with n1.application() as application:
            application.put(Content([MIB], seed=3), key="after")
        assert read(n2, "after") == Content([MIB], seed=3).bytes
        assert [n1.stop(), n2.stop()] == [0, 0]


@pytest.mark.failover
async def test_a_client_starts_without_nats_too_and_a_mover_that_dies_so_begins_again(
    nats_server: NatsServer, nodes: tuple[MoverNode, MoverNode]
):
    n1, _ = nodes
    context = Context(
        cluster="test", nats_url=nats_server.url, nodes={"n1": NodeContext(socket=str(n1.socket))}
    )
    async with observing(nats_server.url) as observer:
        await prepare(observer, nodes)
        nats_server.kill()
        n1.start()
        assert read(n1, "disk") == ON_DISK.bytes
        n1.kill()  # what this life has in its journal must not confuse the next one
        n1.start()
        async with connect_async(context, node="n1") as client:
            tensors = await client.get("disk")
            found = b"".join(bytes(tensors[name].numpy()) for name in sorted(tensors))
            assert found == ON_DISK.bytes[: len(found)]
        nats_server.start()
        view = await observer.until(lambda view: view.nodes[NodeId("n1")].epoch == 3, 2 * WAIT_S)
        assert is_ready(await observer.until(lambda v: is_ready(v, ON_DISK, "n1")), ON_DISK, "n1")
        assert view.skipped == 0


@pytest.mark.failover
async def test_a_mover_that_started_alone_writes_nothing_to_another_log(
    nats_server: NatsServer, nodes: tuple[MoverNode, MoverNode]
):
    n1, _ = nodes
    async with observing(nats_server.url) as observer:
        await prepare(observer, nodes)
    nats_server.kill()
    nats_server.forget()
    n1.start()
    assert read(n1, "memory") == IN_MEMORY.bytes
    nats_server.start()
    n1.wait_until_ended()
    assert n1.status == EXIT_BROKEN
    assert "not the one this node knows" in n1.log_text()
    async with observing(nats_server.url) as observer:
        assert await observer.events() == []
