"""Images of memory that no longer fits into it: they go to the disk tier, or wait for memory.

A node may start with less memory than it had. What an image holds is never given up for that: it
becomes a disk replica; when the disk tier has no room either, the image stays. Peers are served
from it, and it is read back when a reader wants it or memory is free, in this life or a later one.
"""

from __future__ import annotations

import logging
from pathlib import Path

from tensorcast.movers.core.file_plan import file_bytes
from tensorcast.movers.disk_room import DiskRoom
from tensorcast.movers.locks import Locks
from tensorcast.movers.memory.hibernate import map_image, read_image, remove_image, verify_image
from tensorcast.movers.replicas import on_disk
from tensorcast.movers.reports import Life, Reporter
from tensorcast.movers.residents import Resident, Residents
from tensorcast.movers.threads import in_thread
from tensorcast.movers.tiers.base import Tier as Store
from tensorcast.schema.aggregates.artifact import Artifact
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.commands import CompleteReplica
from tensorcast.schema.errors import Corrupt, TensorCastError
from tensorcast.schema.ids import ArtifactId, Tier
from tensorcast.schema.tensors import Manifest

MIB = 1 << 20

_logger = logging.getLogger(__name__)


class Images:
    """The images below `folder` that wait; the residents know them, to serve peers."""

    def __init__(
        self,
        folder: Path,
        residents: Residents,
        disk: Store,
        disk_room: DiskRoom,
        disk_locks: Locks,
        reporter: Reporter,
        life: Life,
    ) -> None:
        self.folder = folder
        self._residents = residents
        self._disk = disk
        self._disk_room = disk_room
        self._disk_locks = disk_locks
        self._reporter = reporter
        self._life = life

    def waiting(self) -> dict[ArtifactId, int]:
        """The artifacts whose image waits for memory, and the bytes of each."""
        return self._residents.images()

    def describe(self) -> str:
        """One sentence about what waits; empty when nothing does."""
        sizes = self._residents.images().values()
        if not sizes:
            return ""
        return (
            f"{count_artifacts(len(sizes))} ({sum(sizes) / MIB:.0f} MiB) in hibernate/ until "
            "there is memory: raise --dram or --disk"
        )

    async def settle(self, artifact: Artifact) -> bool:
        """Finds a place for an image that memory has no room for. Whether it is on the disk now;
        else it waits."""
        try:
            await self._store(artifact)
        except TensorCastError as error:
            _logger.warning("the image of artifact %s waits for memory: %s", artifact.id, error)
            self._residents.set_image(artifact.id, self.folder, artifact.manifest)
            return False
        return True

    async def _store(self, artifact: Artifact) -> None:
        """Makes it a disk replica; the log hears of it before the image goes."""
        id_, manifest = artifact.id, artifact.manifest
        async with self._disk_locks.alone(id_):
            if not self._residents.is_on_disk(id_):
                async with self._disk_room.reserve(file_bytes(manifest)):
                    await in_thread(self._copy, id_, manifest)
                    self._residents.set_on_disk(id_, manifest)
            stored = CompleteReplica(
                replica=on_disk(id_, self._life),
                artifact=id_,
                node=self._life.node,
                tier=Tier.DISK,
                epoch=self._life.epoch,
                chunks_total=manifest.chunks_total,
            )
            await self._reporter.report([stored], None)
        await self.forget(id_, manifest)

    def _copy(self, artifact: ArtifactId, manifest: Manifest) -> None:
        good = verify_image(self.folder, artifact, manifest)
        if len(good) != manifest.chunks_total:
            raise Corrupt(f"The image of {artifact} is damaged.", artifact=artifact)
        self._disk.remove(artifact)  # what may lie there is damaged, or we would know of it
        with map_image(self.folder, artifact, manifest) as content:
            self._disk.persist(artifact, manifest, content)

    async def read(self, resident: Resident) -> None:
        """Fills a resident from its image. Raises Corrupt for chunks that do not match: the image
        waits no longer then, and the rest has to come from elsewhere."""
        with resident.segment.memory[: resident.manifest.size_bytes] as memory:
            good = await in_thread(read_image, self.folder, resident.id, resident.manifest, memory)
        self._residents.add_chunks(resident, good)
        if good != ChunkSet.full(resident.manifest.chunks_total):
            self._residents.set_image(resident.id, None, resident.manifest)
            raise Corrupt(f"The image of artifact {resident.id} is damaged.", artifact=resident.id)

    async def forget(self, artifact: ArtifactId, manifest: Manifest) -> None:
        """The image is needed no more. Safe to repeat."""
        self._residents.set_image(artifact, None, manifest)
        await in_thread(remove_image, self.folder, artifact)


def count_artifacts(count: int) -> str:
    """`1 artifact waits`, `2 artifacts wait`."""
    return "1 artifact waits" if count == 1 else f"{count} artifacts wait"
