"""Bringing an artifact into this node's memory: from other nodes, or from the node's own disk.

One fill an artifact at a time; who comes second waits and finds it done. What was filled before a
fault or a crash stays, so the next fill moves only what is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from tensorcast.log.follower import Follower
from tensorcast.movers.core.holdings import operation_making
from tensorcast.movers.damage import explain_disk, report_damage
from tensorcast.movers.depots import Depots
from tensorcast.movers.images import Images
from tensorcast.movers.locks import Locks
from tensorcast.movers.memory.memfd import Segment
from tensorcast.movers.model_file import Arrived
from tensorcast.movers.pulls import Moved, Puller, moved_before
from tensorcast.movers.replicas import complete, corrupt, drop, filled, start
from tensorcast.movers.reports import Life, Reporter
from tensorcast.movers.residents import Phase, Resident, Residents
from tensorcast.movers.room import Room
from tensorcast.movers.threads import in_thread
from tensorcast.movers.tiers.base import Tier as Store
from tensorcast.schema.aggregates.artifact import Artifact, ArtifactStatus
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.commands import Command
from tensorcast.schema.errors import Corrupt, NotFound, OutOfCapacity, TensorCastError
from tensorcast.schema.ids import ArtifactId, EventId, NodeId, Tier
from tensorcast.schema.tensors import Manifest

Check = Callable[[Artifact], None]
Fetch = Callable[[Resident, EventId | None], Awaitable[Moved]]


class Fills:
    """See the module."""

    def __init__(
        self,
        residents: Residents,
        room: Room,
        disk: Store,
        puller: Puller,
        reporter: Reporter,
        follower: Follower,
        life: Life,
        disk_locks: Locks,
        depots: Depots,
        images: Images,
    ) -> None:
        self._images = images
        self._depots = depots
        self._residents = residents
        self._room = room
        self._disk = disk
        self._puller = puller
        self._reporter = reporter
        self._follower = follower
        self._life = life
        self._disk_locks = disk_locks
        self._locks = Locks()
        self._idle_since: dict[ArtifactId, float] = {}

    async def materialize(
        self, artifact: ArtifactId, preferred: Sequence[NodeId], cause: EventId | None
    ) -> Moved:
        """Pulls what is missing from other nodes. Raises what the last source's fault stands for,
        Unavailable when nobody has it (no memory is taken for it then), OutOfCapacity, NotFound."""

        async def fetch(resident: Resident, cause: EventId | None) -> Moved:
            return await self._puller.pull(resident, preferred, cause)

        return await self.fill(artifact, self._puller.check_sources, fetch, cause)

    async def load(
        self,
        artifact: ArtifactId,
        cause: EventId | None,
        *,
        if_room: bool = False,
        tier: Tier = Tier.DISK,
    ) -> Moved:
        """Reads the artifact from the disk, or from the store that all nodes share; `if_room`: only
        when nothing has to go for it. Raises Corrupt (and reports the chunks of that replica),
        OutOfCapacity, NotFound."""
        if tier is Tier.OBJECT:
            return await self.fill(artifact, self._depots.check, self._depots.read, cause)
        check = self._check_disk_and_room if if_room else self._check_disk
        return await self.fill(artifact, check, self._read_disk, cause)

    async def discard(self, artifact: ArtifactId) -> None:
        """Drops a half-filled replica, unless somebody else is filling it or waits for it."""
        resident = self._residents.find(artifact)
        is_wanted = self._locks.wanted(artifact) > 0
        if resident is None or resident.phase is not Phase.FILLING or is_wanted:
            return
        self._idle_since.pop(artifact, None)
        await self._reporter.report([drop(resident, self._life)], None)
        await self._residents.drop(resident)

    async def discard_idle(self, idle_s: float = 0.0) -> None:
        """Drops half-filled replicas that no open operation has wanted for `idle_s` seconds."""
        now = asyncio.get_running_loop().time()
        view, node = self._follower.view, self._life.node
        for resident in self._residents.all():
            wanted = operation_making(view, resident.id, node, Tier.DRAM)
            if resident.phase is not Phase.FILLING or wanted or self._locks.wanted(resident.id):
                self._idle_since.pop(resident.id, None)
            elif now - self._idle_since.setdefault(resident.id, now) >= idle_s:
                await self.discard(resident.id)

    # ---- the frame of every fill -----------------------------------------------------------

    async def fill(
        self, artifact: ArtifactId, check: Check, fetch: Fetch, cause: EventId | None
    ) -> Moved:
        """Fills the replica by `fetch`, what is missing of it. `check` raises when there is nothing
        to fill it from: before memory is taken for it."""
        async with self._locks.alone(artifact):
            await self._residents.wait_until(lambda: not self._residents.is_pending(artifact))
            if self._residents.find_ready(artifact) is not None:
                return Moved()
            if artifact in self._images.waiting() and self._residents.find(artifact) is None:
                return await self._read_image(self._sealed(artifact), cause)
            resident = await self._target(self._sealed(artifact), check, cause)
            moved = await self._fetch(resident, fetch, cause)
            if self._residents.find(artifact) is resident:
                await self._reporter.report([complete(resident, self._life)], cause)
                self._residents.set_phase(resident, Phase.READY)
            elif self._residents.find_ready(artifact) is None:
                raise NotFound(f"Artifact {artifact} was dropped while it was filled.")
            return moved

    async def _fetch(self, resident: Resident, fetch: Fetch, cause: EventId | None) -> Moved:
        if not resident.missing.ranges:
            return Moved()
        try:
            with self._residents.borrow(resident):
                return await fetch(resident, cause)
        except TensorCastError as error:
            if self._residents.find_ready(resident.id) is None:
                raise
            return moved_before(error)  # a put of the same content came first

    def _sealed(self, artifact: ArtifactId) -> Artifact:
        found = self._follower.view.artifacts.get(artifact)
        if found is None or found.status is not ArtifactStatus.SEALED:
            raise NotFound(f"There is no artifact {artifact} any more.", artifact=artifact)
        return found

    async def _target(self, artifact: Artifact, check: Check, cause: EventId | None) -> Resident:
        """The half-filled resident, or a new one; the log hears what it has."""
        resident = self._residents.find(artifact.id)
        if resident is None:
            check(artifact)
            lent = await self._room.find(artifact.manifest.size_bytes, self.discard_idle)
            resident = await self._residents.add(artifact, lent.segment, Phase.FILLING)
        commands: list[Command] = [start(resident, self._life)]
        if resident.chunks.ranges:
            commands.append(filled(resident, resident.chunks, self._life))
        await self._reporter.report(commands, cause)
        return resident

    # ---- from an image that waits -----------------------------------------------------------

    async def recall(self) -> None:
        """Reads images that wait back, as far as nothing has to go for them, and forgets those
        that are not needed any more."""
        for id_, size_bytes in self._images.waiting().items():
            async with self._locks.alone(id_):
                artifact = self._follower.view.artifacts.get(id_)
                if artifact is None or id_ not in self._images.waiting():
                    continue
                is_here = self._residents.find_ready(id_) or self._residents.is_on_disk(id_)
                if is_here or artifact.status is not ArtifactStatus.SEALED:
                    await self._images.forget(id_, artifact.manifest)
                elif self._residents.find(id_) is None:
                    with suppress(TensorCastError):  # the next fill tells it
                        if self._room.fits(size_bytes):
                            await self._read_image(artifact, None)

    async def _read_image(self, artifact: Artifact, cause: EventId | None) -> Moved:
        size_bytes = artifact.manifest.size_bytes
        lent = await self._room.find(size_bytes, self.discard_idle)
        resident = await self._residents.add(artifact, lent.segment, Phase.FILLING)
        await self._reporter.report([start(resident, self._life)], cause)
        try:
            with self._residents.borrow(resident):
                await self._images.read(resident)
        except Corrupt as error:
            damaged = corrupt(resident, resident.missing, error.message, self._life)
            commands: list[Command] = [damaged]
            if resident.chunks.ranges:
                commands.append(filled(resident, resident.chunks, self._life))
            await self._reporter.report(commands, cause)
            raise
        except TensorCastError:
            await self._residents.drop(resident)
            raise
        if self._residents.find(artifact.id) is resident:
            await self._reporter.report([complete(resident, self._life)], cause)
            self._residents.set_phase(resident, Phase.READY)
            await self._images.forget(artifact.id, artifact.manifest)
        return Moved(size_bytes, {"disk": size_bytes})

    # ---- from the disk ---------------------------------------------------------------------

    def _check_disk(self, artifact: Artifact) -> None:
        if not self._residents.is_on_disk(artifact.id):
            raise NotFound(
                f"Node {self._life.node} has no disk replica of artifact {artifact.id}.",
                artifact=artifact.id,
                node=self._life.node,
            )

    def _check_disk_and_room(self, artifact: Artifact) -> None:
        self._check_disk(artifact)
        if not self._room.fits(artifact.manifest.size_bytes):
            raise OutOfCapacity(
                f"The memory of node {self._life.node} has no room left for artifact "
                f"{artifact.id}, and nothing shall go for it.",
                artifact=artifact.id,
                node=self._life.node,
                retryable=False,
            )

    async def _read_disk(self, resident: Resident, cause: EventId | None) -> Moved:
        loop = asyncio.get_running_loop()
        missing = resident.missing

        def arrived(chunks: ChunkSet) -> None:
            loop.call_soon_threadsafe(self._residents.add_chunks, resident, chunks)

        def load() -> ChunkSet:
            return load_segment(
                self._disk, resident.id, resident.manifest, resident.segment, missing, arrived
            )

        try:
            async with self._disk_locks.alone(resident.id):
                good = await in_thread(load)
        except (Corrupt, NotFound) as error:  # the file as a whole
            report = explain_disk(error, resident.id, resident.manifest, self._life)
            self._residents.set_on_disk(resident.id, None)
            await self._reporter.report([report], cause)
            raise Corrupt(report.detail, artifact=resident.id, node=self._life.node) from error
        self._residents.add_chunks(resident, good)
        damaged = missing - good
        if not damaged.ranges:
            read_bytes = min(
                len(good) * resident.manifest.chunk_bytes, resident.manifest.size_bytes
            )
            return Moved(read_bytes, {"disk": read_bytes})
        corrupt = report_damage(damaged, resident.id, resident.manifest, self._life)
        self._residents.set_on_disk(resident.id, None)
        commands = [filled(resident, good, self._life)] if good.ranges else []
        await self._reporter.report([corrupt, *commands], cause)
        raise Corrupt(corrupt.detail, artifact=resident.id, node=self._life.node)


def load_segment(
    disk: Store,
    artifact: ArtifactId,
    manifest: Manifest,
    segment: Segment,
    missing: ChunkSet | None = None,
    arrived: Arrived | None = None,
) -> ChunkSet:
    """Fills a segment from a tier; returns the chunks that match. Blocks. Raises as `Tier.load`."""
    with segment.memory[: manifest.size_bytes] as memory:
        return disk.load(artifact, manifest, memory, missing=missing, arrived=arrived)
