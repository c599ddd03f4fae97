"""What each kind of work does. An operation that raises has failed with the fault of its error."""

from __future__ import annotations

from typing import assert_never

from tensorcast.log.follower import Follower
from tensorcast.movers.core.file_plan import file_bytes
from tensorcast.movers.core.holdings import PRESENT, is_claimed, is_stored
from tensorcast.movers.damage import check_disk, explain_damage
from tensorcast.movers.depots import Depots
from tensorcast.movers.disk_pulls import DiskPulls
from tensorcast.movers.disk_room import DiskRoom
from tensorcast.movers.fills import Fills
from tensorcast.movers.gpu_work import GpuWork
from tensorcast.movers.images import Images
from tensorcast.movers.locks import Locks
from tensorcast.movers.memory.verify import verify_chunks
from tensorcast.movers.pulls import Moved
from tensorcast.movers.replicas import corrupt, drop, evict, in_store, lose, on_disk
from tensorcast.movers.reports import Life, Reporter
from tensorcast.movers.residents import Phase, Resident, Residents
from tensorcast.movers.threads import in_thread
from tensorcast.movers.tiers.base import Tier as Store
from tensorcast.schema.aggregates.artifact import ArtifactStatus
from tensorcast.schema.aggregates.replica import ReplicaStatus
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.commands import (
    CompleteReplica,
    DropReplica,
    EvictReplica,
)
from tensorcast.schema.errors import Corrupt, NotFound, PermissionDenied, Unavailable
from tensorcast.schema.ids import ArtifactId, EventId, ReplicaId, Tier, replica_id
from tensorcast.schema.tensors import Manifest
from tensorcast.schema.work import Evict, Load, Materialize, Persist, Verify, Work


class Operations:
    """Does work on this node's replicas."""

    def __init__(
        self,
        residents: Residents,
        fills: Fills,
        disk_pulls: DiskPulls,
        disk: Store,
        disk_room: DiskRoom,
        reporter: Reporter,
        follower: Follower,
        life: Life,
        disk_locks: Locks,
        depots: Depots,
        images: Images,
        gpus: GpuWork,
    ) -> None:
        self._gpus = gpus
        self._images = images
        self._depots = depots
        self._residents = residents
        self._fills = fills
        self._disk_pulls = disk_pulls
        self._disk = disk
        self._disk_room = disk_room
        self._reporter = reporter
        self._follower = follower
        self._life = life
        self._disk_locks = disk_locks

    async def do(self, work: Work, cause: EventId | None) -> Moved:
        """Does the work and reports what becomes of replicas; what becomes of the operation is the
        caller's to report. Repeating finished work changes nothing. Raises TensorCastError."""
        match work:
            case Materialize(tier=Tier.GPU) | Persist(tier=Tier.GPU):
                sources = work.sources if isinstance(work, Materialize) else ()
                return await self._gpus.materialize(work.artifact, sources, cause)
            case Load(tier=Tier.GPU):
                check, read = self._gpus.check_ready, self._gpus.read
                return await self._fills.fill(work.artifact, check, read, cause)
            case Evict(tier=Tier.GPU):
                return await self._evict_gpu(work, cause)
            case Verify(tier=Tier.GPU):
                await self._gpus.verify(work.artifact, cause)
                return Moved()
            case Materialize(tier=Tier.DISK):
                async with self._disk_locks.alone(work.artifact):
                    return await self._materialize_on_disk(work, cause)
            case Materialize():
                return await self._fills.materialize(work.artifact, work.sources, cause)
            case Load(if_room=if_room, tier=tier):
                return await self._fills.load(work.artifact, cause, if_room=if_room, tier=tier)
            case Persist(tier=Tier.OBJECT):
                return await self._depots.persist(self._ready(work.artifact), cause)
            case Persist():
                async with self._disk_locks.alone(work.artifact):
                    return await self._persist(work.artifact, cause)
            case Evict(tier=Tier.DRAM):
                return await self._evict_memory(work, cause)
            case Evict(tier=Tier.OBJECT):
                return await self._evict_object(work, cause)
            case Evict():
                async with self._disk_locks.alone(work.artifact):
                    return await self._evict_disk(work, cause)
            case Verify(tier=Tier.DRAM):
                return await self._verify_memory(work.artifact, cause)
            case Verify(tier=Tier.OBJECT):
                manifest = self._manifest(work.artifact)
                await self._depots.verify(work.artifact, manifest, cause)
                return Moved()
            case Verify():
                async with self._disk_locks.alone(work.artifact):
                    return await self._verify_disk(work.artifact, cause)
            case _:
                assert_never(work)

    async def _materialize_on_disk(self, work: Materialize, cause: EventId | None) -> Moved:
        if self._residents.find_ready(work.artifact) is not None:
            return await self._persist(work.artifact, cause)
        return await self._disk_pulls.materialize(
            work.artifact, work.sources, cause, self._fills.discard_idle
        )

    async def _persist(self, artifact: ArtifactId, cause: EventId | None) -> Moved:
        moved = Moved()
        if not self._residents.is_on_disk(artifact):
            resident = self._ready(artifact)
            with self._residents.borrow(resident):
                await self._store(resident)
            moved = Moved(resident.manifest.size_bytes, {"disk": resident.manifest.size_bytes})
        stored = CompleteReplica(
            replica=on_disk(artifact, self._life),
            artifact=artifact,
            node=self._life.node,
            tier=Tier.DISK,
            epoch=self._life.epoch,
            chunks_total=self._manifest(artifact).chunks_total,
        )
        await self._reporter.report([stored], cause)
        return moved

    async def _store(self, resident: Resident) -> None:
        await self._disk_pulls.remove(resident.id)  # what came by another way, as far as it came
        async with self._disk_room.reserve(file_bytes(resident.manifest)):
            # What may lie there is damaged, or the disk tier would know of it.
            await in_thread(self._disk.remove, resident.id)
            await in_thread(store_resident, self._disk, resident)
            self._residents.set_on_disk(resident.id, resident.manifest)

    async def _evict_memory(self, work: Evict, cause: EventId | None) -> Moved:
        resident = await self._find_for_eviction(work.artifact)
        if resident is None and work.artifact in self._images.waiting():
            return await self._evict_image(work, cause)
        if resident is None:
            ghost = replica_id(work.artifact, self._life.node, Tier.DRAM)
            return await self._lose_ghost(ghost, cause)
        self._check_unclaimed(work.artifact)
        await self._reporter.report([evict(resident, work.reason, self._life)], cause)
        await self._check_evicting(resident.replica)
        await self._reporter.report([drop(resident, self._life)], cause)
        await self._residents.drop(resident)
        return Moved()

    async def _evict_image(self, work: Evict, cause: EventId | None) -> Moved:
        """As from memory, of what waits for memory."""
        epoch = self._life.epoch
        replica = replica_id(work.artifact, self._life.node, Tier.DRAM)
        self._check_unclaimed(work.artifact)
        leaving = EvictReplica(replica=replica, epoch=epoch, reason=work.reason)
        await self._reporter.report([leaving], cause)
        await self._check_evicting(replica)
        await self._reporter.report([DropReplica(replica=replica, epoch=epoch)], cause)
        await self._images.forget(work.artifact, self._manifest(work.artifact))
        return Moved()

    async def _evict_disk(self, work: Evict, cause: EventId | None) -> Moved:
        manifest = self._manifest(work.artifact)
        replica, epoch = on_disk(work.artifact, self._life), self._life.epoch
        if not self._residents.is_on_disk(work.artifact):
            await in_thread(self._disk.remove, work.artifact)  # what is left of a damaged one
            await self._disk_pulls.remove(work.artifact)
            return await self._lose_ghost(replica, cause)
        self._check_unclaimed(work.artifact)
        leaving = EvictReplica(replica=replica, epoch=epoch, reason=work.reason)
        await self._reporter.report([leaving], cause)
        await self._check_evicting(replica)
        self._residents.set_on_disk(work.artifact, None)
        try:
            await in_thread(self._disk.remove, work.artifact)
        except BaseException:
            self._residents.set_on_disk(work.artifact, manifest)
            raise
        await self._reporter.report([DropReplica(replica=replica, epoch=epoch)], cause)
        return Moved()

    async def _evict_object(self, work: Evict, cause: EventId | None) -> Moved:
        view, epoch = self._follower.view, self._life.epoch
        replica = in_store(work.artifact, self._life)
        known, artifact = view.replicas.get(replica), view.artifacts.get(work.artifact)
        is_removed = artifact is None or artifact.status is ArtifactStatus.REMOVED
        if not self._depots.has_store or known is None or known.status not in PRESENT:
            return await self._lose_ghost(replica, cause)
        self._check_unclaimed(work.artifact)
        leaving = EvictReplica(replica=replica, epoch=epoch, reason=work.reason)
        await self._reporter.report([leaving], cause)
        await self._check_evicting(replica)
        by_others = is_stored(view, work.artifact, but_by=self._life.node)
        await self._depots.remove(work.artifact, is_shared=by_others and not is_removed)
        await self._reporter.report([DropReplica(replica=replica, epoch=epoch)], cause)
        return Moved()

    async def _evict_gpu(self, work: Evict, cause: EventId | None) -> Moved:
        if not await self._gpus.evict(work.artifact, work.reason, cause, self._check_evicting):
            ghost = replica_id(work.artifact, self._life.node, Tier.GPU)
            return await self._lose_ghost(ghost, cause)
        return Moved()

    async def _find_for_eviction(self, artifact: ArtifactId) -> Resident | None:
        residents = self._residents
        await residents.wait_until(
            lambda: residents.find(artifact) is not None or not residents.is_pending(artifact)
        )
        if residents.is_arriving(artifact):
            raise Unavailable(
                f"Artifact {artifact} is just being put on node {self._life.node}.",
                artifact=artifact,
                node=self._life.node,
            )
        return residents.find(artifact)

    async def _lose_ghost(self, replica: ReplicaId, cause: EventId | None) -> Moved:
        """What is not here must not stay in the log as if it were."""
        found = self._follower.view.replicas.get(replica)
        if found is not None and found.status in PRESENT:
            detail = "It was not there when it was to be evicted."
            await self._reporter.report([lose(replica, detail, self._life)], cause)
        return Moved()

    def _check_unclaimed(self, artifact: ArtifactId) -> None:
        if is_claimed(self._follower.view, artifact, self._life.node):
            raise PermissionDenied(
                f"Artifact {artifact} is pinned or leased.",
                hint="Unpin it or wait for its leases to end.",
                artifact=artifact,
                node=self._life.node,
            )

    async def _check_evicting(self, replica: ReplicaId) -> None:
        """Destructive work waits for the log: a fenced mover never gets past this."""
        await self._reporter.settled()
        found = self._follower.view.replicas.get(replica)
        if found is not None and found.status is not ReplicaStatus.EVICTING:
            raise Unavailable(f"Replica {replica} is {found.status}; it cannot be evicted now.")

    async def _verify_memory(self, artifact: ArtifactId, cause: EventId | None) -> Moved:
        resident = self._ready(artifact)
        with self._residents.borrow(resident):
            good = await in_thread(verify_chunks, resident.segment.memory, resident.manifest)
        damaged = ChunkSet.full(resident.manifest.chunks_total) - good
        if damaged.ranges:
            self._residents.lose_chunks(resident, damaged)
            detail = explain_damage(damaged, resident.manifest, "memory", self._life.node)
            await self._reporter.report([corrupt(resident, damaged, detail, self._life)], cause)
            raise Corrupt(detail, artifact=artifact, node=self._life.node)
        return Moved()

    async def _verify_disk(self, artifact: ArtifactId, cause: EventId | None) -> Moved:
        manifest = self._manifest(artifact)
        if not self._residents.is_on_disk(artifact):
            raise self._absent(artifact, Tier.DISK)
        report = await check_disk(self._disk, artifact, manifest, self._life)
        if report is not None:
            self._residents.set_on_disk(artifact, None)
            await self._reporter.report([report], cause)
            raise Corrupt(report.detail, artifact=artifact, node=self._life.node)
        return Moved()

    def _ready(self, artifact: ArtifactId) -> Resident:
        resident = self._residents.find(artifact)
        if resident is None:
            raise self._absent(artifact, Tier.DRAM)
        if resident.phase is not Phase.READY:
            raise Unavailable(
                f"The replica in memory has {len(resident.chunks)} of "
                f"{resident.manifest.chunks_total} chunks.",
                hint="Wait until it is ready.",
                artifact=artifact,
                node=self._life.node,
            )
        return resident

    def _absent(self, artifact: ArtifactId, tier: Tier) -> NotFound:
        return NotFound(
            f"Node {self._life.node} has no {tier} replica of artifact {artifact}.",
            artifact=artifact,
            node=self._life.node,
        )

    def _manifest(self, artifact: ArtifactId) -> Manifest:
        found = self._follower.view.artifacts.get(artifact)
        if found is None:
            raise NotFound(f"There is no artifact {artifact}.", artifact=artifact)
        return found.manifest


def store_resident(disk: Store, resident: Resident) -> None:
    """Writes a resident to a tier. Blocks: call it in a thread, with the resident borrowed."""
    with resident.segment.memory[: resident.manifest.size_bytes] as memory:
        disk.persist(resident.id, resident.manifest, memory)
