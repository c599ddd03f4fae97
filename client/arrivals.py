"""Reading an artifact while it still arrives on this node.

The mapping is that of every `get`, and so are its guarantees; only, bytes of chunks that have not
come are undefined. Chunks that have come are checked, and stay as they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tensorcast.client.memory import Mapping, map_segment
from tensorcast.client.naming import What, check_timeout, name_of
from tensorcast.schema.chunks import ByteRange, ChunkSet
from tensorcast.schema.errors import Timeout, Unavailable
from tensorcast.schema.ids import ArtifactId
from tensorcast.schema.socket import Arrived, Follow, Get, Granted
from tensorcast.schema.tensors import Index
from tensorcast.storage.memory import populate_from_file

if TYPE_CHECKING:
    from tensorcast.client.session import AsyncClient

PREFAULT_BYTES = 32 << 20
FOLLOW_S = 5.0
"""One request waits so long for news."""


class AsyncArrival:
    """An artifact that is here, or on its way: its index, its mapped bytes, and which of them may
    be read. Give it to `wait` to hear of more."""

    def __init__(self, client: AsyncClient, granted: Granted, memory: Mapping | None) -> None:
        self._client = client
        self._granted = granted
        self.memory = memory
        self.is_excerpt = granted.is_excerpt
        """Whether no more comes than what `bring` asks for."""
        manifest = granted.manifest
        self.chunks = (
            ChunkSet.full(manifest.chunks_total) if granted.chunks is None else granted.chunks
        )

    @property
    def artifact(self) -> ArtifactId:
        return self._granted.artifact

    @property
    def index(self) -> Index:
        return self._granted.manifest.index

    @property
    def size_bytes(self) -> int:
        return self._granted.manifest.size_bytes

    @property
    def here_bytes(self) -> int:
        """How many bytes are there, in whole chunks."""
        return min(len(self.chunks) * self._granted.manifest.chunk_bytes, self.size_bytes)

    @property
    def is_whole(self) -> bool:
        """Whether all bytes are there."""
        return len(self.chunks) == self._granted.manifest.chunks_total

    def has(self, place: ByteRange) -> bool:
        """Whether these bytes of the byte space may be read."""
        return is_covered(place, self.chunks, self._granted.manifest.chunk_bytes)

    def prefault(self) -> None:
        """Maps the pages of an artifact that is whole, so that who reads all of it does not wait
        for each. For a thread beside: it takes a tenth of a second for a GiB, and no memory but for
        the page tables."""
        memory = memoryview(self.memory) if self.memory is not None and self.is_whole else b""
        for start in range(0, len(memory), PREFAULT_BYTES):
            if not populate_from_file(memoryview(memory)[start : start + PREFAULT_BYTES]):
                return

    async def bring(self, places: Iterable[ByteRange], *, timeout: float = 300.0) -> None:
        """Returns when these bytes are there: of an excerpt no others come. Raises
        Timeout, and Unavailable when they will not come: `get` it all then."""
        check_timeout(timeout)
        chunk_bytes = self._granted.manifest.chunk_bytes
        wanted = cover(places, chunk_bytes) - self.chunks
        if not self.is_excerpt:
            while (wanted - self.chunks).ranges:
                await self.wait(timeout=timeout)
        if not (wanted - self.chunks).ranges:
            return
        request = Get(what=self.artifact, timeout_s=timeout, partial=True, chunks=wanted)
        granted, descriptors = await self._client.mover.ask(request, Granted, timeout=timeout)
        for descriptor in descriptors:  # of what is mapped already
            os.close(descriptor)
        if granted.segment != self._granted.segment or granted.chunks is None:
            raise Unavailable(
                f"The excerpt of {self.artifact} that was read is gone.",
                hint="Ask for the artifact again.",
                artifact=self.artifact,
            )
        self.chunks = granted.chunks

    async def wait(self, *, timeout: float = 300.0) -> None:
        """Returns when more has come, at once when all is there. Raises Timeout, and Unavailable
        when nothing more will come: `get` it then."""
        check_timeout(timeout)
        left_s = timeout
        while not self.is_whole:
            request = Follow(
                artifact=self.artifact,
                segment=self._granted.segment,
                have=len(self.chunks),
                timeout_s=min(FOLLOW_S, left_s),
            )
            answer, _ = await self._client.mover.ask(request, Arrived)
            if len(answer.chunks) > len(self.chunks):
                self.chunks = answer.chunks
                return
            left_s -= FOLLOW_S
            if left_s <= 0:
                raise Timeout(
                    f"Nothing of {self.artifact} came in {timeout:g} s.",
                    hint="`tcctl op ls` shows how far it is.",
                    artifact=self.artifact,
                )


async def follow(
    client: AsyncClient, what: What, timeout: float, *, excerpt: bool = False
) -> AsyncArrival:
    """As `AsyncClient.follow`."""
    check_timeout(timeout)
    await client.position.settled()
    request = Get(
        what=name_of(what),
        after=client.position.seq,
        timeout_s=timeout,
        partial=True,
        chunks=ChunkSet() if excerpt else None,
    )
    granted, descriptors = await client.mover.ask(request, Granted, timeout=timeout)
    return AsyncArrival(client, granted, map_segment(descriptors, granted.manifest.size_bytes))


def cover(places: Iterable[ByteRange], chunk_bytes: int) -> ChunkSet:
    """The chunks in which these bytes lie. Pure."""
    return ChunkSet.merge(
        (place.offset // chunk_bytes, (place.end - 1) // chunk_bytes + 1)
        for place in places
        if place.size
    )


def is_covered(place: ByteRange, chunks: ChunkSet, chunk_bytes: int) -> bool:
    """Whether all bytes of `place` lie in these chunks."""
    if not place.size:
        return True
    first, last = place.offset // chunk_bytes, (place.end - 1) // chunk_bytes
    return any(start <= first and last < stop for start, stop in chunks.ranges)
