"""Movers that share a store: what no node has any more comes back from it, checked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mover_nodes import MIB, Content, MoverNode, observing
from s3 import S3Server, s3_server
from servers import NatsServer
from tensorcast.schema.aggregates.operation import OperationStatus
from tensorcast.schema.aggregates.replica import ReplicaStatus
from tensorcast.schema.commands import LoseNode
from tensorcast.schema.faults import FaultKind
from tensorcast.schema.ids import Epoch, NodeId, Tier, replica_id
from tensorcast.schema.work import Evict, Load, Persist, Verify
from tensorcast.storage.objects import open_store

pytestmark = pytest.mark.slow
CONTENT = Content([9 * MIB, 7, 3 * MIB])
MODEL = f"replicas/{CONTENT.id}/model.safetensors"


@pytest.fixture
def server(monkeypatch) -> Iterator[S3Server]:
    with s3_server() as server:
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        server.make_bucket("bucket")
        yield server


@pytest.fixture
def nodes(tmp_path: Path, nats_server: NatsServer, server: S3Server) -> Iterator[list[MoverNode]]:
    shared = {**server.environ, "TENSORCAST_OBJECT_URL": "s3://bucket/replicas"}
    nodes = [
        MoverNode(name, tmp_path / name, nats_server.url, **environ)
        for name, environ in (("n1", shared), ("n2", shared), ("n3", {}))
    ]
    for node in nodes:
        node.start()
    with nodes[0].application() as application:
        application.put(CONTENT, key="m")
    yield nodes
    for node in nodes:
        node.close()


def in_store(node: str):
    return replica_id(CONTENT.id, NodeId(node), Tier.OBJECT)


async def test_what_no_node_has_comes_back_from_the_store(
    nodes: list[MoverNode], nats_server: NatsServer
):
    async with observing(nats_server.url) as observer:
        stored = await observer.issue("n1", Persist(artifact=CONTENT.id, tier=Tier.OBJECT))
        done = await observer.succeeded(stored)
        assert done.transports == {"object": CONTENT.manifest.size_bytes}
        assert (await observer.view()).replicas[in_store("n1")].status is ReplicaStatus.READY
        nodes[0].kill()
        await observer.execute(LoseNode(node=NodeId("n1"), epoch=Epoch(1), silent_s=9.0))
        with nodes[1].application() as application, application.get("m") as reading:
            assert reading.bytes() == CONTENT.bytes
        view = await observer.view()
        (load,) = [o for o in view.operations.values() if isinstance(o.work, Load)]
        assert load.work == Load(artifact=CONTENT.id, tier=Tier.OBJECT)
        nodes[0].start()  # the store's replica outlives its node's mover
        await observer.view()
        view = await observer.until(lambda view: view.nodes[NodeId("n1")].epoch == 2)
        assert view.replicas[in_store("n1")].status is ReplicaStatus.READY


async def test_damage_in_the_store_is_found_named_and_mended(
    nodes: list[MoverNode], nats_server: NatsServer, server: S3Server
):
    async with observing(nats_server.url) as observer:
        persist = Persist(artifact=CONTENT.id, tier=Tier.OBJECT)
        await observer.succeeded(await observer.issue("n1", persist))
        damaged = bytearray(open_store("s3://bucket").read_whole(MODEL, 1 << 30))
        damaged[-1] ^= 1
        server.upload("bucket", MODEL, bytes(damaged))
        load = Load(artifact=CONTENT.id, tier=Tier.OBJECT)
        failed = await observer.ended(await observer.issue("n2", load))
        assert failed.status is OperationStatus.FAILED
        assert failed.fault is not None
        assert failed.fault.kind is FaultKind.CORRUPT
        last = CONTENT.manifest.chunks_total - 1
        assert f"chunk {last}" in failed.fault.detail.lower()
        verify = Verify(artifact=CONTENT.id, tier=Tier.OBJECT)
        failed = await observer.ended(await observer.issue("n1", verify))
        assert failed.status is OperationStatus.FAILED
        view = await observer.view()
        assert last not in view.replicas[in_store("n1")].chunks
        await observer.succeeded(await observer.issue("n1", persist))
        await observer.succeeded(await observer.issue("n1", verify))
        await observer.succeeded(await observer.issue("n2", load))


async def test_what_several_nodes_stored_goes_with_the_last_of_them(
    nodes: list[MoverNode], nats_server: NatsServer
):
    async with observing(nats_server.url) as observer:
        persist = Persist(artifact=CONTENT.id, tier=Tier.OBJECT)
        await observer.succeeded(await observer.issue("n1", persist))
        load = Load(artifact=CONTENT.id, tier=Tier.OBJECT)
        await observer.succeeded(await observer.issue("n2", load))
        await observer.succeeded(await observer.issue("n2", persist))
        store = open_store("s3://bucket")
        evict = Evict(artifact=CONTENT.id, tier=Tier.OBJECT)
        await observer.succeeded(await observer.issue("n1", evict))
        assert store.exists(MODEL)
        await observer.succeeded(await observer.issue("n2", evict))
        assert not store.exists(MODEL)
        failed = await observer.ended(await observer.issue("n3", load))
        assert failed.fault is not None
        assert "no access to a store" in failed.fault.detail
