"""What lies in this node's memory and on its disk: segments with their artifacts, lent to peers.

A resident is the memory side of a DRAM replica. It belongs to the event loop's thread, except that
servers' threads borrow it: what is borrowed is not released before it is given back.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from tensorcast.movers.core.file_plan import file_bytes
from tensorcast.movers.core.layout import Layout
from tensorcast.movers.journal import Journal
from tensorcast.movers.memory.hibernate import open_image
from tensorcast.movers.memory.memfd import Segment
from tensorcast.movers.memory.pool import Pool
from tensorcast.movers.tiers.base import Tier as Store
from tensorcast.movers.transports.base import Bell, Lending, Memory, NotYet
from tensorcast.movers.uses import Uses
from tensorcast.schema.aggregates.artifact import Artifact
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.errors import NotFound
from tensorcast.schema.ids import ArtifactId, NodeId, ReplicaId, Tier, replica_id
from tensorcast.schema.tensors import Manifest


class Phase(StrEnum):
    """CHECKING: the bytes are being read back or compared with their digests after a start."""

    CHECKING = "checking"
    FILLING = "filling"
    READY = "ready"


class Filling(Protocol):
    """What a pull fills: `memory` begins with byte `base_bytes` of the byte space; `missing` are
    the chunks that are to come. `tells`: the log hears of them when they have come; `is_served`:
    peers may read them at once (`add` may be called from any thread)."""

    id: ArtifactId
    manifest: Manifest
    base_bytes: int
    tells: bool
    is_served: bool
    replica: ReplicaId

    @property
    def memory(self) -> Memory: ...

    @property
    def missing(self) -> ChunkSet: ...

    @property
    def is_dropped(self) -> bool: ...

    def add(self, chunks: ChunkSet) -> None: ...


class Devices(Protocol):
    """What lies in the memory of the node's GPUs. For any thread."""

    def find(self, artifact: ArtifactId) -> object | None: ...

    def find_ready(self, artifact: ArtifactId) -> object | None: ...

    def lend(self, artifact: ArtifactId) -> AbstractContextManager[Lending]:
        """Raises NotFound."""
        ...


class Chunked:
    """An artifact that comes chunk by chunk: `chunks` are those that are there and match."""

    def __init__(self, artifact: Artifact) -> None:
        self.id = artifact.id
        self.kind = artifact.kind
        self.labels = artifact.labels
        self.manifest = artifact.manifest
        self.chunks = ChunkSet()
        self.bell = Bell()
        self._changing = threading.Lock()

    @property
    def missing(self) -> ChunkSet:
        return ChunkSet.full(self.manifest.chunks_total) - self.chunks

    def add(self, chunks: ChunkSet) -> None:
        """More chunks are there and match; peers may read them. From any thread."""
        with self._changing:
            before = self.chunks
            self.chunks = before | chunks
        if self.chunks != before:
            self.bell.ring()

    def lose(self, chunks: ChunkSet) -> None:
        """These are not there any more. From any thread."""
        with self._changing:
            self.chunks = self.chunks - chunks


class Kept(Chunked):
    """A replica in memory. `used_at` is when it was last handed to a reader (seconds, steady
    clock); `borrowers` keep the memory, also of one that `is_dropped`."""

    base_bytes = 0
    tells = True
    is_served = True

    def __init__(self, replica: ReplicaId, artifact: Artifact) -> None:
        super().__init__(artifact)
        self.replica = replica
        self.used_at = time.monotonic()
        self.borrowers = 0
        self.is_dropped = False


class Resident(Kept):
    """An artifact's bytes in a segment."""

    def __init__(self, replica: ReplicaId, artifact: Artifact, segment: Segment) -> None:
        super().__init__(replica, artifact)
        self.segment = segment
        self.phase = Phase.FILLING

    @property
    def memory(self) -> memoryview:
        return self.segment.memory


class DiskPull(Chunked):
    """A disk replica that fills: its chunks are those that the file behind `fd` has."""

    def __init__(self, artifact: Artifact, fd: int, layout: Layout) -> None:
        super().__init__(artifact)
        self.fd = fd
        self.layout = layout


class Window:
    """Memory for a part of a pull to the disk: its chunks `wanted`, from byte `base_bytes` on."""

    tells = False
    is_served = False
    is_dropped = False
    replica = ReplicaId("")

    def __init__(
        self, pulling: DiskPull, wanted: ChunkSet, memory: memoryview, base_bytes: int
    ) -> None:
        self.id = pulling.id
        self.manifest = pulling.manifest
        self.wanted = wanted
        self.missing = wanted
        self.memory = memory
        self.base_bytes = base_bytes

    def add(self, chunks: ChunkSet) -> None:
        """These chunks have come."""
        self.missing = self.missing - chunks


class Residents:
    """The residents of a node by artifact, and what its disk holds. A `Provider` for servers."""

    def __init__(
        self,
        node: NodeId,
        pool: Pool,
        journal: Journal,
        disk: Store,
        is_coming: Callable[[ArtifactId], bool] = lambda _: False,
        devices: Devices | None = None,
    ) -> None:
        """`is_coming` (for any thread): whether an operation is bringing the artifact here, of
        which nothing may be seen yet."""
        self._devices = devices
        self._is_coming = is_coming
        self._node = node
        self._pool = pool
        self._journal = journal
        self._disk = disk
        self._lock = threading.Lock()
        self._residents: dict[ArtifactId, Resident] = {}
        self._on_disk: dict[ArtifactId, Manifest] = {}
        self._stored: dict[ArtifactId, int] = {}
        self._partial: dict[ArtifactId, int] = {}
        self._disk_pulls: dict[ArtifactId, DiskPull] = {}
        self._images: dict[ArtifactId, tuple[Path, Manifest]] = {}
        self.uses = Uses()
        self._expected: set[ArtifactId] = set()
        self._changed = asyncio.Event()

    def find(self, artifact: ArtifactId) -> Resident | None:
        """The resident in whatever phase; None when there is none."""
        return self._residents.get(artifact)

    def find_ready(self, artifact: ArtifactId) -> Resident | None:
        """The resident if all its bytes are there and checked."""
        found = self._residents.get(artifact)
        return found if found is not None and found.phase is Phase.READY else None

    def expect(self, artifact: ArtifactId) -> None:
        """The artifact will be brought back soon: who wants it must wait (`is_pending`)."""
        self._expected.add(artifact)

    def expect_no_more(self, artifact: ArtifactId) -> None:
        """It is here, or will not come."""
        self._expected.discard(artifact)
        self._notify()

    def is_pending(self, artifact: ArtifactId) -> bool:
        """Whether it is still being brought back or checked after a start."""
        found = self._residents.get(artifact)
        return artifact in self._expected or (found is not None and found.phase is Phase.CHECKING)

    def is_arriving(self, artifact: ArtifactId) -> bool:
        """Whether a put of it is being registered: the log may know it before we do."""
        replica = replica_id(artifact, self._node, Tier.DRAM)
        return artifact not in self._residents and replica in self._journal.segments

    def all(self) -> tuple[Resident, ...]:
        """All residents."""
        return tuple(self._residents.values())

    async def add(self, artifact: Artifact, segment: Segment, phase: Phase) -> Resident:
        """Takes the segment as the place of an artifact, in place of an earlier one. Which segment
        it is lies in the journal before it is visible."""
        replica = replica_id(artifact.id, self._node, Tier.DRAM)
        resident = Resident(replica, artifact, segment)
        resident.phase = phase
        if phase is Phase.READY:
            resident.chunks = ChunkSet.full(artifact.manifest.chunks_total)
        await self._journal.keep_segment(replica, segment.name)
        with self._lock:
            before = self._residents.get(artifact.id)
            self._residents[artifact.id] = resident
        if before is not None:
            self._let_go(before)
        self._notify()
        return resident

    async def drop(self, resident: Resident) -> None:
        """Gives its segment back, as soon as nobody borrows it. Safe to repeat."""
        with self._lock:
            if self._residents.get(resident.id) is not resident:
                return
            del self._residents[resident.id]
        self._let_go(resident)
        self._notify()
        await self._journal.forget_segment(resident.replica)

    def set_phase(self, resident: Resident, phase: Phase) -> None:
        """Moves a resident on and wakes those who wait for it."""
        resident.phase = phase
        self._notify()

    def add_chunks(self, resident: Resident, chunks: ChunkSet) -> None:
        """More chunks are there and match; peers may read them."""
        resident.add(chunks)

    def lose_chunks(self, resident: Resident, chunks: ChunkSet) -> None:
        """These chunks are not what they should be: nobody gets them any more."""
        resident.lose(chunks)
        self.set_phase(resident, Phase.FILLING)

    async def wait_until(self, predicate: Callable[[], bool]) -> None:
        """Returns when the predicate, asked after every change, is true."""
        while not predicate():
            await self._changed.wait()

    def set_on_disk(self, artifact: ArtifactId, manifest: Manifest | None) -> None:
        """The disk holds the artifact now, or (None) no longer."""
        with self._lock:
            if manifest is None:
                self._on_disk.pop(artifact, None)
                self._stored.pop(artifact, None)
            else:
                self._on_disk[artifact] = manifest
                self._stored[artifact] = file_bytes(manifest)

    def is_on_disk(self, artifact: ArtifactId) -> bool:
        """Whether the disk tier has a complete replica."""
        return artifact in self._on_disk

    def is_on_device(self, artifact: ArtifactId) -> bool:
        """Whether a GPU has a complete replica."""
        return self._devices is not None and self._devices.find_ready(artifact) is not None

    def disk_bytes(self) -> int:
        """Size of what is on disk, half-written replicas at their full size."""
        with self._lock:
            return sum(self._stored.values()) + sum(self._partial.values())

    def stored(self) -> dict[ArtifactId, int]:
        """The complete replicas on disk, and what each takes."""
        with self._lock:
            return dict(self._stored)

    def partial(self) -> tuple[ArtifactId, ...]:
        """The half-written replicas on disk."""
        return tuple(self._partial)

    def partial_bytes(self, artifact: ArtifactId) -> int:
        """What a half-written replica takes, 0 when there is none."""
        return self._partial.get(artifact, 0)

    def set_partial(self, artifact: ArtifactId, size_bytes: int | None) -> None:
        """The disk holds a half-written replica of that size, or (None) no longer."""
        with self._lock:
            self._partial.pop(artifact, None)
            if size_bytes is not None:
                self._partial[artifact] = size_bytes

    def set_image(self, artifact: ArtifactId, folder: Path | None, manifest: Manifest) -> None:
        """An image of the artifact waits in `folder` until there is memory for it, or (None) no
        longer. Peers are served from it."""
        with self._lock:
            self._images.pop(artifact, None)
            if folder is not None:
                self._images[artifact] = (folder, manifest)

    def images(self) -> dict[ArtifactId, int]:
        """The images that wait for memory, and the bytes of each."""
        with self._lock:
            return {id_: manifest.size_bytes for id_, (_, manifest) in self._images.items()}

    def begin_disk_pull(self, pulling: DiskPull) -> None:
        """Peers may read what the pull has."""
        with self._lock:
            self._disk_pulls[pulling.id] = pulling

    def end_disk_pull(self, pulling: DiskPull) -> None:
        """The pull is read no more, except by those who do already. Its descriptor may be closed
        afterwards."""
        with self._lock:
            self._disk_pulls.pop(pulling.id, None)

    @contextmanager
    def borrow(self, resident: Resident) -> Iterator[Resident]:
        """Keeps the segment in place while the context lasts, even if the resident is dropped.
        Safe in any thread. Raises NotFound when it was dropped before."""
        with self._lock:
            if resident.is_dropped:
                raise NotFound(f"Artifact {resident.id} was dropped.", artifact=resident.id)
            resident.borrowers += 1
        try:
            yield resident
        finally:
            with self._lock:
                resident.borrowers -= 1
                is_last = resident.is_dropped and resident.borrowers == 0
            if is_last:
                self._pool.release(resident.segment)

    def lend(self, artifact: ArtifactId) -> AbstractContextManager[Lending]:
        """As `Provider.lend`: a complete resident, else the disk, else one that is filling, or
        that is checked: more of it can be read soon."""
        with self._lock:
            resident = self._residents.get(artifact)
            manifest = self._on_disk.get(artifact)
            pulling = self._disk_pulls.get(artifact)
            image = self._images.get(artifact)
        is_ready = resident is not None and resident.phase is Phase.READY
        if image is not None and manifest is None and not is_ready:
            return self._lend_image(artifact, *image)
        if resident is not None and (is_ready or manifest is None):
            return self._lend_memory(resident)
        if manifest is not None:
            self.uses.note(artifact)
            return self._lend_disk(artifact, manifest)
        if pulling is not None:
            return self._lend_disk_pull(pulling)
        if self._devices is not None and self._devices.find(artifact) is not None:
            return self._devices.lend(artifact)
        if artifact in self._expected:
            raise NotYet(f"Node {self._node} still reads artifact {artifact} back.")
        if self._is_coming(artifact):
            raise NotYet(f"Node {self._node} is just about to get artifact {artifact}.")
        raise NotFound(f"Node {self._node} has no artifact {artifact}.", artifact=artifact)

    @contextmanager
    def _lend_memory(self, resident: Resident) -> Iterator[Lending]:
        with self.borrow(resident):
            yield Lending(
                fd=resident.segment.fd,
                layout=Layout.whole(resident.manifest.size_bytes),
                chunk_bytes=resident.manifest.chunk_bytes,
                chunks=lambda: resident.chunks,
                bell=resident.bell,
                memory=resident.segment.memory if resident.manifest.size_bytes else None,
            )

    @contextmanager
    def _lend_disk(self, artifact: ArtifactId, manifest: Manifest) -> Iterator[Lending]:
        everything = ChunkSet.full(manifest.chunks_total)
        with self._disk.open_ranges(artifact, manifest) as opened:
            yield Lending(
                fd=opened.fd,
                layout=opened.layout,
                chunk_bytes=manifest.chunk_bytes,
                chunks=lambda: everything,
            )

    @contextmanager
    def _lend_image(
        self, artifact: ArtifactId, folder: Path, manifest: Manifest
    ) -> Iterator[Lending]:
        everything = ChunkSet.full(manifest.chunks_total)
        with open_image(folder, artifact) as fd:
            yield Lending(
                fd=fd,
                layout=Layout.whole(manifest.size_bytes),
                chunk_bytes=manifest.chunk_bytes,
                chunks=lambda: everything,
            )

    @contextmanager
    def _lend_disk_pull(self, pulling: DiskPull) -> Iterator[Lending]:
        with self._lock:
            if self._disk_pulls.get(pulling.id) is not pulling:
                raise NotYet(f"Node {self._node} has just finished artifact {pulling.id}.")
            fd = os.dup(pulling.fd)
        try:
            yield Lending(
                fd=fd,
                layout=pulling.layout,
                chunk_bytes=pulling.manifest.chunk_bytes,
                chunks=lambda: pulling.chunks,
                bell=pulling.bell,
            )
        finally:
            os.close(fd)

    def _let_go(self, resident: Resident) -> None:
        with self._lock:
            if resident.is_dropped:
                return
            resident.is_dropped = True
            is_free = resident.borrowers == 0
        if is_free:
            self._pool.release(resident.segment)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
