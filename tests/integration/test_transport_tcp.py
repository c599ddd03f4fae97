"""TCP transport against peers that are broken, hostile, slow or somebody else."""

import asyncio
import contextlib
import os
import socket
import threading
import time
from random import Random

import msgspec
import pytest

from conformance.contents import Shelf, make_content, manifest_of, plain_index
from conformance.tier import samples
from conformance.transport import ARTIFACT, PEER, collect, make_pull
from tcp_peers import HELLO, SIZE, read
from tensorcast.movers.core.digests import chunk_digest
from tensorcast.movers.core.transfer import Completed
from tensorcast.movers.tiers.disk import DiskTier
from tensorcast.movers.transports.base import Lending, MemoryKind
from tensorcast.movers.transports.tcp import wire
from tensorcast.movers.transports.tcp.client import TcpTransport
from tensorcast.movers.transports.tcp.dialing import ClientLimits
from tensorcast.movers.transports.tcp.server import ServerLimits, TcpServer
from tensorcast.movers.transports.tcp.sockets import parse_address
from tensorcast.schema.chunks import ByteRange, ChunkSet
from tensorcast.schema.errors import PermissionDenied, Unavailable

MIB = 1 << 20
QUICK = ServerLimits(connections_max=4, request_s=0.3, stall_s=0.3, idle_s=0.5, hold_s=0.1)


@pytest.fixture(scope="module")
def content():
    return bytes(make_content(plain_index(SIZE), SIZE))


@pytest.fixture(scope="module")
def manifest(content):
    return manifest_of(plain_index(SIZE), content)


@pytest.fixture
def shelf(manifest, content):
    made = Shelf()
    made.put(ARTIFACT, manifest, content)
    yield made
    made.close()


@pytest.fixture
def server(shelf):
    made = TcpServer("127.0.0.1:0", shelf, "c1", PEER, QUICK)
    yield made
    made.close()
    assert (made.connections, shelf.lent) == (0, 0)


@pytest.fixture
def dial(server):
    """Connects raw sockets to the server."""
    with contextlib.ExitStack() as opened:

        def connect(sent=HELLO):
            connected = socket.create_connection(parse_address(server.address), 5)
            opened.enter_context(connected)
            connected.sendall(sent)
            return connected

        yield connect


def range_of(chunks):
    return [chunk for first, stop in chunks.ranges for chunk in range(first, stop)]


def greet(connected):
    size = wire.parse_opening_head(read(connected, wire.OPENING.size))
    return wire.parse_welcome(read(connected, size))


def is_closed(connected):
    with contextlib.suppress(ConnectionResetError):
        while connected.recv(1 << 20):
            pass
    return True


def ask(connected, *ranges, artifact=ARTIFACT):
    wanted = tuple(ByteRange(*pair) for pair in ranges)
    connected.sendall(wire.pack_request(wire.Request(artifact=artifact, ranges=wanted, wait_s=0)))


async def assert_serves(server, content, manifest):
    """A well-behaved peer still gets its bytes."""
    transport = TcpTransport("c1", "n2")
    memory = bytearray(SIZE)
    region = transport.register(memoryview(memory), MemoryKind.DRAM)
    channel = await transport.connect(PEER, server.address)
    pull = make_pull(manifest, 0, 7)
    channel.post([pull], region)
    assert await collect(channel, 1) == [Completed(pull=pull)]
    assert memory == content
    await transport.aclose()


async def test_unchecked_chunks_come_several_at_a_time():
    """Also the short last one, and each is told of exactly once."""
    size = 40 * MIB + 12_345
    content = bytes(make_content(plain_index(size), size))
    manifest = manifest_of(plain_index(size), content)
    shelf = Shelf()
    shelf.put(ARTIFACT, manifest, content)
    server = TcpServer("127.0.0.1:0", shelf, "c1", PEER)
    transport = TcpTransport("c1", "n2", ClientLimits(streams=1, verify=False))
    memory, told = bytearray(size), []
    region = transport.register(
        memoryview(memory), share=lambda chunks: told.extend(range_of(chunks))
    )
    channel = await transport.connect(PEER, server.address)
    pull = make_pull(manifest, 0, manifest.chunks_total)
    for _ in range(2):  # the second time it knows how fast they come
        told.clear()
        channel.post([pull], region)
        ends = [end for end in await collect(channel, 1) if isinstance(end, Completed)]
        assert [end.pull for end in ends] == [pull]
        assert sorted(told) == list(range(41))
        assert memory == content
        memory[:] = bytes(size)
    await transport.aclose()
    server.close()
    shelf.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        Random(1).randbytes(4096),
        wire.OPENING.pack(wire.MAGIC, wire.VERSION, 0xFFFFFFFF),
        wire.OPENING.pack(wire.MAGIC, 99, 2) + b"{}",
        wire.OPENING.pack(wire.MAGIC, wire.VERSION, 5) + b"[1,2]",
        HELLO[:-1],
        HELLO[:3],
        b"",
    ],
)
async def test_strangers_are_shown_out(server, dial, sent, manifest, content):
    assert await asyncio.to_thread(is_closed, dial(sent))
    await assert_serves(server, content, manifest)


@pytest.mark.parametrize(
    ("cluster", "peer", "reason"),
    [("c2", PEER, "another cluster"), ("c1", "n5", "This is node n1, not n5")],
)
async def test_peers_that_mean_somebody_else_are_refused(server, cluster, peer, reason):
    with pytest.raises(PermissionDenied, match=reason):
        await TcpTransport(cluster, "n2").connect(peer, server.address)


@pytest.mark.parametrize(
    "sent",
    [
        wire.REQUEST.pack(65535, 1, 0),
        wire.REQUEST.pack(40, 65535, 0),
        wire.REQUEST.pack(40, 1, 0xFFFFFFFF),
        wire.REQUEST.pack(2, 0, 0) + b"\xff\xff",
        wire.REQUEST.pack(40, 1, 0)[:5],
        Random(2).randbytes(64),
    ],
)
def test_requests_that_break_the_rules_end_the_connection(dial, sent):
    connected = dial()
    assert greet(connected).refusal == ""
    connected.sendall(sent)
    assert is_closed(connected)


@pytest.mark.parametrize(
    "pair", [(0, SIZE + 1), (SIZE, 1), (2**64 - 1, 2**64 - 1), (2**63, 10), (5, 0), (0, 2**64 - 1)]
)
def test_ranges_outside_of_the_artifact_are_refused(dial, pair, content):
    connected = dial()
    greet(connected)
    ask(connected, pair, (SIZE - 5, 5))
    status = wire.PART.unpack(read(connected, wire.PART.size))
    assert status == (wire.Status.INVALID, 0, 0, 0, 0)
    assert wire.PART.unpack(read(connected, wire.PART.size))[0] == wire.Status.OK
    assert read(connected, 5) == content[-5:]


@pytest.mark.parametrize("name", ["../../../etc/passwd", "", "a" * 128, "\0"])
def test_names_of_no_artifact_are_not_found(dial, name):
    connected = dial()
    greet(connected)
    ask(connected, (0, 10), (0, 10), artifact=name)
    for _ in range(2):
        answer = wire.PART.unpack(read(connected, wire.PART.size))
        assert answer == (wire.Status.NOT_FOUND, 0, 0, 0, 0)


def trickle(connected, sent, stop):
    """One byte at a time, for ever."""
    with contextlib.suppress(OSError):
        for byte in sent * 1000:
            if stop.wait(0.03):
                return
            connected.send(bytes([byte]))


@pytest.mark.parametrize("sent", [HELLO, wire.REQUEST.pack(40, 60, 0)])
def test_a_peer_that_trickles_is_closed(dial, sent):
    connected = dial(b"" if sent is HELLO else HELLO)
    if sent is not HELLO:
        greet(connected)
    stop = threading.Event()
    sending = threading.Thread(target=trickle, args=(connected, sent, stop))
    begun = time.monotonic()
    sending.start()
    assert is_closed(connected)
    stop.set()
    sending.join()
    assert time.monotonic() - begun < 3


def test_a_peer_that_does_not_read_lets_the_artifact_go(server, shelf, dial):
    connected = dial()
    greet(connected)
    for _ in range(20):
        ask(connected, (0, SIZE))
    until(lambda: shelf.lent == 1)
    until(lambda: shelf.lent == 0 and server.connections == 0)


def test_an_idle_peer_lets_the_artifact_go_and_is_closed(server, shelf, dial):
    connected = dial()
    greet(connected)
    ask(connected, (0, 10))
    read(connected, wire.PART.size + 10)
    assert shelf.lent == 1
    until(lambda: shelf.lent == 0)
    assert server.connections == 1
    assert is_closed(connected)


def test_a_peer_can_let_the_artifact_go_itself(shelf, dial):
    connected = dial()
    greet(connected)
    ask(connected, (0, 10))
    read(connected, wire.PART.size + 10)
    connected.sendall(wire.RELEASE)
    until(lambda: shelf.lent == 0)
    ask(connected, (0, 10))
    assert len(read(connected, wire.PART.size + 10)) == wire.PART.size + 10


def until(condition):
    deadline = time.monotonic() + 10
    poll = threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        poll.wait(0.01)


def test_connections_have_a_limit_and_places_become_free(server, dial):
    kept = [dial() for _ in range(QUICK.connections_max)]
    for connected in kept:
        greet(connected)
    assert is_closed(dial())
    for connected in kept:
        connected.close()
    until(lambda: server.connections == 0)
    assert greet(dial()).node == PEER


def test_an_address_in_use_is_an_error_in_words(server, shelf):
    with pytest.raises(Unavailable, match=f"Cannot listen on {server.address}"):
        TcpServer(server.address, shelf, "c1", PEER)


class DiskShelf:
    """A provider of what lies on a disk."""

    def __init__(self, tier, manifest):
        self._tier = tier
        self._manifest = manifest

    @contextlib.contextmanager
    def lend(self, artifact):
        everything = ChunkSet.full(self._manifest.chunks_total)
        with self._tier.open_ranges(artifact, self._manifest) as opened:
            yield Lending(
                fd=opened.fd,
                layout=opened.layout,
                chunk_bytes=self._manifest.chunk_bytes,
                chunks=lambda: everything,
            )


@pytest.mark.parametrize("name", ["odd", "shared", "plain"])
async def test_a_replica_on_disk_is_served_as_its_byte_space(tmp_path, name):
    """The gaps that the file leaves out arrive as zeros."""
    index, size = samples()[name]
    stored = make_content(index, size)
    its_manifest = manifest_of(index, stored)
    tier = DiskTier(tmp_path)
    tier.persist(ARTIFACT, its_manifest, memoryview(stored))
    server = TcpServer("127.0.0.1:0", DiskShelf(tier, its_manifest), "c1", PEER)
    transport = TcpTransport("c1", "n2")
    memory = bytearray(b"\xff" * size)
    region = transport.register(memoryview(memory), MemoryKind.DRAM)
    channel = await transport.connect(PEER, server.address)
    pull = make_pull(its_manifest, 0, its_manifest.chunks_total)
    channel.post([pull], region)
    assert await collect(channel, 1) == [Completed(pull=pull)]
    assert memory == stored
    await transport.aclose()
    server.close()


async def test_thousands_of_small_pulls_share_requests(content):
    """A range of the wire is as small as a chunk may be; the artifact here has tiny ones."""
    size, chunk = 4096 * 500 + 7, 500
    small = content[:size]
    view = memoryview(small)
    digests = b"".join(chunk_digest(view[at : at + chunk]) for at in range(0, size, chunk))
    tiny = msgspec.structs.replace(
        manifest_of(plain_index(size), small), chunk_bytes=chunk, digests=digests
    )
    shelf = Shelf()
    shelf.put(ARTIFACT, tiny, small)
    server = TcpServer("[::1]:0", shelf, "c1", PEER)
    transport = TcpTransport("c1", "n2")
    memory = bytearray(size)
    region = transport.register(memoryview(memory))
    channel = await transport.connect(PEER, server.address)
    pulls = [make_pull(tiny, n, n + 1) for n in range(tiny.chunks_total)]
    channel.post(pulls[::-1], region)
    ends = await collect(channel, len(pulls))
    assert all(isinstance(end, Completed) for end in ends)
    assert memory == small
    await transport.aclose()
    region.close()
    server.close()
    shelf.close()


async def test_threads_and_descriptors_are_given_back(server, manifest, content):
    before = (threading.active_count(), len(os.listdir("/proc/self/fd")))
    for _ in range(3):
        await assert_serves(server, content, manifest)
    await asyncio.to_thread(until, lambda: server.connections == 0)

    def is_given_back() -> bool:
        workers = sum(t.name.startswith("asyncio") for t in threading.enumerate())
        threads = threading.active_count() - workers
        return threads <= before[0] and len(os.listdir("/proc/self/fd")) <= before[1]

    await asyncio.to_thread(until, is_given_back)
