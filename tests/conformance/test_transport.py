"""Every transport keeps the contract."""

import secrets
from contextlib import asynccontextmanager

import pytest

from conformance.contents import Shelf
from conformance.transport import PEER, Wire, check_transport
from tensorcast.movers.transports.loopback import LoopbackHub, LoopbackTransport
from tensorcast.movers.transports.shm.channel import ShmTransport
from tensorcast.movers.transports.shm.server import ShmServer
from tensorcast.movers.transports.tcp.client import TcpTransport
from tensorcast.movers.transports.tcp.dialing import ClientLimits
from tensorcast.movers.transports.tcp.server import TcpServer


@asynccontextmanager
async def loopback():
    hub, shelf = LoopbackHub(), Shelf()
    hub.join(PEER, shelf)
    yield Wire(LoopbackTransport(hub), "", shelf, lambda: hub.cut(PEER))
    shelf.close()


def tcp(listen, streams):
    @asynccontextmanager
    async def make():
        shelf = Shelf()
        server = TcpServer(listen, shelf, "c1", PEER)
        transport = TcpTransport("c1", "n2", ClientLimits(streams=streams))
        yield Wire(transport, server.address, shelf, server.close)
        server.close()
        assert server.connections == 0
        assert shelf.lent == 0, "the server has let everything go"
        shelf.close()

    return make


@asynccontextmanager
async def shm():
    shelf, cluster = Shelf(), f"c-{secrets.token_hex(4)}"
    server = ShmServer(shelf, cluster, PEER)
    yield Wire(ShmTransport(cluster), "", shelf, server.close)
    server.close()
    assert server.connections == 0
    assert shelf.lent == 0, "the server has let everything go"
    shelf.close()


@pytest.mark.parametrize(
    "make_wire",
    [
        pytest.param(loopback, id="loopback"),
        pytest.param(shm, id="shm"),
        pytest.param(tcp("127.0.0.1:0", 2), id="tcp"),
        pytest.param(tcp("127.0.0.1:0", 1), id="tcp-one-stream"),
        pytest.param(tcp("[::1]:0", 2), id="tcp-ipv6"),
        pytest.param(tcp("127.0.0.1:0", None), id="tcp-as-many-as-help"),
    ],
)
async def test_it_keeps_the_contract(make_wire):
    await check_transport(make_wire)
