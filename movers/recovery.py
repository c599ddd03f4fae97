"""What a mover does with its past at a start: kept descriptors, images on disk, the log's memory.

Quick things first (`adopt`, `reconcile`), so that the node serves at once; then, in the background
(`check`), every byte is compared with its digest before a reader of this node may have it. Peers
check what they pull themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from tensorcast.log.follower import Follower
from tensorcast.movers.core.holdings import operation_making, replicas_of
from tensorcast.movers.fills import load_segment
from tensorcast.movers.images import Images
from tensorcast.movers.journal import Journal
from tensorcast.movers.memory.hibernate import list_images, read_image, remove_image
from tensorcast.movers.memory.memfd import Segment
from tensorcast.movers.memory.pool import DescriptorStore, Pool
from tensorcast.movers.memory.verify import verify_chunks
from tensorcast.movers.pending import Pending
from tensorcast.movers.replicas import complete, corrupt, filled, lose, start
from tensorcast.movers.reports import Life, Reporter
from tensorcast.movers.residents import Phase, Resident, Residents
from tensorcast.movers.threads import in_thread
from tensorcast.movers.tiers.disk import DiskTier
from tensorcast.schema.aggregates.artifact import Artifact, ArtifactStatus
from tensorcast.schema.aggregates.replica import Replica, ReplicaStatus
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.commands import Command, DropReplica, EvictReplica
from tensorcast.schema.errors import Corrupt, OutOfCapacity, TensorCastError
from tensorcast.schema.ids import ArtifactId, ReplicaId, Tier, replica_id
from tensorcast.schema.wording import tell_count

CHECKS_MAX: Final = 2
MIB: Final = 1 << 20

_logger = logging.getLogger(__name__)


class Recovery:
    """Used once, at the start."""

    def __init__(
        self,
        residents: Residents,
        pool: Pool,
        store: DescriptorStore,
        disk: DiskTier,
        images: Images,
        journal: Journal,
        reporter: Reporter,
        follower: Follower,
        life: Life,
        pending: Pending,
    ) -> None:
        self._residents = residents
        self._pool = pool
        self._store = store
        self._disk = disk
        self._images = images
        self._home = images.folder
        self._journal = journal
        self._reporter = reporter
        self._follower = follower
        self._life = life
        self._pending = pending
        self._with_image: frozenset[ArtifactId] = frozenset()
        self._unchecked: list[Resident] = []
        self._absent: list[Replica] = []

    async def adopt(self, kept: Mapping[str, int]) -> None:
        """Takes segments over whose replicas the log still has, and those of accepted puts; gives
        all others up. Those that readers of the last life still map count as long as they do."""
        for name, fd in (await self.adopt_known(kept)).items():
            if not self._retire(name, fd):
                self._store.forget(name)
        await in_thread(self._pool.trim, 0.0)
        for replica_id_, segment in list(self._journal.segments.items()):
            if all(resident.segment.name != segment for resident in self._residents.all()):
                await self._journal.forget_segment(replica_id_)

    async def adopt_known(self, kept: Mapping[str, int]) -> dict[str, int]:
        """As `adopt`, but gives nothing up; returns what it knows no use for."""
        wanted = {segment: replica for replica, segment in self._journal.segments.items()}
        accepted = self._pending.wanted()
        unknown: dict[str, int] = {}
        for name, fd in kept.items():
            replica = self._follower.view.replicas.get(wanted.get(name, ReplicaId("")))
            artifact = self._present(replica)
            if artifact is not None:
                is_taken = await self._take(artifact, name, fd)
            elif name in accepted:
                is_taken = self._pending.adopt(name, fd)
            else:
                unknown[name] = fd
                continue
            if not is_taken:
                self._store.forget(name)
        return unknown

    def _present(self, replica: Replica | None) -> Artifact | None:
        if replica is None or replica.status not in (ReplicaStatus.FILLING, ReplicaStatus.READY):
            return None
        found = self._follower.view.artifacts.get(replica.artifact)
        return found if found and found.status is ArtifactStatus.SEALED else None

    def _retire(self, name: str, fd: int) -> bool:
        try:
            self._pool.release(self._pool.adopt(name, fd, is_touched=False))
        except Corrupt as error:
            _logger.warning("%s", error)
            return False
        return True

    async def _take(self, artifact: Artifact, name: str, fd: int) -> bool:
        try:
            segment = self._pool.adopt(name, fd)
        except Corrupt as error:
            _logger.warning("%s", error)
            return False
        if segment.capacity_bytes < artifact.manifest.size_bytes:
            self._pool.release(segment)
            return False
        self._unchecked.append(await self._residents.add(artifact, segment, Phase.CHECKING))
        return True

    async def find_stored(self, *, is_certain: bool = True) -> None:
        """Looks at what is on the disk, and which images of memory the last life left. Files whose
        replica the log has dropped are removed (if it `is_certain` that it has). What the log has
        never heard of stays: it may be all that is left of somebody's data."""
        for held in await in_thread(self._disk.list):
            replica = self._replica(held.artifact, Tier.DISK)
            if replica is None or replica.status is ReplicaStatus.READY:
                self._residents.set_on_disk(held.artifact, held.manifest)
            elif is_certain and replica.status is not ReplicaStatus.FILLING:
                # It is damaged, and a new one replaces it.
                await in_thread(self._disk.remove, held.artifact)
        self._with_image = frozenset(await in_thread(list_images, self._home))

    def _replica(self, artifact: ArtifactId, tier: Tier) -> Replica | None:
        return self._follower.view.replicas.get(replica_id(artifact, self._life.node, tier))

    def _is_restorable(self, artifact: ArtifactId) -> bool:
        return artifact in self._with_image or self._residents.is_on_disk(artifact)

    async def reconcile(self) -> None:
        """Tells the log which of the replicas that it has for this node are not here, and ends
        evictions that were under way."""
        commands: list[Command] = []
        self._absent = []
        for replica in replicas_of(self._follower.view, self._life.node):
            if replica.status is ReplicaStatus.EVICTING:
                commands.append(DropReplica(replica=replica.id, epoch=self._life.epoch))
            elif not self._is_here(replica):
                detail = "It was not there when the mover started."
                commands.append(lose(replica.id, detail, self._life))
        if commands:
            await self._reporter.report(commands, None)
        self._take_back()
        await self._pending.reconcile()

    def expect(self) -> None:
        """As `reconcile`, as far as it goes without the log: what can be brought back will be."""
        for replica in replicas_of(self._follower.view, self._life.node):
            self._is_here(replica)
        self._take_back()

    def _take_back(self) -> None:
        """Images that earlier lives left, of artifacts that this node has in no other way."""
        known = {replica.artifact for replica in self._absent}
        for id_ in sorted(self._with_image - known):
            artifact = self._follower.view.artifacts.get(id_)
            replica = self._replica(id_, Tier.DRAM)
            is_wanted = artifact is not None and artifact.status is ArtifactStatus.SEALED
            is_here = self._residents.find(id_) is not None or self._residents.is_on_disk(id_)
            is_dropped = replica is not None and replica.status is ReplicaStatus.GONE
            if artifact is not None and is_wanted and not is_here and not is_dropped:
                self._absent.append(self._lost_replica(artifact))
                self._residents.expect(id_)

    def _lost_replica(self, artifact: Artifact) -> Replica:
        return Replica(
            id=replica_id(artifact.id, self._life.node, Tier.DRAM),
            artifact=artifact.id,
            node=self._life.node,
            tier=Tier.DRAM,
            status=ReplicaStatus.LOST,
            epoch=self._life.epoch,
            chunks=ChunkSet(),
            chunks_total=artifact.manifest.chunks_total,
        )

    def describe(self) -> str:
        """One sentence about images that are more than the memory; empty when all fit."""
        found = (self._follower.view.artifacts.get(replica.artifact) for replica in self._absent)
        needed = sum(artifact.manifest.size_bytes for artifact in found if artifact)
        room = self._pool.capacity_bytes - self._pool.stats().used_bytes
        if needed <= room:
            return ""
        return (
            f"{needed / MIB:.0f} MiB of artifacts were in memory, which has room for "
            f"{room / MIB:.0f} MiB: the rest goes to the disk tier, or waits until there is memory"
        )

    def _is_here(self, replica: Replica) -> bool:
        if replica.tier is Tier.DISK:
            return self._residents.is_on_disk(replica.artifact)
        if replica.tier is Tier.GPU:
            return self._residents.is_on_device(replica.artifact)
        if replica.tier is Tier.OBJECT:  # it is not on this node, and needs no mover to be there
            return True
        if self._residents.find(replica.artifact) is not None:
            return True
        is_ready = replica.status is ReplicaStatus.READY and self._present(replica) is not None
        if is_ready and self._is_restorable(replica.artifact):
            self._absent.append(replica)
            self._residents.expect(replica.artifact)
            return True
        return False

    async def check(self, status: Callable[[str], None]) -> None:
        """Compares what was kept with its digests, and brings images of memory back."""
        note = self.describe()

        def tell(text: str) -> None:
            status(f"{text}. {note}" if note else text)

        await self._check_kept()
        await self._pending.restore(tell)
        await self._restore(tell)
        await self._remove_images()

    async def check_alone(self, status: Callable[[str], None]) -> None:
        """As `check`, but gives nothing up."""
        await self._check_kept()
        await self._restore(status)

    async def _check_kept(self) -> None:
        limit = asyncio.Semaphore(CHECKS_MAX)
        unchecked, self._unchecked = self._unchecked, []
        async with asyncio.TaskGroup() as tasks:
            for resident in unchecked:
                tasks.create_task(self._check(resident, limit))

    async def _check(self, resident: Resident, limit: asyncio.Semaphore) -> None:
        async with limit:
            with self._residents.borrow(resident):
                good = await in_thread(verify_chunks, resident.segment.memory, resident.manifest)
        self._residents.add_chunks(resident, good)
        await self._settle(resident)

    async def _settle(self, resident: Resident) -> None:
        """The log and the resident agree on what there is."""
        if resident.is_dropped:
            return
        replica = self._follower.view.replicas.get(resident.replica)
        claimed = replica.chunks if replica else ChunkSet()
        damaged = claimed - resident.chunks
        is_complete = not resident.missing.ranges
        commands: list[Command] = []
        if damaged.ranges:
            lost = tell_count(len(damaged), "chunk")
            detail = f"{lost} did not survive the restart of the mover."
            commands.append(corrupt(resident, damaged, detail, self._life))
        gained = resident.chunks - claimed
        if gained.ranges and not is_complete and not self._is_resumed(resident):
            commands += [start(resident, self._life), filled(resident, gained, self._life)]
        if is_complete:
            commands.append(complete(resident, self._life))
        if commands:
            await self._reporter.report(commands, None)
        self._residents.set_phase(resident, Phase.READY if is_complete else Phase.FILLING)

    def _is_resumed(self, resident: Resident) -> bool:
        """Whether an operation goes on with it: that one tells what is here, as its own doing."""
        making = operation_making(self._follower.view, resident.id, self._life.node, Tier.DRAM)
        return making is not None

    async def _restore(self, status: Callable[[str], None]) -> None:
        for count, replica in enumerate(self._absent, 1):
            status(f"reading {count} of {len(self._absent)} artifacts back into memory")
            try:
                await self._restore_one(replica)
            finally:
                self._residents.expect_no_more(replica.artifact)

    async def _restore_one(self, replica: Replica) -> None:
        artifact = self._follower.view.artifacts.get(replica.artifact)
        known = self._replica(replica.artifact, Tier.DRAM) or replica
        is_given_up = known.status in (ReplicaStatus.EVICTING, ReplicaStatus.GONE)
        is_wanted = artifact is not None and artifact.status is ArtifactStatus.SEALED
        if artifact is None or not is_wanted or is_given_up:  # it was removed meanwhile
            await self._lose(replica, "Its artifact was removed before it was read back.")
            return
        try:
            lent = await in_thread(self._pool.allocate, artifact.manifest.size_bytes)
        except OutOfCapacity as error:
            _logger.warning("artifact %s stays on disk: %s", artifact.id, error)
            await self._leave_on_disk(artifact, replica)
            return
        resident = await self._residents.add(artifact, lent.segment, Phase.CHECKING)
        try:
            with self._residents.borrow(resident):
                good = await in_thread(self._read_back, artifact, lent.segment)
        except TensorCastError as error:
            _logger.error("artifact %s cannot be read back: %s", artifact.id, error)
            await self._residents.drop(resident)
            await self._lose(replica, f"It cannot be read back: {error}")
            return
        self._residents.add_chunks(resident, good)
        await self._settle(resident)

    async def _leave_on_disk(self, artifact: Artifact, replica: Replica) -> None:
        """The disk tier has it, or gets it from the image; else the image waits for memory."""
        if artifact.id in self._with_image and not await self._images.settle(artifact):
            return
        if replica.status is ReplicaStatus.READY:
            epoch, reason = self._life.epoch, "The node has less memory than before."
            leaving = EvictReplica(replica=replica.id, epoch=epoch, reason=reason)
            gone = DropReplica(replica=replica.id, epoch=epoch)
            await self._reporter.report([leaving, gone], None)

    async def _lose(self, replica: Replica, detail: str) -> None:
        await self._reporter.report([lose(replica.id, detail, self._life)], None)

    def _read_back(self, artifact: Artifact, segment: Segment) -> ChunkSet:
        if artifact.id in self._with_image:
            return read_image(self._home, artifact.id, artifact.manifest, segment.memory)
        return load_segment(self._disk, artifact.id, artifact.manifest, segment)

    async def _remove_images(self) -> None:
        """Images are only for the way: one that was read back, or whose replica was dropped, goes.
        One that found no room, or of which the log knows nothing, may be all that is left."""
        for artifact in self._with_image:
            replica = self._replica(artifact, Tier.DRAM)
            found = self._follower.view.artifacts.get(artifact)
            is_back = self._residents.find_ready(artifact) is not None
            is_gone = replica is not None and replica.status is ReplicaStatus.GONE
            is_ready = replica is not None and replica.status is ReplicaStatus.READY
            is_stored = self._residents.is_on_disk(artifact) and not is_ready
            if (
                is_back
                or is_gone
                or is_stored
                or (found and found.status is ArtifactStatus.REMOVED)
            ):
                await in_thread(remove_image, self._home, artifact)
