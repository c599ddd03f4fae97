"""Peers that say what cannot be, errors of our own, and what is made while another thing ends:
nothing waits for ever, and nothing is left."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager

import msgspec
import pytest

from conformance.contents import MIB, Shelf, make_content, manifest_of, plain_index
from conformance.transport import ARTIFACT, PEER, collect, make_pull
from rdma_ends import asking, break_pair, devices, resources, serving
from tensorcast.movers.core.digests import chunk_digest
from tensorcast.movers.core.reading import Reading
from tensorcast.movers.core.transfer import Broken, Completed
from tensorcast.movers.transports.rdma.device import Device
from tensorcast.movers.transports.rdma.endpoint import Endpoint
from tensorcast.movers.transports.rdma.windows import Key, Keys
from tensorcast.movers.transports.rdma.work import Posted
from tensorcast.schema.faults import FaultKind
from tensorcast.storage.nics import read_nics

pytestmark = pytest.mark.rdma
SIZE = 4 * MIB


def make_shelf(size_bytes: int = SIZE):
    shelf, content = Shelf(), make_content(plain_index(size_bytes), size_bytes)
    manifest = manifest_of(plain_index(size_bytes), content)
    shelf.put(ARTIFACT, manifest, content)
    return shelf, manifest, content


@contextmanager
def nothing_left():
    before = resources()
    yield
    assert resources() == before


async def pull_all(transport, address, manifest, size_bytes=SIZE, change=None):
    """How a pull of everything ends, and the channel's faults."""
    region = transport.register(memoryview(bytearray(size_bytes)))
    if change is not None:
        change(region)
    channel = await transport.connect(PEER, address)
    channel.post([make_pull(manifest, 0, manifest.chunks_total)], region)
    (end,) = await collect(channel, 1, timeout_s=30)
    await channel.aclose()
    region.close()
    return end, channel.faults


@pytest.mark.parametrize(("key", "address"), [(1 << 40, 5), (5, -5), (5, (1 << 64) - 1)])
async def test_a_grant_that_cannot_be_breaks_the_pull(monkeypatch, key, address):
    shelf, manifest, _ = make_shelf()
    with nothing_left(), serving(shelf) as (server, _), asking() as transport:
        lie = Key(key, address, None)
        monkeypatch.setattr(Keys, "lend", lambda *_: lie)
        end, _ = await pull_all(transport, server.address, manifest)
        assert isinstance(end, Broken)
        assert end.fault.kind is FaultKind.UNAVAILABLE
        monkeypatch.undo()
        end, _ = await pull_all(transport, server.address, manifest)
        assert isinstance(end, Completed)
        await transport.aclose()


async def test_an_error_of_our_own_breaks_the_pull():
    shelf, manifest, _ = make_shelf()

    def change(region):
        def content(*_):
            raise RuntimeError("the GPU has fallen off the bus")

        region.content = content

    with nothing_left(), serving(shelf) as (server, _), asking() as transport:
        end, faults = await pull_all(transport, server.address, manifest, change=change)
        assert isinstance(end, Broken)
        assert "the GPU has fallen off the bus" in end.fault.detail
        assert len(faults) == 1, "another queue pair would fare no better"
        await transport.aclose()


async def test_a_landing_that_cannot_be_ends_its_rail_alone(monkeypatch):
    shelf, manifest, _ = make_shelf(1000)
    with nothing_left(), serving(shelf) as (server, _), asking() as transport:
        monkeypatch.setattr(Endpoint, "landing", lambda *_: (-1, 1 << 40))
        end, _ = await pull_all(transport, server.address, manifest, 1000)
        assert isinstance(end, Broken)
        monkeypatch.undo()
        end, _ = await pull_all(transport, server.address, manifest, 1000)
        assert isinstance(end, Completed)
        await transport.aclose()


async def test_a_channel_that_is_closed_while_a_rail_is_rebuilt_leaves_nothing():
    shelf, manifest, _ = make_shelf()
    with nothing_left(), serving(shelf) as (server, _), asking() as transport:
        region = transport.register(memoryview(bytearray(SIZE)))
        channel = await transport.connect(PEER, server.address)
        dial, real = channel._dialer.dial, region.content
        is_rebuilt = threading.Event()

        def dial_late(*arguments):
            opened = dial(*arguments)
            channel._stop()
            is_rebuilt.set()
            return opened

        def content(*where):
            break_pair(channel._rails[0]._endpoint)
            return real(*where)

        channel._dialer.dial, region.content = dial_late, content
        channel.post([make_pull(manifest, 0, manifest.chunks_total)], region)
        assert await asyncio.to_thread(is_rebuilt.wait, 30)
        await channel.aclose()
        region.close()
        await transport.aclose()


async def test_the_last_fault_is_the_reason_and_rebuilds_are_counted_by_time(monkeypatch):
    """A rail that failed long ago may be replaced once more; then a fault on the way is the end."""
    shelf, manifest, _ = make_shelf(2 * SIZE)
    with nothing_left(), serving(shelf) as (server, _), asking(reads_max=1) as transport:
        region = transport.register(memoryview(bytearray(2 * SIZE)))
        channel = await transport.connect(PEER, server.address)
        real, broken = region.content, []

        def bad(*where):
            endpoint = channel._rails[0]._endpoint
            if endpoint not in broken:
                broken.append(endpoint)
                if len(broken) == 3:
                    raise RuntimeError("a later fault")
                break_pair(endpoint)
            return real(*where)

        region.content = bad
        monkeypatch.setattr("tensorcast.movers.transports.rdma.channel.REBUILDS_S", 0.0)
        channel.post([make_pull(manifest, 0, manifest.chunks_total)], region)
        (end,) = await collect(channel, 1, timeout_s=30)
        assert len(channel.faults) == 3
        assert isinstance(end, Broken)
        assert "a later fault" in end.fault.detail
        await channel.aclose()
        region.close()
        await transport.aclose()


def test_devices_are_opened_while_queue_pairs_are_made():
    """The descriptor of a completion channel is told from those of devices."""
    is_over = threading.Event()
    with nothing_left(), devices() as (ours, theirs):

        def open_others():
            while not is_over.is_set():
                again(theirs).close()

        opening = threading.Thread(target=open_others)
        opening.start()
        try:
            for _ in range(400):
                Endpoint(ours).close()
        finally:
            is_over.set()
            opening.join()


def again(device: Device) -> Device:
    (nic,) = [nic for nic in read_nics() if nic.name == device.name]
    return Device(nic, nic.ports[0], device.settings)


async def test_a_push_leaves_alone_what_an_earlier_rail_has_brought():
    """That was checked, and may be served already; the peer's bytes have changed since."""
    chunk, count = 1 << 12, 4
    good = bytes(make_content(plain_index(chunk * count), chunk * count))
    digests = [chunk_digest(good[n * chunk : (n + 1) * chunk]) for n in range(count)]
    manifest = manifest_of(plain_index(len(good)), good)
    small = {"chunk_bytes": chunk, "digests": b"".join(digests)}
    manifest = msgspec.structs.replace(manifest, **small)
    changed = bytearray(good)
    changed[:chunk] = b"x" * chunk
    shelf = Shelf()
    shelf.put(ARTIFACT, manifest, changed)
    memory = bytearray(len(good))
    memory[:chunk] = good[:chunk]
    with nothing_left(), serving(shelf) as (server, _), asking() as transport:
        region = transport.register(memoryview(memory))
        channel = await transport.connect(PEER, server.address)
        reading = Reading(make_pull(manifest, 0, count), time.monotonic())
        reading.is_granted, reading.holds = True, None
        read = reading.next_read(chunk)
        assert read is not None
        reading.arrive(read)
        reading.settle(0, digests[0])
        reading.restart()
        channel._work.put([Posted(reading, region)])
        (end,) = await collect(channel, 1, timeout_s=30)
        assert isinstance(end, Completed), end
        await channel.aclose()
        region.close()
        await transport.aclose()
    assert memory == good
