"""A peer that has an artifact soon is waited for."""

import asyncio
import threading

from conformance.contents import MIB, Shelf, make_content, manifest_of, plain_index
from conformance.transport import ARTIFACT, PEER, collect, make_pull
from tensorcast.movers.core.transfer import Completed
from tensorcast.movers.transports.base import NotYet
from tensorcast.movers.transports.tcp.client import TcpTransport
from tensorcast.movers.transports.tcp.server import TcpServer
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.faults import FaultKind

SIZE = 3 * MIB + 10


async def test_what_is_on_its_way_is_waited_for():
    content = bytes(make_content(plain_index(SIZE), SIZE))
    manifest = manifest_of(plain_index(SIZE), content)
    shelf = Shelf()
    shelf.put(ARTIFACT, manifest, content)

    class Late:
        is_there = False

        def lend(self, artifact):
            if not self.is_there:
                raise NotYet("It is read back.")
            return shelf.lend(artifact)

    late = Late()
    server = TcpServer("127.0.0.1:0", late, "c1", PEER)
    transport = TcpTransport("c1", "n2")
    target = bytearray(SIZE)
    region = transport.register(memoryview(target))
    try:
        channel = await transport.connect(PEER, server.address)
        channel.post([make_pull(manifest, 0, 1)], region)
        (refused,) = await collect(channel, 1)
        assert (refused.fault.kind, refused.holds) == (FaultKind.NOT_FOUND, ChunkSet())
        channel.post([make_pull(manifest, 0, 1, wait_s=2.0)], region)
        await asyncio.sleep(0.1)
        late.is_there = True
        (arrived,) = await collect(channel, 1)
        assert isinstance(arrived, Completed)
        assert target[:MIB] == content[:MIB]
    finally:
        await transport.aclose()
        region.close()
        server.close()
        shelf.close()


async def test_chunks_are_shared_before_their_pull_is_told_of():
    content = bytes(make_content(plain_index(SIZE), SIZE))
    manifest = manifest_of(plain_index(SIZE), content)
    shelf = Shelf()
    shelf.put(ARTIFACT, manifest, content)
    server = TcpServer("127.0.0.1:0", shelf, "c1", PEER)
    transport = TcpTransport("c1", "n2")
    shared: list[ChunkSet] = []
    has_come = threading.Event()

    def share(chunks):
        shared.append(chunks)
        has_come.set()

    region = transport.register(memoryview(bytearray(SIZE)), share=share)
    try:
        shelf.hold(ARTIFACT, ChunkSet.of([0]))
        channel = await transport.connect(PEER, server.address)
        channel.post([make_pull(manifest, 0, manifest.chunks_total, wait_s=2.0)], region)
        assert has_come.wait(5), "this thread is the event loop's, which is not needed for it"
        assert shared == [ChunkSet.of([0])]
        shelf.hold(ARTIFACT, ChunkSet.full(manifest.chunks_total))
        (end,) = await collect(channel, 1)
        assert isinstance(end, Completed)
        assert ChunkSet.merge(run for each in shared for run in each.ranges) == end.pull.chunks
        assert sum(map(len, shared)) == manifest.chunks_total
    finally:
        await transport.aclose()
        region.close()
        server.close()
        shelf.close()
