"""What the verbs answer when something is wrong, and what follows for a transfer."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time
from subprocess import PIPE, Popen

import pytest

from conformance.contents import MIB, Shelf, make_content, manifest_of, plain_index
from conformance.transport import ARTIFACT, PEER, collect, make_pull
from rdma_ends import (
    Registered,
    asking,
    break_pair,
    connected,
    cut_link,
    resources,
    serving,
    status_of,
)
from tensorcast.movers.core.digests import chunk_digest
from tensorcast.movers.core.transfer import Broken, Completed, Pull
from tensorcast.movers.transports.rdma import verbs
from tensorcast.movers.transports.rdma.channel import RdmaChannel
from tensorcast.movers.transports.rdma.endpoint import Endpoint
from tensorcast.movers.transports.rdma.region import RdmaRegion, Regions
from tensorcast.movers.transports.rdma.statuses import SUCCESS
from tensorcast.movers.transports.rdma.windows import Keys
from tensorcast.movers.transports.rdma.wire import BUFFERS
from tensorcast.schema.chunks import ByteRange
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.faults import FaultKind
from tensorcast.schema.tensors import Manifest

pytestmark = pytest.mark.rdma
PROTECTION, REFUSED, FLUSHED, LOST, NOT_READY = {2, 4}, 10, 5, 12, 13
FAST = {"ack_exponent": 12, "retries": 2}


# ---- bare verbs --------------------------------------------------------------------------------


def test_a_read_brings_the_bytes():
    with connected() as pair:
        assert pair.read(pair.source.region.rkey) == SUCCESS
        assert bytes(pair.target.memory[:4096]) == b"s" * 4096
        assert bytes(pair.target.memory[4096:4097]) == b"\0"


@pytest.mark.parametrize("fault", ["key", "bounds", "gone", "unreadable"])
def test_memory_that_is_not_lent_is_refused_and_what_follows_is_flushed(fault):
    with connected() as pair:
        key, skip = pair.source.region.rkey, 0
        if fault == "key":
            key ^= 0x5A00
        elif fault == "bounds":
            skip = pair.source.memory.nbytes - 100
        elif fault == "gone":
            pair.source.close()
        else:
            hidden = Registered(pair.theirs.device, 1 << 16, verbs.enums.IBV_ACCESS_LOCAL_WRITE)
            key = hidden.region.rkey
        assert pair.read(key, skip=skip) == REFUSED
        assert bytes(pair.target.memory) == bytes(pair.target.memory.nbytes)
        assert pair.read(key) == FLUSHED


def test_memory_of_ours_that_is_not_registered_is_refused():
    with connected() as pair:
        assert pair.read(pair.source.region.rkey, lkey=pair.target.region.lkey ^ 0x5A00) in (
            PROTECTION
        )


def test_a_peer_that_takes_no_messages_is_given_up():
    with connected() as pair:
        numbers = range(1 << 20, (1 << 20) + BUFFERS + 1)
        for number in numbers:
            pair.ours.post_message(number, number % BUFFERS, b"hello")
        assert status_of(pair.ours, numbers[-1]) == NOT_READY


def test_a_queue_pair_that_is_gone_does_not_answer():
    with connected(**FAST) as pair:
        pair.theirs.close()
        assert pair.read(pair.source.region.rkey) == LOST


# ---- keys --------------------------------------------------------------------------------------


def test_a_key_of_a_window_ends_with_its_grant():
    with connected() as pair:
        regions = Regions()
        memory = pair.source.memory
        regions.use(memory)
        keys = Keys(pair.theirs, regions)
        first = keys.lend(memory, 0, 8192)
        assert pair.read(first.key) == SUCCESS
        assert pair.read(first.key, skip=4096) == SUCCESS
        ended: list[int] = []
        keys.end(first, lambda: ended.append(1))
        for done in wait_for(pair.theirs, 2):
            keys.settle(done)
        assert ended
        second = keys.lend(memory, 0, 4096)
        assert second.key != first.key
        assert pair.read(second.key) == SUCCESS
        assert pair.read(first.key) == REFUSED, "an old key shows nothing"
        keys.close()
        pair.theirs.close()
        regions.leave(memory)
        assert regions.count() == 0


def wait_for(endpoint: Endpoint, count: int):
    found = []
    while len(found) < count:
        found += endpoint.poll()
        endpoint.wait((), 0.05)
    return found


def test_a_window_is_good_for_its_own_queue_pair_only():
    with connected() as pair, connected() as other:
        regions = Regions()
        regions.use(pair.source.memory)
        keys = Keys(pair.theirs, regions)
        lent = keys.lend(pair.source.memory, 0, 4096)
        assert pair.read(lent.key) == SUCCESS
        other.source.address = pair.source.address
        assert other.read(lent.key) == REFUSED
        keys.close()
        pair.theirs.close()
        regions.close()


@pytest.mark.parametrize("windows", [True, False])
def test_after_eviction_an_old_key_shows_nothing(windows):
    """The segment has other content by then: never stale bytes, never new ones."""
    with connected(windows=windows) as pair:
        regions = Regions()
        memory = pair.source.memory
        regions.mapped(memory)
        regions.use(memory)
        keys = Keys(pair.theirs, regions)
        lent = keys.lend(memory, 0, 4096)
        assert pair.read(lent.key) == SUCCESS
        left: list[int] = []
        keys.end(lent, lambda: left.append(1))
        while not left:
            for done in pair.theirs.poll():
                keys.settle(done)
        regions.leave(memory)
        regions.emptied(memory)
        memory[:] = b"t" * memory.nbytes
        assert pair.read(lent.key) == REFUSED
        assert b"t" not in bytes(pair.target.memory)
        keys.close()
        pair.theirs.close()
        assert regions.count() == (1 if windows else 0), "a segment stays registered for us"
        regions.unmapped(memory)
        assert regions.count() == 0


# ---- transfers ---------------------------------------------------------------------------------


def shelf_of(size_bytes: int) -> tuple[Shelf, Manifest, bytearray]:
    shelf, content = Shelf(), make_content(plain_index(size_bytes), size_bytes)
    manifest = manifest_of(plain_index(size_bytes), content)
    shelf.put(ARTIFACT, manifest, content)
    return shelf, manifest, content


@pytest.mark.parametrize("rails", [1, 2])
async def test_a_queue_pair_that_fails_costs_one_chunk(rails):
    """In the middle of 64 MiB: another one takes its place, and the bytes are right."""
    size = 64 * MIB
    shelf, manifest, content = shelf_of(size)
    memory = bytearray(size)
    with serving(shelf) as (server, _), asking(queue_pairs=rails) as transport:
        region = transport.register(memoryview(memory))
        channel = await transport.connect(PEER, server.address)
        assert channel.rails == rails
        break_in_the_middle(channel, region, at=20 * MIB)
        channel.post([make_pull(manifest, n, n + 8, number=n) for n in range(0, 64, 8)], region)
        ends = await collect(channel, 8, timeout_s=60)
        assert all(isinstance(end, Completed) for end in ends)
        assert channel.faults
        repeated = channel.read_bytes - size
        assert 0 <= repeated <= manifest.chunk_bytes
        await channel.aclose()
        region.close()
        await transport.aclose()
    assert memory == content


def break_in_the_middle(channel: RdmaChannel, region: RdmaRegion, at: int) -> None:
    """Once so much has come, the rail that checks the next chunk loses its queue pair, with READs
    under way."""
    real = region.content
    is_broken = threading.Event()

    def content(start: int, stop: int) -> memoryview:
        rail = channel._rails[channel._threads.index(threading.current_thread())]
        if not is_broken.is_set() and channel.read_bytes >= at and rail._reads:
            is_broken.set()
            break_pair(rail._endpoint)
        return real(start, stop)

    region.content = content


async def test_a_link_that_goes_down_breaks_the_pulls_and_keeps_what_has_come():
    size, count = 48 * MIB, 48
    shelf, manifest, content = shelf_of(size)
    memory = bytearray(size)
    # Small packets are slow: there is a middle. What one end wishes is enough.
    with serving(shelf) as (server, _), asking(mtu_bytes=256, **FAST) as transport:
        region = transport.register(memoryview(memory))
        channel = await transport.connect(PEER, server.address)
        channel.post([make_pull(manifest, n, n + 1, number=n) for n in range(count)], region)
        await asyncio.to_thread(wait_until, lambda: channel.read_bytes >= 4 * MIB)
        with cut_link():
            ends = await collect(channel, count, timeout_s=60)
            broken = [end for end in ends if isinstance(end, Broken)]
            assert broken
            assert all(end.fault.kind is FaultKind.UNAVAILABLE for end in broken)
            assert "over RDMA" in broken[0].fault.detail
        for end in ends:
            if isinstance(end, Completed):
                n = end.pull.first
                assert memory[n * MIB : (n + 1) * MIB] == content[n * MIB : (n + 1) * MIB]
        await channel.aclose()
        region.close()
        again = await transport.connect(PEER, server.address)
        region = transport.register(memoryview(memory))
        again.post([make_pull(manifest, 0, count)], region)
        assert isinstance((await collect(again, 1, timeout_s=60))[0], Completed)
        await transport.aclose()
        region.close()
    assert memory == content


def wait_until(predicate) -> None:
    deadline = time.monotonic() + 60
    while not predicate():
        assert time.monotonic() < deadline
        time.sleep(0.001)


SERVE = """
import sys, time
from conformance.contents import Shelf, make_content, manifest_of, plain_index
from conformance.transport import ARTIFACT
from rdma_ends import serving
size = int(sys.argv[1])
content = bytearray(size)
shelf = Shelf()
shelf.put(ARTIFACT, manifest_of(plain_index(size), content), content)
with serving(shelf) as (server, _):
    print(server.address, flush=True)
    time.sleep(60)
"""


async def test_a_peer_that_is_killed_breaks_its_pulls_at_once():
    size = 32 * MIB
    manifest = manifest_of(plain_index(size), bytearray(size))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path])}
    command = [sys.executable, "-P", "-c", SERVE, str(size)]
    peer = Popen(command, stdout=PIPE, text=True, env=environ)  # noqa: ASYNC220  (a moment)
    try:
        assert peer.stdout is not None
        address = await asyncio.to_thread(peer.stdout.readline)
        with asking() as transport:
            region = transport.register(memoryview(bytearray(size)))
            channel = await transport.connect(PEER, address.strip())
            channel.post([make_pull(manifest, n, n + 1, number=n) for n in range(32)], region)
            await asyncio.to_thread(wait_until, lambda: channel.read_bytes >= 2 * MIB)
            peer.send_signal(signal.SIGKILL)
            ends = await collect(channel, 32, timeout_s=30)
            assert any(isinstance(end, Broken) for end in ends)
            with pytest.raises(Unavailable):
                await transport.connect(PEER, address.strip())
            await channel.aclose()
            region.close()
            await transport.aclose()
    finally:
        peer.kill()
        peer.wait()


async def test_a_thousand_random_pulls_are_exact_and_nothing_is_left():
    before = resources()
    chunk, count = 1 << 14, 256
    content = random.Random(7).randbytes(chunk * count - 1000)
    digests = [chunk_digest(content[n * chunk : (n + 1) * chunk]) for n in range(count)]
    shelf = Shelf()
    whole = manifest_of(plain_index(len(content)), content)
    shelf.put(ARTIFACT, Manifest(**{**fields(whole), "chunk_bytes": chunk}), content)
    rng = random.Random(11)
    with serving(shelf, queue_pairs=2) as (server, _), asking(queue_pairs=2) as transport:
        channel = await transport.connect(PEER, server.address)
        for _ in range(20):
            memory = bytearray(len(content))
            region = transport.register(memoryview(memory))
            pulls = [random_pull(rng, n, chunk, len(content), digests) for n in range(50)]
            channel.post(pulls, region)
            ends = await collect(channel, 50, timeout_s=60)
            assert all(isinstance(end, Completed) for end in ends)
            for pull in pulls:
                a, b = pull.source_range.offset, pull.source_range.end
                assert memory[a:b] == content[a:b]
            region.close()
        await transport.aclose()
    assert shelf.lent == 0
    assert resources() == before


def random_pull(rng, number, chunk, size, digests) -> Pull:
    first = rng.randrange(len(digests))
    stop = min(len(digests), first + rng.randint(1, 8))
    where = ByteRange(first * chunk, min(size, stop * chunk) - first * chunk)
    return Pull(
        number=number,
        peer=PEER,
        artifact=ARTIFACT,
        first=first,
        stop=stop,
        source_range=where,
        target_range=where,
        chunk_bytes=chunk,
        digests=b"".join(digests[first:stop]),
    )


def fields(manifest: Manifest) -> dict:
    return {name: getattr(manifest, name) for name in manifest.__struct_fields__}
