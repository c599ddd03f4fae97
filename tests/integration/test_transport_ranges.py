"""A pull is asked for in ranges, and many pulls in one request: each byte comes once."""

import asyncio
from random import Random

import pytest

from conformance.contents import MIB, Shelf, make_content, manifest_of, plain_index
from conformance.transport import ARTIFACT, PEER, collect, make_pull
from tensorcast.movers.core.transfer import Broken, Completed
from tensorcast.movers.transports.tcp.client import ClientLimits, TcpTransport
from tensorcast.movers.transports.tcp.server import TcpServer

CHUNKS = 40
SIZE = CHUNKS * MIB - 77


@pytest.fixture(scope="module")
def content():
    return bytes(make_content(plain_index(SIZE), SIZE))


@pytest.fixture(scope="module")
def manifest(content):
    return manifest_of(plain_index(SIZE), content)


@pytest.fixture
def server(content, manifest):
    shelf = Shelf()
    shelf.put(ARTIFACT, manifest, content)
    made = TcpServer("127.0.0.1:0", shelf, "c1", PEER)
    yield made
    made.close()
    shelf.close()


def cut(lengths):
    """The pulls' first and last chunks, until there are no more chunks."""
    runs, first = [], 0
    while first < CHUNKS:
        stop = min(CHUNKS, first + lengths[len(runs) % len(lengths)])
        runs.append((first, stop))
        first = stop
    return runs


@pytest.mark.parametrize("streams", [1, 2, None])
@pytest.mark.parametrize(
    "lengths",
    [[5, 3], [6, 2, 1], [7, 1], [1], [8], [9], [40], Random(1).choices(range(1, 13), k=9)],
    ids=str,
)
async def test_pulls_of_any_lengths_share_requests(server, content, manifest, lengths, streams):
    transport = TcpTransport("c1", "n2", ClientLimits(streams=streams))
    memory = bytearray(SIZE)
    region = transport.register(memoryview(memory))
    try:
        channel = await transport.connect(PEER, server.address)
        pulls = [make_pull(manifest, *run) for run in cut(lengths)]
        channel.post(pulls, region)
        async with asyncio.timeout(20):
            ends = await collect(channel, len(pulls))
        assert all(isinstance(end, Completed) for end in ends)
        assert {end.pull.first for end in ends} == {pull.first for pull in pulls}
        assert memory == content
    finally:
        await transport.aclose()
        region.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_an_error_of_our_own_ends_the_pulls(server, manifest):
    def share(chunks):
        raise RuntimeError("an error of our own")

    transport = TcpTransport("c1", "n2", ClientLimits(streams=1))
    region = transport.register(memoryview(bytearray(SIZE)), share=share)
    try:
        channel = await transport.connect(PEER, server.address)
        channel.post([make_pull(manifest, 0, 20), make_pull(manifest, 20, 40)], region)
        async with asyncio.timeout(20):
            ends = await collect(channel, 2)
        assert all(isinstance(end, Broken) for end in ends)
    finally:
        await transport.aclose()
        region.close()
