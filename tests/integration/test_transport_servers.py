"""Pulls over TCP from servers that are broken, hostile, slow or silent."""

import asyncio
import os
import time

import pytest

from conformance.contents import MIB, make_content, manifest_of, plain_index
from conformance.transport import PEER, collect, make_pull
from tcp_peers import HELLO, SIZE, playing, read
from tensorcast.movers.core.transfer import Broken, Completed
from tensorcast.movers.transports.base import MemoryKind
from tensorcast.movers.transports.tcp import wire
from tensorcast.movers.transports.tcp.client import TcpTransport
from tensorcast.movers.transports.tcp.dialing import ClientLimits
from tensorcast.schema.chunks import ByteRange, ChunkSet
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.faults import FaultKind


@pytest.fixture(scope="module")
def content():
    return bytes(make_content(plain_index(SIZE), SIZE))


@pytest.fixture(scope="module")
def manifest(content):
    return manifest_of(plain_index(SIZE), content)


IMPATIENT = ClientLimits(streams=1, connect_s=0.3, stall_s=0.3)
WELCOME = wire.pack_opening(wire.Welcome(node=PEER))


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2p1\r\n",
        WELCOME[:-1],
        wire.OPENING.pack(wire.MAGIC, 1, 2) + b"{}",
        wire.OPENING.pack(wire.MAGIC, 2, 1 << 30),
        wire.OPENING.pack(wire.MAGIC, 2, 1) + b"7",
    ],
)
@pytest.mark.parametrize("stays", [True, False])
async def test_a_server_that_does_not_greet_is_unavailable(sent, stays):
    def script(connected, stop):
        connected.sendall(sent)
        if stays:
            stop.wait(10)

    with playing(script) as fake:
        begun = time.monotonic()
        with pytest.raises(Unavailable, match=f"Node n1 at {fake.address}"):
            await TcpTransport("c1", "n2", IMPATIENT).connect(PEER, fake.address)
        assert time.monotonic() - begun < 3


def answering(play):
    """A script that greets well, reads one request, and then plays."""

    def script(connected, stop):
        read(connected, len(HELLO))
        connected.sendall(WELCOME)
        head = wire.parse_request_head(read(connected, wire.REQUEST.size))
        read(connected, head.rest_bytes)
        play(connected, stop)

    return script


async def pull_from(script, manifest, memory=None, limits=IMPATIENT):
    """The end of one pull of chunks 0 .. 2 from a server with a script."""
    memory = bytearray(SIZE) if memory is None else memory
    with playing(script) as fake:
        transport = TcpTransport("c1", "n2", limits)
        region = transport.register(memoryview(memory), MemoryKind.DRAM)
        channel = await transport.connect(PEER, fake.address)
        channel.post([make_pull(manifest, 0, 3)], region)
        (end,) = await collect(channel, 1)
        await transport.aclose()
        region.close()
    return end


def ok(size=3 * MIB, status=0, tells=0, holds=0, reserved=0):
    return wire.PART.pack(status, tells, reserved, holds, size)


@pytest.mark.parametrize(
    "sent",
    [
        ok(size=2**64 - 1),
        ok(size=3 * MIB + 1),
        ok(size=5, status=1),
        ok(size=0, status=4),
        ok(size=MIB + 1, status=4),
        ok(size=3 * MIB, status=4),
        ok(reserved=1),
        ok(holds=1) + wire.HELD.pack(0, 1),
        ok(status=77),
        ok(status=2),
        ok(holds=2**32 - 1),
        ok(tells=1, holds=1) + wire.HELD.pack(7, 7),
        ok(status=3, size=0),
        ok()[:7],
        b"",
    ],
)
async def test_answers_that_break_the_rules_lose_the_peer(sent, manifest):
    memory = bytearray(SIZE)

    def play(connected, stop):
        connected.sendall(sent)
        if len(sent) < wire.PART.size:
            return
        stop.wait(10)

    end = await pull_from(answering(play), manifest, memory)
    assert isinstance(end, Broken)
    assert (end.fault.kind, end.arrived) == (FaultKind.UNAVAILABLE, ChunkSet())
    assert memory == bytes(SIZE)


@pytest.mark.parametrize("stays", [True, False])
async def test_what_came_before_the_loss_counts(manifest, content, stays):
    def play(connected, stop):
        connected.sendall(ok() + content[: 2 * MIB + 5])
        if stays:
            stop.wait(10)

    end = await pull_from(answering(play), manifest)
    assert isinstance(end, Broken)
    assert (end.fault.kind, end.arrived) == (FaultKind.UNAVAILABLE, ChunkSet.of([0, 1]))


class Silent:
    """A server that falls silent in the middle of what it sends first, and answers what is asked
    on the next connection. `lives` are what it calls itself."""

    def __init__(self, content, lives):
        self.content = content
        self.lives = list(lives)
        self.asked = []

    def __call__(self, connected, stop):
        is_first = not self.asked
        read(connected, len(HELLO))
        connected.sendall(wire.pack_opening(wire.Welcome(node=PEER, life=self.lives.pop(0))))
        packed = read(connected, wire.REQUEST.size)
        if not packed:
            return
        head = wire.parse_request_head(packed)
        (wanted,) = wire.parse_request(head, read(connected, head.rest_bytes)).ranges
        self.asked.append(wanted)
        if is_first:
            connected.sendall(ok(size=2 * MIB, status=4) + self.content[: MIB + 5])
        else:
            connected.sendall(ok(size=wanted.size) + self.content[wanted.offset : wanted.end])
        stop.wait(10)


PATIENT = ClientLimits(streams=1, connect_s=0.3, quiet_s=0.2, stall_s=5.0)


async def test_a_silent_connection_is_replaced_and_only_the_rest_asked_for(manifest, content):
    memory, server = bytearray(SIZE), Silent(content, ["x", "x"])
    end = await pull_from(server, manifest, memory, PATIENT)
    assert isinstance(end, Completed)
    assert memory[: 3 * MIB] == content[: 3 * MIB]
    assert server.asked == [ByteRange(0, 3 * MIB), ByteRange(MIB, 2 * MIB)]


async def test_a_peer_that_was_started_anew_is_another_one(manifest, content):
    end = await pull_from(Silent(content, ["x", "y"]), manifest, None, PATIENT)
    assert isinstance(end, Broken)
    assert (end.fault.kind, end.arrived) == (FaultKind.UNAVAILABLE, ChunkSet.of([0]))
    assert "started anew" in end.fault.detail


async def test_without_checks_bytes_are_taken_as_they_come(manifest, content):
    damaged = bytearray(content[: 3 * MIB])
    damaged[MIB + 1] ^= 1
    memory = bytearray(SIZE)

    def play(connected, stop):
        connected.sendall(ok() + damaged)
        stop.wait(10)

    end = await pull_from(answering(play), manifest, memory, ClientLimits(streams=1, verify=False))
    assert isinstance(end, Completed)
    assert memory[: 3 * MIB] == damaged


async def test_a_flipped_bit_is_found_and_named(manifest, content):
    damaged = bytearray(content[: 3 * MIB])
    damaged[MIB + 1] ^= 1

    def play(connected, stop):
        connected.sendall(ok() + damaged)
        stop.wait(10)

    end = await pull_from(answering(play), manifest)
    assert isinstance(end, Broken)
    assert (end.fault.kind, end.arrived) == (FaultKind.CORRUPT, ChunkSet.of([0, 2]))
    assert "chunk 1 " in end.fault.detail


async def test_a_sender_that_trickles_is_given_up(manifest, content):
    def play(connected, stop):
        connected.sendall(ok())
        for n in range(1000):
            connected.send(content[n : n + 1])
            if stop.wait(0.02):
                return

    begun = time.monotonic()
    end = await pull_from(answering(play), manifest)
    assert isinstance(end, Broken)
    assert end.fault.kind is FaultKind.UNAVAILABLE
    assert time.monotonic() - begun < 5


async def test_a_cancelled_connect_leaves_nothing_open():
    before = len(os.listdir("/proc/self/fd"))

    def script(connected, stop):
        stop.wait(10)

    with playing(script) as fake:
        transport = TcpTransport("c1", "n2", IMPATIENT)
        connecting = asyncio.create_task(transport.connect(PEER, fake.address))
        await asyncio.sleep(0.05)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
    for _ in range(200):  # a busy machine may need some of these 10 s
        if len(os.listdir("/proc/self/fd")) <= before:
            break
        await asyncio.sleep(0.05)
    assert len(os.listdir("/proc/self/fd")) <= before
