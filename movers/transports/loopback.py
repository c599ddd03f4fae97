"""A transport without a network: pulls between the movers of one process.

Published for tests and simulation. It keeps the contract of `base.py`, checks digests like the
others, and breaks on demand: `hub.cut` loses a peer, `hub.damage` flips a bit in a chunk.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Sequence

from tensorcast.movers.core.digests import chunk_digest
from tensorcast.movers.core.transfer import Broken, Completed, Completion, Progressed, Pull
from tensorcast.movers.transports.base import (
    Capabilities,
    Lending,
    MemoryKind,
    NotYet,
    Provider,
    Region,
    TakesAnyMemory,
)
from tensorcast.schema.chunks import ByteRange, ChunkSet
from tensorcast.schema.errors import NotFound, Unavailable
from tensorcast.schema.faults import Fault, FaultKind
from tensorcast.schema.ids import ArtifactId, NodeId

_POLL_S = 0.002


class LoopbackHub:
    """The network of the fake: who is there, and what is broken."""

    def __init__(self) -> None:
        self.providers: dict[NodeId, Provider] = {}
        self.damaged: set[tuple[NodeId, int]] = set()

    def join(self, node: NodeId, provider: Provider) -> None:
        """Makes a node reachable."""
        self.providers[node] = provider

    def cut(self, node: NodeId) -> None:
        """Loses a node: its channels break with their next pull."""
        self.providers.pop(node, None)

    def damage(self, node: NodeId, chunk: int) -> None:
        """Lets a node send a chunk with a wrong bit from now on."""
        self.damaged.add((node, chunk))


class LoopbackChannel:
    """Satisfies `base.Channel`; pulls are done one at a time, in order, when they are awaited."""

    def __init__(self, hub: LoopbackHub, peer: NodeId) -> None:
        self._hub = hub
        self._peer = peer
        self._posted: deque[tuple[Pull, Region, float]] = deque()
        self._changed = asyncio.Event()
        self._arrived_at = 0.0
        self._done: list[int] = []  # chunks of the first pull that have been told of
        self.is_closed = False

    def post(self, pulls: Sequence[Pull], target: Region) -> None:
        """Queues pulls."""
        if not self.is_closed:
            now = asyncio.get_running_loop().time()
            self._posted.extend((pull, target, now) for pull in pulls)
            self._changed.set()

    async def completions(self) -> Sequence[Completion]:
        """Waits for a pull, does it, and returns its end; () once the channel is closed. A pull
        that waits in the middle returns its progress first."""
        while not self._posted:
            if self.is_closed:
                return ()
            self._changed.clear()
            await self._changed.wait()
        told = await self._do(*self._posted[0])
        if self._posted and not isinstance(told, Progressed):
            self._posted.popleft()
        return (told,) if told is not None else ()

    async def aclose(self) -> None:
        """Drops what is queued. Safe to repeat."""
        self.is_closed = True
        self._posted.clear()
        self._changed.set()

    async def _do(self, pull: Pull, target: Region, since: float) -> Completion | None:
        """None when the channel was closed meanwhile: then nothing is written."""
        provider = self._hub.providers.get(self._peer)
        if provider is None:
            return self._broken(pull, FaultKind.UNAVAILABLE, f"Node {self._peer} was lost.")
        try:
            with provider.lend(pull.artifact) as lending:
                chunk = pull.first + len(self._done)
                await self._wait_for(lending, chunk, self._patience_s(pull, since))
                return None if self.is_closed else self._copy(lending, pull, target.memory)
        except NotFound as error:
            return self._broken(pull, FaultKind.NOT_FOUND, error.message)
        except NotYet as error:
            await asyncio.sleep(pull.wait_s)
            return self._broken(pull, FaultKind.NOT_FOUND, error.message, holds=ChunkSet())

    def _patience_s(self, pull: Pull, since: float) -> float:
        """The time in which a pull has waited for its turn counts, unless something arrived."""
        now = asyncio.get_running_loop().time()
        return max(0.0, pull.wait_s - (now - max(since, self._arrived_at)))

    async def _wait_for(self, lending: Lending, chunk: int, wait_s: float) -> None:
        """Holds a pull back until its next chunk has come, as a server does."""
        tries = int(wait_s / _POLL_S)
        while tries > 0 and not self.is_closed and chunk not in lending.chunks():
            tries -= 1
            await asyncio.sleep(_POLL_S)

    def _copy(self, lending: Lending, pull: Pull, memory: memoryview) -> Completion:
        """Copies what is there: to the end of the pull, or to the next chunk that it waits for."""
        chunks = lending.chunks()
        total = -(-lending.layout.size_bytes // lending.chunk_bytes)
        holds = chunks if len(chunks) < total else None
        fresh: list[int] = []
        for chunk in range(pull.first + len(self._done), pull.stop):
            if chunk not in chunks and pull.wait_s and fresh:
                return Progressed(pull=pull, arrived=ChunkSet.of(fresh), holds=holds)
            if chunk not in chunks:
                detail = f"Node {self._peer} does not have chunk {chunk}."
                return self._broken(pull, FaultKind.NOT_FOUND, detail, fresh, holds)
            if not self._copy_chunk(lending, pull, chunk, memory):
                detail = f"Node {self._peer} sent chunk {chunk} damaged."
                return self._broken(pull, FaultKind.CORRUPT, detail, fresh, holds)
            fresh.append(chunk)
            self._arrived_at = asyncio.get_running_loop().time()
            self._done.append(chunk)
        self._done.clear()
        return Completed(pull=pull, holds=holds)

    def _copy_chunk(self, lending: Lending, pull: Pull, chunk: int, memory: memoryview) -> bool:
        """Copies one chunk; whether it matches its digest."""
        skipped = (chunk - pull.first) * pull.chunk_bytes
        size = min(pull.chunk_bytes, pull.source_range.size - skipped)
        at = pull.target_range.offset + skipped
        target = memory[at : at + size]
        _read(lending, ByteRange(pull.source_range.offset + skipped, size), target)
        if (self._peer, chunk) in self._hub.damaged:
            target[size // 2] ^= 1
        return chunk_digest(target) == pull.digest(chunk)

    def _broken(
        self,
        pull: Pull,
        kind: FaultKind,
        detail: str,
        arrived: Sequence[int] = (),
        holds: ChunkSet | None = None,
    ) -> Broken:
        self._done.clear()
        fault = Fault(kind=kind, detail=detail)
        return Broken(pull=pull, fault=fault, arrived=ChunkSet.of(arrived), holds=holds)


def _read(lending: Lending, wanted: ByteRange, target: memoryview) -> None:
    at = 0
    for piece in lending.layout.locate(wanted):
        part = target[at : at + piece.size]
        if piece.position is None:
            part[:] = bytes(piece.size)
        else:
            os.preadv(lending.fd, [part], piece.position)
        at += piece.size


class LoopbackTransport(TakesAnyMemory):
    """Satisfies `base.Transport`; addresses are ignored."""

    name = "loopback"
    capabilities = Capabilities(
        sources=frozenset({MemoryKind.DRAM, MemoryKind.FILE}),
        targets=frozenset({MemoryKind.DRAM}),
        crosses_nodes=False,
        pulls_in_flight_max=4,
    )

    def __init__(self, hub: LoopbackHub) -> None:
        self._hub = hub
        self._channels: list[LoopbackChannel] = []

    async def connect(
        self, peer: NodeId, address: str = "", artifact: ArtifactId | None = None
    ) -> LoopbackChannel:
        """Raises Unavailable when the peer is not there."""
        if peer not in self._hub.providers:
            raise Unavailable(f"Node {peer} cannot be reached.", node=peer)
        channel = LoopbackChannel(self._hub, peer)
        self._channels = [c for c in self._channels if not c.is_closed]
        self._channels.append(channel)
        return channel

    async def aclose(self) -> None:
        """Closes its channels. Safe to repeat."""
        channels, self._channels = self._channels, []
        for channel in channels:
            await channel.aclose()
