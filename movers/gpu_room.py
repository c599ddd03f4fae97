"""What lies in the memory of this node's GPUs: replicas, lent to adapters and handed to readers.

A replica here is a cache of bytes that are somewhere else too: it goes with the mover's process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tensorcast.log.follower import Follower
from tensorcast.movers.core.holdings import is_claimed
from tensorcast.movers.core.layout import Layout
from tensorcast.movers.memory.cuda import CudaPool, CudaSegment
from tensorcast.movers.reports import Life, Reporter
from tensorcast.movers.residents import Kept
from tensorcast.movers.transports.base import Lending
from tensorcast.schema.aggregates.artifact import Artifact
from tensorcast.schema.commands import ReportPressure
from tensorcast.schema.errors import NotFound, OutOfCapacity
from tensorcast.schema.ids import ArtifactId, NodeId, Tier, replica_id

LOOK_AGAIN_S: Final = 0.03


class GpuResident(Kept):
    """An artifact's bytes in a segment of a device. Satisfies `residents.Filling`."""

    def __init__(self, artifact: Artifact, segment: CudaSegment, node: NodeId) -> None:
        super().__init__(replica_id(artifact.id, node, Tier.GPU), artifact)
        self.segment = segment
        self.is_ready = False

    @property
    def memory(self) -> CudaSegment:
        return self.segment


class GpuRoom:
    """The residents of all devices by artifact. `find` and `lend` are for any thread, the rest for
    the event loop."""

    def __init__(
        self,
        pool: CudaPool,
        reporter: Reporter,
        follower: Follower,
        life: Life,
        *,
        wait_s: float,
    ) -> None:
        self.pool = pool
        self._reporter = reporter
        self._follower = follower
        self._life = life
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._residents: dict[ArtifactId, GpuResident] = {}

    def find(self, artifact: ArtifactId) -> GpuResident | None:
        """The resident, complete or not."""
        with self._lock:
            return self._residents.get(artifact)

    def find_ready(self, artifact: ArtifactId) -> GpuResident | None:
        """The resident if all its bytes are there."""
        found = self.find(artifact)
        return found if found is not None and found.is_ready else None

    def all(self) -> tuple[GpuResident, ...]:
        """All residents."""
        with self._lock:
            return tuple(self._residents.values())

    async def add(self, artifact: Artifact) -> GpuResident:
        """A place for an artifact. Without room it reports pressure and waits. Raises
        OutOfCapacity."""
        size_bytes = artifact.manifest.size_bytes
        if not self.pool.devices:
            raise OutOfCapacity(
                f"Node {self._life.node} keeps nothing in the memory of a GPU.",
                hint="Set TENSORCAST_GPU_BYTES for its mover; `tcctl doctor` says what it sees.",
                node=self._life.node,
                retryable=False,
            )
        self.pool.check_possible(size_bytes)
        clock = asyncio.get_running_loop().time
        deadline, is_told = clock() + self._wait_s, False
        while self.pool.shortfall(size_bytes) and clock() < deadline:
            if not is_told:
                is_told = True
                await self._report_pressure(self.pool.shortfall(size_bytes))
            await asyncio.sleep(LOOK_AGAIN_S)
        segment = await asyncio.to_thread(self.pool.allocate, size_bytes)
        resident = GpuResident(artifact, segment, self._life.node)
        with self._lock:
            self._residents[artifact.id] = resident
        return resident

    async def _report_pressure(self, needed_bytes: int) -> None:
        view = self._follower.view
        ready = sorted((r for r in self.all() if r.is_ready), key=lambda r: r.used_at)
        free = [r.replica for r in ready if not is_claimed(view, r.id, self._life.node)]
        report = ReportPressure(
            node=self._life.node,
            epoch=self._life.epoch,
            tier=Tier.GPU,
            needed_bytes=needed_bytes,
            candidates=tuple(free),
        )
        await self._reporter.report([report], None)

    def drop(self, resident: GpuResident) -> None:
        """Gives its memory back, as soon as nobody borrows or reads it. Safe to repeat."""
        with self._lock:
            if self._residents.get(resident.id) is resident:
                del self._residents[resident.id]
            if resident.is_dropped:
                return
            resident.is_dropped = True
            is_free = not resident.borrowers
        if is_free:
            self.pool.release(resident.segment)

    @contextmanager
    def borrow(self, resident: GpuResident) -> Iterator[GpuResident]:
        """Keeps the memory while the context lasts, also of one that is dropped. Raises NotFound
        when it was dropped before."""
        with self._lock:
            if resident.is_dropped:
                raise NotFound(f"Artifact {resident.id} was dropped.", artifact=resident.id)
            resident.borrowers += 1
        try:
            yield resident
        finally:
            with self._lock:
                resident.borrowers -= 1
                is_left = resident.is_dropped and not resident.borrowers
            if is_left:
                self.pool.release(resident.segment)

    @contextmanager
    def lend(self, artifact: ArtifactId) -> Iterator[Lending]:
        """For adapters of peers. Raises NotFound."""
        resident = self.find(artifact)
        if resident is None:
            raise NotFound(f"No GPU here has artifact {artifact}.", artifact=artifact)
        with self.borrow(resident):
            yield Lending(
                fd=-1,
                layout=Layout.whole(resident.manifest.size_bytes),
                chunk_bytes=resident.manifest.chunk_bytes,
                chunks=lambda: resident.chunks,
                bell=resident.bell,
                memory=resident.segment,
            )
