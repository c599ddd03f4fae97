"""Excerpts of artifacts, for readers on this node that need no more of them: only the chunks that
they ask for come, into a segment that all of them share.

An excerpt is no replica. The log does not hear of it, no peer is served from it, and nothing
completes or evicts it: its memory is free again as soon as its last reader has gone. The memory is
counted as that of the whole artifact.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from tensorcast.log.identity import new_event_id
from tensorcast.movers.locks import Locks
from tensorcast.movers.memory.handover import Lifelines
from tensorcast.movers.memory.memfd import Segment
from tensorcast.movers.memory.pool import Pool
from tensorcast.movers.pulls import Puller
from tensorcast.movers.residents import Phase
from tensorcast.movers.room import Room
from tensorcast.schema.aggregates.artifact import Artifact
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.ids import ArtifactId, ReplicaId


class Excerpt:
    """Some chunks of an artifact. `wanted` are those that somebody asked for, `chunks` those that
    are there and match."""

    base_bytes = 0
    tells = False
    is_served = False
    is_dropped = False
    phase = Phase.FILLING
    replica = ReplicaId("")

    def __init__(self, artifact: Artifact, segment: Segment) -> None:
        self.id = artifact.id
        self.kind = artifact.kind
        self.labels = artifact.labels
        self.manifest = artifact.manifest
        self.segment = segment
        self.used_at = 0.0
        self.wanted = ChunkSet()
        self.chunks = ChunkSet()

    @property
    def memory(self) -> memoryview:
        return self.segment.memory

    @property
    def missing(self) -> ChunkSet:
        return self.wanted - self.chunks

    def add(self, chunks: ChunkSet) -> None:
        """These chunks have come."""
        self.chunks = self.chunks | chunks


class Excerpts:
    """The excerpts of a node, by artifact. `drop_idle`: what `Room.find` calls for memory."""

    def __init__(
        self,
        room: Room,
        pool: Pool,
        lifelines: Lifelines,
        puller: Puller,
        drop_idle: Callable[[], Awaitable[None]],
    ) -> None:
        self._room = room
        self._pool = pool
        self._lifelines = lifelines
        self._puller = puller
        self._drop_idle = drop_idle
        self._locks = Locks()
        self._excerpts: dict[ArtifactId, Excerpt] = {}

    def has(self, artifact: ArtifactId) -> bool:
        """Whether somebody on this node reads an excerpt of it."""
        return artifact in self._excerpts

    async def bring(self, artifact: Artifact, wanted: ChunkSet) -> Excerpt:
        """The excerpt, with these chunks in it. Who calls it grants it to a reader before anything
        else happens, or it may go. Raises what `Puller.pull` and `Room.find` raise."""
        async with self._locks.alone(artifact.id):
            excerpt = self._excerpts.get(artifact.id) or await self._make(artifact)
            full = ChunkSet.full(artifact.manifest.chunks_total)
            excerpt.wanted = excerpt.chunks | (full & wanted)
            try:
                if excerpt.missing.ranges:
                    await self._puller.pull(excerpt, (), new_event_id())
            except BaseException:
                self._drop_deserted(excerpt)
                raise
            return excerpt

    async def _make(self, artifact: Artifact) -> Excerpt:
        self._puller.check_sources(artifact)
        lent = await self._room.find(artifact.manifest.size_bytes, self._drop_idle)
        excerpt = Excerpt(artifact, lent.segment)
        self._excerpts[artifact.id] = excerpt
        return excerpt

    def forget(self, deserted: Iterable[str]) -> None:
        """These segments have no readers any more (`Lifelines.reap`)."""
        names = set(deserted)
        for excerpt in list(self._excerpts.values()):
            if excerpt.segment.name in names and not self._locks.wanted(excerpt.id):
                self._drop_deserted(excerpt)

    def _drop_deserted(self, excerpt: Excerpt) -> None:
        is_known = self._excerpts.get(excerpt.id) is excerpt
        if not is_known or self._lifelines.readers(excerpt.segment.name):
            return
        del self._excerpts[excerpt.id]
        excerpt.is_dropped = True
        self._pool.release(excerpt.segment)
