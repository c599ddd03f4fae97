"""The channels of one transfer, over a transport that does what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tensorcast.movers.core.transfer import Broken, Completed, Completion, Progressed, Pull
from tensorcast.movers.links import Links
from tensorcast.movers.transports.base import MemoryRegion
from tensorcast.schema.chunks import ByteRange, ChunkSet
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.faults import Fault, FaultKind
from tensorcast.schema.ids import ArtifactId, Epoch, NodeId

A = NodeId("a")
LIFE = (A, Epoch(1))


def pull(number: int) -> Pull:
    return Pull(
        number=number,
        peer=A,
        epoch=Epoch(1),
        artifact=ArtifactId("x" * 40),
        first=number,
        stop=number + 1,
        source_range=ByteRange(number, 1),
        target_range=ByteRange(number, 1),
        chunk_bytes=1,
        digests=b"12345678",
    )


class FakeChannel:
    """Keeps what is posted; completes what it is given."""

    def __init__(self) -> None:
        self.posted: list[Pull] = []
        self.is_closed = False
        self._done: asyncio.Queue[Sequence[Completion]] = asyncio.Queue()

    def post(self, pulls, target) -> None:
        self.posted += pulls

    def complete(self, *completions: Completion) -> None:
        self._done.put_nowait(completions)

    async def completions(self):
        return await self._done.get()

    async def aclose(self) -> None:
        self.is_closed = True


class FakeTransport:
    """`gate` holds connections back; without a channel to give it refuses."""

    name = "fake"

    def __init__(self, channels: int = 9) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.channels: list[FakeChannel] = []
        self.regions: list[MemoryRegion] = []
        self._left = channels

    def register(self, memory, *, share=None) -> MemoryRegion:
        self.regions.append(MemoryRegion(memory, share))
        return self.regions[-1]

    async def connect(self, peer: NodeId, address: str, artifact=None) -> FakeChannel:
        await self.gate.wait()
        if len(self.channels) == self._left:
            raise Unavailable(f"Node {peer} is away.", node=peer)
        self.channels.append(FakeChannel())
        return self.channels[-1]


def links(transport) -> Links:
    return Links({"tcp": transport}, memoryview(bytearray(9)), lambda peer: "h:1")


async def numbers(open_links: Links) -> list[tuple[str, int]]:
    found = await open_links.completions(5.0)
    return [(type(one).__name__, one.pull.number) for one in found]


async def test_pulls_share_a_channel_and_their_ends_are_gathered():
    transport = FakeTransport()
    async with links(transport) as opened:
        opened.post([pull(0), pull(1)])
        assert await opened.completions(0.01) == []
        (channel,) = transport.channels
        assert [p.number for p in channel.posted] == [0, 1]
        channel.complete(
            Progressed(pull=pull(0), arrived=ChunkSet.of([0])), Completed(pull=pull(1))
        )
        assert await numbers(opened) == [("Progressed", 0), ("Completed", 1)]
    assert channel.is_closed


async def test_a_peer_that_cannot_be_reached_breaks_its_pulls():
    transport = FakeTransport(channels=0)
    async with links(transport) as opened:
        opened.post([pull(0)])
        assert await numbers(opened) == [("Broken", 0)]


@pytest.mark.parametrize("is_open", [True, False])
async def test_who_is_left_owes_nothing_more_and_is_closed_first(is_open):
    transport = FakeTransport()
    if not is_open:
        transport.gate.clear()
    async with links(transport) as opened:
        opened.post([pull(0), pull(1)])
        assert await opened.completions(0.01) == []
        if is_open:
            transport.channels[0].complete(Completed(pull=pull(0)))
            assert await numbers(opened) == [("Completed", 0)]
        opened.leave(LIFE, "It fell silent.")
        opened.leave(LIFE, "Once is enough.")
        found = await opened.completions(5.0)
        assert [one.pull.number for one in found] == ([1] if is_open else [0, 1])
        assert all(isinstance(one, Broken) for one in found)
        assert {one.fault for one in found} == {
            Fault(kind=FaultKind.UNAVAILABLE, detail="It fell silent.")
        }
        assert all(channel.is_closed for channel in transport.channels)


async def test_a_connection_that_broke_is_replaced_when_the_peer_is_asked_again():
    transport = FakeTransport()
    async with links(transport) as opened:
        opened.post([pull(0)])
        await opened.completions(0.01)
        lost = Fault(kind=FaultKind.UNAVAILABLE, detail="It was lost.")
        transport.channels[0].complete(Broken(pull=pull(0), fault=lost))
        assert await numbers(opened) == [("Broken", 0)]
        opened.post([pull(1)])
        await opened.completions(0.01)
        first, second = transport.channels
        assert first.is_closed
        assert [p.number for p in second.posted] == [1]


async def test_what_a_peer_lacks_says_nothing_about_its_connection():
    transport = FakeTransport()
    async with links(transport) as opened:
        opened.post([pull(0)])
        await opened.completions(0.01)
        lacks = Fault(kind=FaultKind.NOT_FOUND, detail="It is not here.")
        transport.channels[0].complete(Broken(pull=pull(0), fault=lacks))
        await opened.completions(5.0)
        opened.post([pull(1)])
        assert [p.number for p in transport.channels[0].posted] == [0, 1]
