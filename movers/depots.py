"""The store that all nodes share, as seen by one node: what it has stored there, and how an
artifact that no node has any more comes back from it.
"""

from __future__ import annotations

import asyncio

from tensorcast.log.follower import Follower
from tensorcast.movers.core.holdings import is_stored
from tensorcast.movers.damage import explain_damage
from tensorcast.movers.locks import Locks
from tensorcast.movers.pulls import Moved
from tensorcast.movers.replicas import in_store, lose
from tensorcast.movers.reports import Life, Reporter
from tensorcast.movers.residents import Resident, Residents
from tensorcast.movers.threads import in_thread
from tensorcast.movers.tiers.base import Depot
from tensorcast.schema.aggregates.artifact import Artifact
from tensorcast.schema.aggregates.replica import ReplicaStatus
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.commands import Command, CompleteReplica, CorruptReplica
from tensorcast.schema.errors import Corrupt, InvalidArgument, NotFound
from tensorcast.schema.ids import ArtifactId, EventId, Tier
from tensorcast.schema.tensors import Manifest

OBJECT = "object"
"""What `op show` calls the way."""


class Depots:
    """`store` None: the node has no access to one."""

    def __init__(
        self,
        store: Depot | None,
        residents: Residents,
        reporter: Reporter,
        follower: Follower,
        life: Life,
    ) -> None:
        self._store = store
        self._residents = residents
        self._reporter = reporter
        self._follower = follower
        self._life = life
        self._locks = Locks()

    @property
    def has_store(self) -> bool:
        """Whether the node has access to one."""
        return self._store is not None

    async def persist(self, resident: Resident, cause: EventId | None) -> Moved:
        """Stores a resident. Costs nothing when another node stored it before; what is damaged
        there is written anew. Raises as the store, and InvalidArgument without one."""
        store, artifact, manifest = self._open(), resident.id, resident.manifest
        async with self._locks.alone(artifact):
            known = self._follower.view.replicas.get(in_store(artifact, self._life))
            if known is not None and known.status is ReplicaStatus.FILLING:  # it lacks chunks
                await in_thread(store.remove, artifact)
            with self._residents.borrow(resident):
                await in_thread(_persist, store, resident)
        stored = CompleteReplica(
            replica=in_store(artifact, self._life),
            artifact=artifact,
            node=self._life.node,
            tier=Tier.OBJECT,
            epoch=self._life.epoch,
            chunks_total=manifest.chunks_total,
        )
        await self._reporter.report([stored], cause)
        return Moved(manifest.size_bytes, {OBJECT: manifest.size_bytes})

    def check(self, artifact: Artifact) -> None:
        """Raises NotFound when nobody has stored the artifact, InvalidArgument without a store."""
        self._open()
        if not is_stored(self._follower.view, artifact.id):
            raise NotFound(f"Artifact {artifact.id} is not in the store.", artifact=artifact.id)

    async def read(self, resident: Resident, cause: EventId | None) -> Moved:
        """Reads what a resident lacks; its chunks are served to peers as they come. Raises Corrupt
        when the store has other bytes, and as the store."""
        store, manifest = self._open(), resident.manifest
        loop = asyncio.get_running_loop()
        missing = resident.missing

        def arrived(chunks: ChunkSet) -> None:
            loop.call_soon_threadsafe(self._residents.add_chunks, resident, chunks)

        def load() -> ChunkSet:
            with resident.segment.memory[: manifest.size_bytes] as memory:
                return store.load(resident.id, manifest, memory, missing=missing, arrived=arrived)

        try:
            good = await in_thread(load)
        except (Corrupt, NotFound) as error:
            if error.artifact is None:  # the bucket is missing, or somebody writes to it now
                raise
            await self._report(resident.id, manifest, missing, str(error), cause)
            raise Corrupt(str(error), artifact=resident.id, node=self._life.node) from error
        self._residents.add_chunks(resident, good)
        damaged = missing - good
        if damaged.ranges:
            detail = explain_damage(damaged, manifest, "the store", self._life.node)
            await self._report(resident.id, manifest, damaged, detail, cause)
            raise Corrupt(detail, artifact=resident.id, node=self._life.node)
        read_bytes = min(len(good) * manifest.chunk_bytes, manifest.size_bytes)
        return Moved(read_bytes, {OBJECT: read_bytes})

    async def verify(self, artifact: ArtifactId, manifest: Manifest, cause: EventId | None) -> None:
        """Compares what is stored with its digests. Raises Corrupt, and reports it."""
        store = self._open()
        try:
            damaged = await in_thread(store.verify, artifact, manifest)
        except (Corrupt, NotFound) as error:
            if error.artifact is None:  # the bucket is missing, or somebody writes to it now
                raise
            everything = ChunkSet.full(manifest.chunks_total)
            await self._report(artifact, manifest, everything, str(error), cause)
            raise Corrupt(str(error), artifact=artifact, node=self._life.node) from error
        if damaged.ranges:
            detail = explain_damage(damaged, manifest, "the store", self._life.node)
            await self._report(artifact, manifest, damaged, detail, cause)
            raise Corrupt(detail, artifact=artifact, node=self._life.node)

    async def remove(self, artifact: ArtifactId, *, is_shared: bool) -> None:
        """Removes what is stored, unless other nodes' replicas are the same bytes (`is_shared`).
        Safe to repeat."""
        if self._store is not None and not is_shared:
            async with self._locks.alone(artifact):
                await in_thread(self._store.remove, artifact)

    def _open(self) -> Depot:
        if self._store is None:
            raise InvalidArgument(
                f"Node {self._life.node} has no access to a store.",
                hint="Set TENSORCAST_OBJECT_URL for its mover.",
                node=self._life.node,
            )
        return self._store

    async def _report(
        self,
        artifact: ArtifactId,
        manifest: Manifest,
        damaged: ChunkSet,
        detail: str,
        cause: EventId | None,
    ) -> None:
        """Says that this node's replica there lacks chunks, if it has one."""
        replica = in_store(artifact, self._life)
        if replica not in self._follower.view.replicas:
            return
        report: Command
        if damaged.ranges and manifest.chunks_total:
            report = CorruptReplica(
                replica=replica, epoch=self._life.epoch, chunks=damaged, detail=detail
            )
        else:
            report = lose(replica, detail, self._life)
        await self._reporter.report([report], cause)


def _persist(store: Depot, resident: Resident) -> None:
    with resident.segment.memory[: resident.manifest.size_bytes] as memory:
        store.persist(resident.id, resident.manifest, memory)
