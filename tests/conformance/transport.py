"""What every transport must keep: `check_transport` runs over each implementation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import msgspec
import pytest

from conformance.contents import MIB, Shelf, make_content, manifest_of, plain_index
from tensorcast.movers.core.transfer import Broken, Completed, Completion, Progressed, Pull
from tensorcast.movers.transports.base import Channel, MemoryKind, Transport
from tensorcast.schema.chunks import ByteRange, ChunkSet, chunk_range
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.faults import FaultKind
from tensorcast.schema.ids import ArtifactId, NodeId
from tensorcast.schema.tensors import Manifest

ARTIFACT = ArtifactId("a" * 40)
PEER = NodeId("n1")
SIZE = 5 * MIB + 321


@dataclass
class Wire:
    """A transport under test: `address` of the one peer, what the peer has, how to lose it."""

    transport: Transport
    address: str
    shelf: Shelf
    lose_peer: Callable[[], None]


MakeWire = Callable[[], AbstractAsyncContextManager[Wire]]


def make_pull(manifest: Manifest, first: int, stop: int, **more: object) -> Pull:
    """A pull of some chunks."""
    start = chunk_range(first, manifest.size_bytes, manifest.chunk_bytes).offset
    end = chunk_range(stop - 1, manifest.size_bytes, manifest.chunk_bytes).end
    pull = Pull(
        number=first,
        peer=PEER,
        artifact=ARTIFACT,
        first=first,
        stop=stop,
        source_range=ByteRange(start, end - start),
        target_range=ByteRange(start, end - start),
        chunk_bytes=manifest.chunk_bytes,
        digests=manifest.digests[first * 8 : stop * 8],
    )
    return msgspec.structs.replace(pull, **more)


async def collect(channel: Channel, count: int, timeout_s: float = 20) -> list[Completion]:
    """The next so many ends of pulls. What was told before a Broken is added to what it says."""
    found: list[Completion] = []
    told: dict[int, ChunkSet] = {}
    async with asyncio.timeout(timeout_s):
        while len(found) < count:
            for completion in await channel.completions():
                number = completion.pull.number
                before = told.get(number, ChunkSet())
                if not isinstance(completion, Completed):
                    assert not (before & completion.arrived).ranges, "each chunk is told once"
                if isinstance(completion, Progressed):
                    assert completion.arrived.ranges
                    told[number] = before | completion.arrived
                elif isinstance(completion, Broken):
                    arrived = before | completion.arrived
                    found.append(msgspec.structs.replace(completion, arrived=arrived))
                else:
                    found.append(completion)
    return found


async def pull_all(wire: Wire, pulls: Sequence[Pull], memory: bytearray) -> dict[int, Completion]:
    """Posts pulls and waits for their ends, by first chunk."""
    region = wire.transport.register(memoryview(memory), MemoryKind.DRAM)
    channel = await wire.transport.connect(PEER, wire.address)
    channel.post(pulls, region)
    ends = await collect(channel, len(pulls))
    await channel.aclose()
    region.close()
    assert len(ends) == len(pulls)
    return {end.pull.first: end for end in ends}


async def check_transport(make_wire: MakeWire) -> None:
    """Runs all checks, each with a wire of its own."""
    for check in (
        check_bytes_arrive,
        check_small_pulls,
        check_ends_come_once,
        check_missing_chunks,
        check_waiting,
        check_forwarding,
        check_overtaking,
        check_damage,
        check_unknown_artifact,
        check_unknown_peer,
        check_lost_peer,
        check_closing,
        check_what_it_says,
    ):
        async with make_wire() as wire:
            content = make_content(plain_index(SIZE), SIZE)
            manifest = manifest_of(plain_index(SIZE), content)
            wire.shelf.put(ARTIFACT, manifest, content)
            await check(wire, manifest, content)
            await wire.transport.aclose()


async def check_bytes_arrive(wire: Wire, manifest: Manifest, content: bytearray) -> None:
    memory = bytearray(b"\xee" * (SIZE + 64))
    ends = await pull_all(wire, [make_pull(manifest, 0, 2), make_pull(manifest, 4, 6)], memory)
    assert all(isinstance(end, Completed) for end in ends.values())
    assert memory[: 2 * MIB] == content[: 2 * MIB]
    assert memory[2 * MIB : 4 * MIB] == b"\xee" * (2 * MIB), "nothing else is touched"
    assert memory[4 * MIB : SIZE] == content[4 * MIB :]
    assert memory[SIZE:] == b"\xee" * 64


async def check_small_pulls(wire: Wire, manifest: Manifest, content: bytearray) -> None:
    """Many at a time, of the artifact's last few bytes, and each into its own place."""
    memory, target = bytearray(321 * 40), make_pull(manifest, 5, 6).source_range
    region = wire.transport.register(memoryview(memory), MemoryKind.DRAM)
    channel = await wire.transport.connect(PEER, wire.address)
    for first in (0, 1):
        numbers = range(first, 40, 2)
        places = {n: ByteRange(n * target.size, target.size) for n in numbers}
        channel.post(
            [make_pull(manifest, 5, 6, number=n, target_range=places[n]) for n in numbers], region
        )
        ends = await collect(channel, len(numbers))
        assert all(isinstance(end, Completed) for end in ends)
        assert sorted(end.pull.number for end in ends) == list(numbers)
    await channel.aclose()
    region.close()
    assert memory == content[5 * MIB :] * 40


async def check_ends_come_once(wire: Wire, manifest: Manifest, content: bytearray) -> None:
    memory = bytearray(SIZE)
    pulls = [make_pull(manifest, n, n + 1, number=n) for n in range(6)]
    ends = await pull_all(wire, pulls, memory)
    assert [ends[n] for n in range(6)] == [Completed(pull=pull) for pull in pulls]
    assert memory == content


async def check_missing_chunks(wire: Wire, manifest: Manifest, content: bytearray) -> None:
    wire.shelf.chunks[ARTIFACT] = held = ChunkSet.of([0, 1, 3])
    memory = bytearray(SIZE)
    ends = await pull_all(
        wire, [make_pull(manifest, n, n + 3) for n in (0, 3)] + [make_pull(manifest, 2, 3)], memory
    )
    for first, arrived in ((0, [0, 1]), (3, [3]), (2, [])):
        end = ends[first]
        assert isinstance(end, Broken)
        assert end.fault.kind is FaultKind.NOT_FOUND
        assert (end.arrived, end.holds) == (ChunkSet.of(arrived), held)
    assert memory[: 2 * MIB] == content[: 2 * MIB]


async def check_waiting(wire: Wire, manifest: Manifest, content: bytearray) -> None:
    """A peer holds a probe back until the chunk has come, and tells what else it has."""
    wire.shelf.chunks[ARTIFACT] = ChunkSet()
    memory = bytearray(SIZE)
    pull = make_pull(manifest, 2, 3, wait_s=8.0)
    waiting = asyncio.create_task(pull_all(wire, [pull], memory))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    wire.shelf.hold(ARTIFACT, ChunkSet.of([2, 3]))
    assert (await waiting)[2] == Completed(pull=pull, holds=ChunkSet.of([2, 3]))
    wire.shelf.chunks[ARTIFACT] = ChunkSet()
    ends = await pull_all(wire, [make_pull(manifest, 2, 3, wait_s=0.05)], memory)
    assert isinstance(ends[2], Broken)


async def check_forwarding(wire: Wire, manifest: Manifest, content: bytearray) -> None:
    """A pull of a replica that fills is told of each chunk as it comes, and ends when the peer has
    held the next one back for too long."""
    wire.shelf.hold(ARTIFACT, ChunkSet())
    memory = bytearray(SIZE)
    region = wire.transport.register(memoryview(memory), MemoryKind.DRAM)
    channel = await wire.transport.connect(PEER, wire.address)
    channel.post([make_pull(manifest, 0, 6, wait_s=8.0)], region)
    for held in range(1, 6):
        wire.shelf.hold(ARTIFACT, ChunkSet.full(held))
        async with asyncio.timeout(5):
            (told,) = await channel.completions()
        assert isinstance(told, Progressed)
        assert (told.arrived, told.holds) == (ChunkSet.of([held - 1]), ChunkSet.full(held))
        assert memory[: held * MIB] == content[: held * MIB]
    wire.shelf.hold(ARTIFACT, ChunkSet.full(6))
    assert await collect(channel, 1) == [Completed(pull=make_pull(manifest, 0, 6, wait_s=8.0))]
    wire.shelf.hold(ARTIFACT, ChunkSet.full(2))
    channel.post([make_pull(manifest, 0, 6, wait_s=0.05)], region)
    (end,) = await collect(channel, 1)
    assert isinstance(end, Broken)
    assert (end.fault.kind, end.arrived) == (FaultKind.NOT_FOUND, ChunkSet.full(2))
    await channel.aclose()
    region.close()


async def check_overtaking(wire: Wire, manifest: Manifest, content: bytearray) -> None:
    """Many pulls that wait in vain end together; what is there need not wait for all of them."""
    wire.shelf.hold(ARTIFACT, ChunkSet.of([4, 5]))
    memory = bytearray(SIZE)
    pulls = [make_pull(manifest, n, n + 1, wait_s=0.2) for n in range(4)]
    ends = await pull_all(wire, [*pulls, make_pull(manifest, 4, 6)], memory)
    assert isinstance(ends[4], Completed)
    assert all(isinstance(ends[n], Broken) for n in range(4))
    assert memory[4 * MIB :] == content[4 * MIB :]


async def check_damage(wire: Wire, manifest: Manifest, content: bytearray) -> None:
    """A chunk that does not match is named; the others of its pull count."""
    content[2 * MIB + 77] ^= 8
    wire.shelf.put(ARTIFACT, manifest, content)
    memory = bytearray(SIZE)
    ends = await pull_all(wire, [make_pull(manifest, 0, 3), make_pull(manifest, 3, 6)], memory)
    end = ends[0]
    assert isinstance(end, Broken)
    assert end.fault.kind is FaultKind.CORRUPT
    assert "chunk 2" in end.fault.detail
    assert PEER in end.fault.detail
    assert end.arrived == ChunkSet.of([0, 1])
    assert isinstance(ends[3], Completed)


async def check_unknown_artifact(wire: Wire, manifest: Manifest, content: bytearray) -> None:
    pulls = [make_pull(manifest, n, n + 1, artifact=ArtifactId("f" * 40)) for n in (0, 1)]
    ends = await pull_all(wire, [*pulls, make_pull(manifest, 2, 3)], bytearray(SIZE))
    for n in (0, 1):
        end = ends[n]
        assert isinstance(end, Broken)
        assert (end.fault.kind, end.arrived, end.holds) == (FaultKind.NOT_FOUND, ChunkSet(), None)
    assert isinstance(ends[2], Completed), "the channel still works"


async def check_unknown_peer(wire: Wire, manifest: Manifest, content: bytearray) -> None:
    with pytest.raises(Unavailable, match="n77"):
        await wire.transport.connect(NodeId("n77"), "127.0.0.1:1")


async def check_lost_peer(wire: Wire, manifest: Manifest, content: bytearray) -> None:
    """Everything that is or will be posted ends as Broken, and nobody waits for ever."""
    wire.shelf.chunks[ARTIFACT] = ChunkSet()
    region = wire.transport.register(memoryview(bytearray(SIZE)), MemoryKind.DRAM)
    channel = await wire.transport.connect(PEER, wire.address)
    channel.post([make_pull(manifest, n, n + 1, number=n, wait_s=5.0) for n in range(6)], region)
    await asyncio.to_thread(wire.lose_peer)
    ends = await collect(channel, 6)
    channel.post([make_pull(manifest, 0, 1, number=6)], region)
    ends += await collect(channel, 1)
    for end in ends:
        assert isinstance(end, Broken)
        assert end.fault.kind is FaultKind.UNAVAILABLE
        assert PEER in end.fault.detail
    assert sorted(end.pull.number for end in ends) == list(range(7))
    await channel.aclose()
    region.close()


async def check_closing(wire: Wire, manifest: Manifest, content: bytearray) -> None:
    """Closing in the middle frees the memory at once, wakes who waits, and can be repeated."""
    wire.shelf.chunks[ARTIFACT] = ChunkSet.of([0])
    memory = bytearray(SIZE)
    region = wire.transport.register(memoryview(memory), MemoryKind.DRAM)
    channel = await wire.transport.connect(PEER, wire.address)
    channel.post([make_pull(manifest, n, n + 1, wait_s=5.0) for n in range(6)], region)
    await collect(channel, 1)
    waiting = asyncio.create_task(channel.completions())
    await asyncio.sleep(0)
    async with asyncio.timeout(3):
        await channel.aclose()
        await channel.aclose()
        assert list(await waiting) == []
    region.close()
    memory.clear()  # raises BufferError if anything still looked at it


async def check_what_it_says(wire: Wire, manifest: Manifest, content: bytearray) -> None:
    capabilities = wire.transport.capabilities
    assert wire.transport.name
    assert MemoryKind.DRAM in capabilities.sources & capabilities.targets
    assert capabilities.pulls_in_flight_max > 0
