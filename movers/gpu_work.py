"""Bringing artifacts into the memory of this node's GPUs, and out of it.

The best way first: adapters of RDMA fill the device's memory by themselves (GPUDirect), and each
chunk is read back to be checked. Where they do not reach it, the artifact comes into the node's
DRAM as ever, and each chunk goes on to the device, through pinned buffers, as soon as it is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from tensorcast.log.follower import Follower
from tensorcast.movers.core.digests import chunk_digest
from tensorcast.movers.core.holdings import is_claimed
from tensorcast.movers.gpu_room import GpuResident, GpuRoom
from tensorcast.movers.locks import Locks
from tensorcast.movers.pulls import Moved, Puller, counting_on, moved_before
from tensorcast.movers.reports import Life, Reporter
from tensorcast.movers.residents import Phase, Resident, Residents
from tensorcast.movers.threads import in_thread
from tensorcast.schema.aggregates.artifact import Artifact, ArtifactStatus
from tensorcast.schema.chunks import ChunkSet, chunk_range
from tensorcast.schema.commands import (
    Command,
    CompleteReplica,
    CorruptReplica,
    DropReplica,
    EvictReplica,
    StartReplica,
)
from tensorcast.schema.errors import (
    Corrupt,
    NotFound,
    OutOfCapacity,
    PermissionDenied,
    Unavailable,
)
from tensorcast.schema.ids import ArtifactId, EventId, NodeId, ReplicaId, Tier

LOOK_S: Final = 0.01
"""So often chunks that came into DRAM are looked for."""

STEP_CHUNKS: Final = 16
"""So many chunks at most go to the device between two looks."""

Bring = Callable[[ArtifactId, Sequence[NodeId], EventId | None], Awaitable[Moved]]
"""Brings an artifact into the node's DRAM, from wherever it is."""

_logger = logging.getLogger(__name__)


class GpuWork:
    """What can be done with replicas of the tier GPU. `direct` pulls over adapters only; None where
    there are none."""

    def __init__(
        self,
        room: GpuRoom,
        residents: Residents,
        bring: Bring,
        direct: Puller | None,
        reporter: Reporter,
        follower: Follower,
        life: Life,
    ) -> None:
        self._room = room
        self._residents = residents
        self._bring = bring
        self._direct = direct
        self._reporter = reporter
        self._follower = follower
        self._life = life
        self._locks = Locks()

    async def materialize(
        self, artifact: ArtifactId, sources: Sequence[NodeId], cause: EventId | None
    ) -> Moved:
        """Fills a device with an artifact. Raises OutOfCapacity, NotFound, and as a pull."""
        async with self._locks.alone(artifact):
            if self._room.find_ready(artifact) is not None:
                return Moved()
            found = self._sealed(artifact)
            resident = await self._room.add(found)
            try:
                await self._reporter.report([self._start(resident)], cause)
                with self._room.borrow(resident):
                    moved = await self._fill(resident, sources, cause)
                await self._reporter.report([self._complete(resident)], cause)
            except BaseException:
                self._room.drop(resident)
                dropped = DropReplica(replica=resident.replica, epoch=self._life.epoch)
                await self._reporter.report([dropped], cause)
                raise
            resident.is_ready = True
            return moved

    async def _fill(
        self, resident: GpuResident, sources: Sequence[NodeId], cause: EventId | None
    ) -> Moved:
        is_here = self._residents.find(resident.id) or self._residents.is_on_disk(resident.id)
        moved = Moved()
        if self._direct is not None and self._direct.is_able and not is_here:
            try:
                return await self._direct.pull(resident, sources, cause)
            except (Unavailable, OutOfCapacity, NotFound) as error:
                _logger.info("through memory of the host: %s", error)
                moved = moved_before(error)
        with counting_on(moved):
            return moved.plus(await self._fill_through_dram(resident, sources, cause))

    async def _fill_through_dram(
        self, resident: GpuResident, sources: Sequence[NodeId], cause: EventId | None
    ) -> Moved:
        """Each chunk goes on as soon as it is in DRAM, while others still come."""
        moved, before = Moved(), resident.chunks
        if self._residents.find_ready(resident.id) is None:
            bringing = asyncio.ensure_future(self._bring(resident.id, sources, cause))
            try:
                while not bringing.done():
                    if not await self._forward(resident):
                        await asyncio.wait([bringing], timeout=LOOK_S)
                moved = bringing.result()
            finally:
                bringing.cancel()
        while resident.missing.ranges:
            if not await self._forward(resident):
                raise Unavailable(
                    f"Artifact {resident.id} left the memory of node {self._life.node} before it "
                    "was on the GPU.",
                    hint="Try again; more memory would help (TENSORCAST_DRAM_BYTES).",
                    artifact=resident.id,
                )
        copied = count_bytes(resident.chunks - before, resident)
        return moved.plus(Moved(0, {"cuda": copied}))

    async def _forward(self, resident: GpuResident) -> bool:
        """Copies some of what DRAM has and the device has not; False: there is nothing."""
        source = self._residents.find(resident.id)
        if source is None or source.phase is Phase.CHECKING:
            return False
        news = first_chunks(source.chunks - resident.chunks, STEP_CHUNKS)
        if not news.ranges:
            return False
        with self._residents.borrow(source):
            await in_thread(copy_chunks, source, resident, news)
        resident.add(news)
        return True

    # ---- out -------------------------------------------------------------------------------

    async def read(self, target: Resident, cause: EventId | None) -> Moved:
        """Fills a replica in DRAM from the device (a fetch of `Fills`). Raises NotFound, Corrupt
        for chunks that do not match."""
        resident = self._ready(target.id)
        with self._room.borrow(resident):
            good = await in_thread(take_chunks, resident, target)
        self._residents.add_chunks(target, good)
        if target.missing.ranges:
            raise await self._tell_damage(resident, target.missing, cause)
        size_bytes = resident.manifest.size_bytes
        return Moved(size_bytes, {"cuda": size_bytes})

    def check_ready(self, artifact: Artifact) -> None:
        """Raises NotFound when no device has all of it."""
        self._ready(artifact.id)

    async def verify(self, artifact: ArtifactId, cause: EventId | None) -> None:
        """Compares the replica with its digests; a damaged one is dropped. Raises Corrupt."""
        resident = self._ready(artifact)
        with self._room.borrow(resident):
            good = await in_thread(good_chunks, resident)
        damaged = ChunkSet.full(resident.manifest.chunks_total) - good
        if damaged.ranges:
            raise await self._tell_damage(resident, damaged, cause)

    async def _tell_damage(
        self, resident: GpuResident, damaged: ChunkSet, cause: EventId | None
    ) -> Corrupt:
        detail = f"{len(damaged)} chunks on a GPU of node {self._life.node} are damaged."
        self._room.drop(resident)
        report = CorruptReplica(
            replica=resident.replica, epoch=self._life.epoch, chunks=damaged, detail=detail
        )
        await self._reporter.report([report], cause)
        return Corrupt(detail, artifact=resident.id, node=self._life.node)

    async def evict(
        self,
        artifact: ArtifactId,
        reason: str,
        cause: EventId | None,
        settle: Callable[[ReplicaId], Awaitable[None]],
    ) -> bool:
        """Drops the replica, once the log knows (`settle`); False when there is none. Its memory
        goes with its last reader. Raises PermissionDenied, Unavailable."""
        async with self._locks.alone(artifact):
            resident = self._room.find(artifact)
            if resident is None:
                return False
            if is_claimed(self._follower.view, artifact, self._life.node):
                raise PermissionDenied(
                    f"Artifact {artifact} is pinned or leased.",
                    hint="Unpin it or wait for its leases to end.",
                    artifact=artifact,
                    node=self._life.node,
                )
            epoch = self._life.epoch
            leaving = EvictReplica(replica=resident.replica, epoch=epoch, reason=reason)
            await self._reporter.report([leaving], cause)
            await settle(resident.replica)
            dropped = DropReplica(replica=resident.replica, epoch=epoch)
            await self._reporter.report([dropped], cause)
            self._room.drop(resident)
            return True

    # ---- what is told ----------------------------------------------------------------------

    def _sealed(self, artifact: ArtifactId) -> Artifact:
        found = self._follower.view.artifacts.get(artifact)
        if found is None or found.status is not ArtifactStatus.SEALED:
            raise NotFound(f"There is no artifact {artifact} any more.", artifact=artifact)
        return found

    def _ready(self, artifact: ArtifactId) -> GpuResident:
        found = self._room.find_ready(artifact)
        if found is None:
            raise NotFound(
                f"Node {self._life.node} has no gpu replica of artifact {artifact}.",
                artifact=artifact,
                node=self._life.node,
            )
        return found

    def _start(self, resident: GpuResident) -> Command:
        return StartReplica(
            replica=resident.replica,
            artifact=resident.id,
            node=self._life.node,
            tier=Tier.GPU,
            epoch=self._life.epoch,
            chunks_total=resident.manifest.chunks_total,
        )

    def _complete(self, resident: GpuResident) -> Command:
        return CompleteReplica(
            replica=resident.replica,
            artifact=resident.id,
            node=self._life.node,
            tier=Tier.GPU,
            epoch=self._life.epoch,
            chunks_total=resident.manifest.chunks_total,
        )


# ---- copies, in threads ------------------------------------------------------------------------


def first_chunks(chunks: ChunkSet, count: int) -> ChunkSet:
    """The beginning of the first run."""
    if not chunks.ranges:
        return chunks
    first, stop = chunks.ranges[0]
    return ChunkSet(((first, min(stop, first + count)),))


def count_bytes(chunks: ChunkSet, resident: GpuResident) -> int:
    """How much these chunks are."""
    return sum(stop - start for start, stop in _places(chunks, resident))


def _places(chunks: ChunkSet, resident: GpuResident) -> list[tuple[int, int]]:
    """The runs as bytes (start, stop)."""
    size, chunk = resident.manifest.size_bytes, resident.manifest.chunk_bytes
    return [(a * chunk, chunk_range(b - 1, size, chunk).end) for a, b in chunks.ranges]


def copy_chunks(source: Resident, target: GpuResident, chunks: ChunkSet) -> None:
    """From DRAM to the device."""
    for start, stop in _places(chunks, target):
        with source.memory[start:stop] as content:
            target.segment.fill(start, content)


def take_chunks(source: GpuResident, target: Resident) -> ChunkSet:
    """What DRAM misses, from the device; the chunks that match."""
    for start, stop in _places(target.missing, source):
        with target.memory[start:stop] as place:
            source.segment.take(start, place)
    return ChunkSet.of(
        chunk
        for first, stop in target.missing.ranges
        for chunk in range(first, stop)
        if _matches(source, chunk, target.memory)
    )


def _matches(resident: GpuResident, chunk: int, memory: memoryview) -> bool:
    manifest = resident.manifest
    place = chunk_range(chunk, manifest.size_bytes, manifest.chunk_bytes)
    with memory[place.offset : place.end] as content:
        return chunk_digest(content) == manifest.digest(chunk)


def good_chunks(resident: GpuResident) -> ChunkSet:
    """The chunks on the device that match."""
    manifest, good = resident.manifest, list[int]()
    for chunk in range(manifest.chunks_total):
        place = chunk_range(chunk, manifest.size_bytes, manifest.chunk_bytes)
        content = resident.segment.read(place.offset, place.end)
        if chunk_digest(content) == manifest.digest(chunk):
            good.append(chunk)
    return ChunkSet.of(good)
