"""What a transport promises, and what a mover lends to its peers.

The receiver pulls. A channel is a link to one peer: `post` never blocks, completions come in any
order, each pull's exactly once; before that, any number of times, what has come of it so far. Every
chunk is checked against its digest before it counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from typing import Protocol, runtime_checkable

import msgspec

from tensorcast.movers.core.layout import Layout
from tensorcast.movers.core.transfer import Completion, Pull
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.ids import ArtifactId, NodeId
from tensorcast.schema.tickets import Challenge, Refusal, Ticket, TicketRefused


class MemoryKind(StrEnum):
    DRAM = "dram"
    VRAM = "vram"
    FILE = "file"


class DeviceMemory(Protocol):
    """Memory of a GPU. Only adapters reach it; `read` copies bytes out of it, which takes a
    while."""

    address: int
    nbytes: int

    def open_dmabuf(self) -> int:
        """A descriptor of all of it for an adapter; the caller closes it. Raises Unavailable."""
        ...

    def read(self, start: int, stop: int) -> memoryview: ...


Memory = memoryview | DeviceMemory


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Between which kinds of memory a transport moves bytes; how many pulls keep one channel
    busy."""

    sources: frozenset[MemoryKind]
    targets: frozenset[MemoryKind]
    crosses_nodes: bool
    pulls_in_flight_max: int


Share = Callable[[ChunkSet], None]
"""Told of chunks as soon as they are there and match, in the thread that received them: quick."""


class Region(Protocol):
    """Registered memory: usable by its transport until closed. `memory` is writable bytes; `share`
    is for those who may serve what is there before its pull has completed."""

    @property
    def memory(self) -> memoryview: ...

    @property
    def share(self) -> Share | None: ...

    def close(self) -> None:
        """Ends the use of the memory. Channels that write into it must be closed before."""
        ...


class Channel(Protocol):
    """A link to one peer. A lost peer is no exception: its pulls complete as Broken."""

    def post(self, pulls: Sequence[Pull], target: Region) -> None:
        """Starts pulls into `target` (its byte 0 is the start of the byte space). Never blocks."""
        ...

    async def completions(self) -> Sequence[Completion]:
        """Waits for at least one completion or progress; returns all that there is."""
        ...

    async def aclose(self) -> None:
        """Gives up what is in flight. When it returns, nothing writes into a target any more.
        Safe to repeat."""
        ...


class Transport(Protocol):
    """One way to move bytes from other movers to this one."""

    name: str
    capabilities: Capabilities

    def register(
        self,
        memory: memoryview,
        kind: MemoryKind = MemoryKind.DRAM,
        *,
        share: Share | None = None,
    ) -> Region:
        """Memory that pulls may fill. A transport may call `share` from any thread, for chunks that
        it goes on to tell of in completions; or leave it."""
        ...

    async def connect(
        self, peer: NodeId, address: str, artifact: ArtifactId | None = None
    ) -> Channel:
        """A channel to the mover of `peer` at `address`, for pulls of `artifact` alone where the
        peer asks for tickets. Raises Unavailable, or PermissionDenied when the peer refuses."""
        ...

    async def aclose(self) -> None:
        """Closes the channels that are still open. Safe to repeat."""
        ...


@runtime_checkable
class ReachesDevices(Protocol):
    """A transport that can fill the memory of GPUs too."""

    def register_device(self, memory: DeviceMemory, *, share: Share | None = None) -> Region:
        """As `Transport.register`."""
        ...


@runtime_checkable
class NeedsDevices(Protocol):
    """A transport that is of use while it has devices; they may come later."""

    @property
    def devices(self) -> Sequence[object]: ...


def is_able(transport: Transport) -> bool:
    """Whether a transport can be used now."""
    return not isinstance(transport, NeedsDevices) or bool(transport.devices)


def register(transport: Transport, memory: Memory, share: Share | None = None) -> Region:
    """Memory of whatever kind, as the transport knows it. Raises Unavailable for that of a GPU when
    the transport does not reach it."""
    if isinstance(memory, memoryview):
        return transport.register(memory, share=share)
    if not isinstance(transport, ReachesDevices):
        raise Unavailable(f"Transport {transport.name} does not reach the memory of GPUs.")
    return transport.register_device(memory, share=share)


class Bell:
    """Wakes the threads that wait for something to change, at once and without polling."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._hearers: list[Callable[[], None]] = []

    def ring(self) -> None:
        """What the others wait for may be so now. Never blocks for long."""
        with self._changed:
            self._changed.notify_all()
            for hear in self._hearers:
                hear()

    @contextmanager
    def heard_by(self, hear: Callable[[], None]) -> Iterator[None]:
        """While the context lasts, `hear` is called with every ring, in the thread that rings: it
        must be quick, and raise nothing."""
        with self._changed:
            self._hearers.append(hear)
        try:
            yield
        finally:
            with self._changed:
                self._hearers.remove(hear)

    def wait_for(self, predicate: Callable[[], bool], timeout_s: float) -> bool:
        """Returns when the predicate, asked after every ring, is true, or (False) too late."""
        with self._changed:
            return self._changed.wait_for(predicate, timeout_s)


class Lending(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact that a peer may read: a descriptor, where the byte space lies behind it, and
    the chunks that may be served now. `bell` rings when there are more; None: none will come.
    `memory`: the whole byte space from its beginning on, and maybe more, where it is mapped, or in
    a device: then there is no descriptor (-1)."""

    fd: int
    layout: Layout
    chunk_bytes: int
    chunks: Callable[[], ChunkSet]
    bell: Bell | None = None
    memory: Memory | None = None

    def wait_for(self, chunk: int, timeout_s: float) -> bool:
        """Waits until a chunk may be served; whether it may. Returns at once when nothing will
        come. For threads."""
        if self.bell is None:
            return chunk in self.chunks()
        return self.bell.wait_for(lambda: chunk in self.chunks(), timeout_s)


class NotYet(Unavailable):
    """The artifact is not here yet, but on its way: ask again soon."""


class Provider(Protocol):
    """What the mover has to offer. Called from the threads of servers: must be thread-safe and
    quick."""

    def lend(self, artifact: ArtifactId) -> AbstractContextManager[Lending]:
        """The artifact's replica, which stays as it is while the context lasts. Entering raises
        NotFound when there is none, NotYet when it will be there soon."""
        ...


SignTicket = Callable[[NodeId, str, Challenge], bytes]
"""The ticket for what is wanted (an artifact's id, or `tickets.BLOCKS`) of a source that sent this
challenge. Safe in any thread."""


def signer_for(
    sign: SignTicket | None, peer: NodeId, artifact: ArtifactId | None
) -> Callable[[Challenge], bytes] | None:
    """Signs tickets for an artifact of a peer; None where there is nothing to sign with, or for."""
    if sign is None or artifact is None:
        return None
    return lambda challenge: sign(peer, artifact, challenge)


class Door(Protocol):
    """Who is let in at a server. Called from its threads; `admit` may block for seconds. What is
    refused is noted; `host` is where it came from."""

    def challenge(self, caller: NodeId | None) -> Challenge | None:
        """What a caller that calls itself so must sign; None when it needs no ticket."""
        ...

    def admit(self, shown: bytes, challenge: Challenge, host: str) -> Ticket:
        """The ticket that was shown, which is good. Raises TicketRefused."""
        ...

    def refuse(self, refusal: Refusal, caller: str, host: str) -> TicketRefused:
        """The error for a caller that has none, or asks for what its ticket is not for."""
        ...


class MemoryRegion:
    """Ordinary memory, which needs no registration."""

    def __init__(self, memory: memoryview, share: Share | None = None) -> None:
        self._memory = memory.cast("B") if memory.format != "B" else memory[:]
        self.share = share

    @property
    def memory(self) -> memoryview:
        return self._memory

    def close(self) -> None:
        """Releases the view. Safe to repeat."""
        self._memory.release()


class TakesAnyMemory:
    """The `register` of transports that ordinary memory needs no preparation for."""

    def register(
        self,
        memory: memoryview,
        kind: MemoryKind = MemoryKind.DRAM,
        *,
        share: Share | None = None,
    ) -> Region:
        """Close the region before the memory goes."""
        return MemoryRegion(memory, share)
