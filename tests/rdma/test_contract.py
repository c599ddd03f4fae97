"""The RDMA transport keeps the contract of all transports, with one rail and with several, with
memory windows and without, sleeping and polling."""

from contextlib import asynccontextmanager

import pytest

from conformance.contents import Shelf
from conformance.transport import Wire, check_transport
from rdma_ends import asking, serving

BOTH = ("rxe0", "rxe1")
pytestmark = pytest.mark.rdma


def rdma(ours=("rxe0",), theirs=("rxe1",), **settings):
    @asynccontextmanager
    async def make():
        shelf = Shelf()
        with (
            serving(shelf, devices=theirs, **settings) as (server, lender),
            asking(devices=ours, **settings) as transport,
        ):
            yield Wire(transport, server.address, shelf, server.close)
            await transport.aclose()
            server.close()
            assert server.connections == 0
            assert transport.regions.count() == lender.regions.count() == 0
        assert shelf.lent == 0, "the server has let everything go"
        shelf.close()

    return make


@pytest.mark.parametrize(
    "make_wire",
    [
        pytest.param(rdma(), id="one-rail"),
        pytest.param(rdma(BOTH, BOTH[::-1], queue_pairs=2), id="four-rails"),
        pytest.param(rdma(windows=False), id="without-windows"),
        pytest.param(rdma(polls=True), id="polling"),
        pytest.param(rdma(mtu_bytes=1024, reads_max=1, gid_index=1), id="small-packets"),
    ],
)
async def test_it_keeps_the_contract(make_wire):
    await check_transport(make_wire)
