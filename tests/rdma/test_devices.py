"""The memory of devices as source and target of READs. The device is made of ordinary memory, which
an adapter registers by its address as it would that of a GPU with nvidia-peermem."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from pathlib import Path

import pytest

from conformance.contents import MIB, Shelf, make_content, manifest_of, plain_index
from conformance.transport import ARTIFACT, PEER, collect, make_pull
from mover_nodes import Content, MoverNode, observing
from rdma_ends import asking, serving
from servers import NatsServer
from tensorcast.gpu.fake import FakeGpu
from tensorcast.movers.core.layout import Layout
from tensorcast.movers.core.transfer import Broken, Completed
from tensorcast.movers.memory.cuda import CudaPool, CudaSegment
from tensorcast.movers.transports.base import Lending
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.faults import FaultKind
from tensorcast.schema.ids import Tier
from tensorcast.schema.work import Evict, Materialize, Verify

pytestmark = pytest.mark.rdma
SIZE = 8 * MIB + 4321
FAKE = {"TENSORCAST_GPU": "fake:1x128MiB", "TENSORCAST_GPU_BYTES": str(64 * MIB)}


class DeviceShelf(Shelf):
    """Lends what lies in a device's memory."""

    def __init__(self, segment: CudaSegment) -> None:
        super().__init__()
        self._segment = segment

    @contextmanager
    def lend(self, artifact):
        manifest = self.manifests[artifact]
        yield Lending(
            fd=-1,
            layout=Layout.whole(manifest.size_bytes),
            chunk_bytes=manifest.chunk_bytes,
            chunks=lambda: ChunkSet.full(manifest.chunks_total),
            memory=self._segment,
        )


@pytest.mark.parametrize("windows", [True, False])
async def test_from_device_to_device(windows):
    content = make_content(plain_index(SIZE), SIZE)
    manifest = manifest_of(plain_index(SIZE), content)
    ours, theirs = CudaPool([FakeGpu()], 64 * MIB), CudaPool([FakeGpu()], 64 * MIB)
    target, source = ours.allocate(SIZE), theirs.allocate(SIZE)
    source.fill(0, memoryview(content))
    shelf = DeviceShelf(source)
    shelf.manifests[ARTIFACT] = manifest
    with (
        serving(shelf, windows=windows) as (server, _),
        asking(windows=windows) as transport,
    ):
        memory = transport.register_device(target)
        channel = await transport.connect(PEER, server.address)
        total = manifest.chunks_total
        ranges = ((0, total - 1), (total - 1, total))
        channel.post([make_pull(manifest, *one) for one in ranges], memory)
        ends = await collect(channel, 2)
        assert all(isinstance(end, Completed) for end in ends)
        assert target.read(0, SIZE) == content
        source.fill(3 * MIB, memoryview(b"bad"))
        channel.post([make_pull(manifest, 2, 5)], memory)
        (end,) = await collect(channel, 1)
        assert isinstance(end, Broken)
        assert end.fault.kind is FaultKind.CORRUPT
        await channel.aclose()
        memory.close()
        await transport.aclose()
        assert transport.regions.count() == 0
    for pool, segment in ((ours, target), (theirs, source)):
        pool.release(segment)
        pool.close()


@pytest.mark.parametrize("dmabuf", [True, False])
def test_memory_is_registered_by_its_address_where_a_dmabuf_is_not_taken(dmabuf):
    pool = CudaPool([FakeGpu(dmabuf=dmabuf)], 64 * MIB)
    segment = pool.allocate(SIZE)
    with asking() as transport:
        transport.register_device(segment).close()
        assert transport.regions.count() == 0
    pool.release(segment)
    pool.close()


def test_memory_that_no_adapter_reaches_says_why():
    pool = CudaPool([FakeGpu()], 64 * MIB)
    segment = pool.allocate(SIZE)
    with asking() as transport:
        segment.address += 1 << 46  # nothing is there
        with pytest.raises(Unavailable, match=r"by dmabuf: .*; by address: "):
            transport.register_device(segment)
        segment.address -= 1 << 46
        assert transport.regions.count() == 0
    pool.release(segment)
    pool.close()


async def test_movers_move_an_artifact_from_gpu_to_gpu(tmp_path: Path, nats_server: NatsServer):
    """n1 has it on its GPU alone by then; n2's memory of the host never sees it as a replica."""
    nodes = [
        MoverNode(name, tmp_path / name, nats_server.url, TENSORCAST_RDMA=device, **FAKE)
        for name, device in (("n1", "rxe0"), ("n2", "rxe1"))
    ]
    content = Content([20 * MIB, 7])
    size = content.manifest.size_bytes
    try:
        for node in nodes:
            node.start()
        async with observing(nats_server.url) as observer:
            with nodes[0].application() as application:
                await asyncio.to_thread(application.put, content, "m")

            async def do(node, work):
                return await observer.succeeded(await observer.issue(node, work))

            done = await do("n1", Materialize(artifact=content.id, tier=Tier.GPU))
            assert done.transports == {"cuda": size}
            await do("n1", Evict(artifact=content.id, tier=Tier.DRAM))
            done = await do("n2", Materialize(artifact=content.id, tier=Tier.GPU))
            assert done.transports == {"rdma": size}
            await do("n2", Verify(artifact=content.id, tier=Tier.GPU))
            view = await observer.view()
            assert {r.tier for r in view.replicas.values() if r.node == "n2"} == {Tier.GPU}
            done = await do("n2", Materialize(artifact=content.id))
            assert done.transports == {"rdma": size}
            for node in ("n1", "n2"):
                await do(node, Evict(artifact=content.id, tier=Tier.GPU))
    finally:
        for node in nodes:
            node.close()
