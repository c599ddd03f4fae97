"""A peer that has an artifact soon is waited for."""

import asyncio

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
