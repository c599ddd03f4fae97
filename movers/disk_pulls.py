"""Pulling an artifact straight to this node's disk, through a small window of its memory.

So an artifact may be larger than all the memory of the node. Two windows take turns: while one is
filled from other nodes the other is written. Chunks are checked when they arrive, are served to
peers once they are in the file, and stay there after a fault or a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tensorcast.log.follower import Follower
from tensorcast.movers.core.file_plan import file_bytes
from tensorcast.movers.core.holdings import operation_making
from tensorcast.movers.disk_room import DiskRoom
from tensorcast.movers.locks import Locks
from tensorcast.movers.memory.memfd import SEGMENT_BYTES_STEP
from tensorcast.movers.memory.pool import Pool
from tensorcast.movers.partial import PartialFile, list_partial, remove_partial
from tensorcast.movers.pulls import Moved, Puller, counting_on
from tensorcast.movers.replicas import on_disk
from tensorcast.movers.reports import Life, Reporter
from tensorcast.movers.residents import DiskPull, Residents, Window
from tensorcast.movers.room import Room
from tensorcast.movers.threads import in_thread
from tensorcast.schema.aggregates.artifact import Artifact, ArtifactStatus
from tensorcast.schema.aggregates.replica import ReplicaStatus
from tensorcast.schema.chunks import ByteRange, ChunkSet, chunk_range
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import (
    Command,
    CompleteReplica,
    DropReplica,
    FillReplica,
    StartReplica,
)
from tensorcast.schema.errors import NotFound
from tensorcast.schema.ids import ArtifactId, EventId, NodeId, Tier
from tensorcast.schema.tensors import Manifest

WINDOW_BYTES_MAX: Final = 32 << 20
WINDOW_SHARE: Final = 8


class DiskPulls:
    """See the module. `folder` is the disk tier's."""

    def __init__(
        self,
        residents: Residents,
        pool: Pool,
        room: Room,
        disk_room: DiskRoom,
        folder: Path,
        puller: Puller,
        reporter: Reporter,
        follower: Follower,
        life: Life,
        disk_locks: Locks,
    ) -> None:
        self._residents = residents
        self._pool = pool
        self._room = room
        self._disk_room = disk_room
        self._folder = folder
        self._puller = puller
        self._reporter = reporter
        self._follower = follower
        self._life = life
        self._disk_locks = disk_locks
        self._idle_since: dict[ArtifactId, float] = {}

    async def materialize(
        self,
        artifact: ArtifactId,
        preferred: Sequence[NodeId],
        cause: EventId | None,
        drop_idle: Callable[[], Awaitable[None]],
    ) -> Moved:
        """Pulls what is missing on the disk. The caller holds the artifact's lock of the disk.
        Raises as `Fills.materialize`."""
        found = self._sealed(artifact)
        moved = Moved()
        if not self._residents.is_on_disk(artifact):
            self._puller.check_sources(found)
            moved = await self._fill(found, preferred, cause, drop_idle)
        await self._reporter.report([self._complete(found)], cause)
        return moved

    def _sealed(self, artifact: ArtifactId) -> Artifact:
        found = self._follower.view.artifacts.get(artifact)
        if found is None or found.status is not ArtifactStatus.SEALED:
            raise NotFound(f"There is no artifact {artifact} any more.", artifact=artifact)
        return found

    async def _fill(
        self,
        artifact: Artifact,
        preferred: Sequence[NodeId],
        cause: EventId | None,
        drop_idle: Callable[[], Awaitable[None]],
    ) -> Moved:
        size_bytes = await in_thread(file_bytes, artifact.manifest)
        more_bytes = max(0, size_bytes - self._residents.partial_bytes(artifact.id))
        async with self._disk_room.reserve(more_bytes):
            file = await in_thread(PartialFile, self._folder, artifact.id, artifact.manifest)
            self._residents.set_partial(artifact.id, size_bytes)
        try:
            pulling = DiskPull(artifact, file.fd, file.plan.layout)
            pulling.add(await in_thread(file.good_chunks))
            await self._report_start(pulling, cause)
            self._residents.begin_disk_pull(pulling)
            try:
                moved = await self._pull(pulling, file, preferred, cause, drop_idle)
            finally:
                self._residents.end_disk_pull(pulling)
            await in_thread(file.finish)
        finally:
            file.close()
        self._residents.set_on_disk(artifact.id, artifact.manifest)
        self._residents.set_partial(artifact.id, None)
        return moved

    # ---- the windows -----------------------------------------------------------------------

    async def _pull(
        self,
        pulling: DiskPull,
        file: PartialFile,
        preferred: Sequence[NodeId],
        cause: EventId | None,
        drop_idle: Callable[[], Awaitable[None]],
    ) -> Moved:
        """Window after window; the last one is written while the next one is filled."""
        manifest = pulling.manifest
        window_bytes = choose_window(self._pool.capacity_bytes, manifest.chunk_bytes)
        windows = list(cut_windows(pulling.missing, manifest, window_bytes))
        if not windows:
            return Moved()
        has_two = len(windows) > 1 and 2 * window_bytes <= self._pool.capacity_bytes
        wanted = window_bytes * (2 if has_two else 1)
        lent = await self._room.find(wanted, drop_idle)
        writing: asyncio.Task[None] | None = None
        moved = Moved()
        try:
            with lent.segment.memory[:wanted] as memory:
                halves = [memory[n : n + window_bytes] for n in range(0, len(memory), window_bytes)]
                try:
                    for number, (place, chunks) in enumerate(windows):
                        half = halves[number % len(halves)]
                        if len(halves) == 1 and writing is not None:
                            await writing
                        window = Window(pulling, chunks, half, place.offset)
                        with counting_on(moved):
                            moved = moved.plus(await self._puller.pull(window, preferred, cause))
                        if writing is not None:
                            await writing
                        writing = asyncio.ensure_future(self._write(pulling, file, window, cause))
                    assert writing is not None
                    await writing
                finally:
                    if writing is not None and not writing.done():
                        await asyncio.wait([writing])
                    for half in halves:
                        half.release()
        finally:
            self._pool.release(lent.segment)
        return moved

    async def _write(
        self, pulling: DiskPull, file: PartialFile, window: Window, cause: EventId | None
    ) -> None:
        manifest = pulling.manifest
        for first, stop in window.wanted.ranges:
            start = first * manifest.chunk_bytes
            end = chunk_range(stop - 1, manifest.size_bytes, manifest.chunk_bytes).end
            with window.memory[start - window.base_bytes : end - window.base_bytes] as content:
                await in_thread(file.write, ByteRange(start, end - start), content)
        pulling.add(window.wanted)
        await self._reporter.report([self._filled(pulling, window.wanted)], cause)

    # ---- what is told ----------------------------------------------------------------------

    async def _report_start(self, pulling: DiskPull, cause: EventId | None) -> None:
        commands: list[Command] = [
            StartReplica(
                replica=on_disk(pulling.id, self._life),
                artifact=pulling.id,
                node=self._life.node,
                tier=Tier.DISK,
                epoch=self._life.epoch,
                chunks_total=pulling.manifest.chunks_total,
            )
        ]
        if pulling.chunks.ranges:
            commands.append(self._filled(pulling, pulling.chunks))
        await self._reporter.report(commands, cause)

    def _filled(self, pulling: DiskPull, chunks: ChunkSet) -> FillReplica:
        replica = on_disk(pulling.id, self._life)
        return FillReplica(replica=replica, epoch=self._life.epoch, chunks=chunks)

    def _complete(self, artifact: Artifact) -> CompleteReplica:
        return CompleteReplica(
            replica=on_disk(artifact.id, self._life),
            artifact=artifact.id,
            node=self._life.node,
            tier=Tier.DISK,
            epoch=self._life.epoch,
            chunks_total=artifact.manifest.chunks_total,
        )

    # ---- what nobody finishes --------------------------------------------------------------

    async def find_partial(self) -> None:
        """Looks at what an earlier life left half-written. Used once, at the start."""
        for artifact, size_bytes in (await in_thread(list_partial, self._folder)).items():
            self._residents.set_partial(artifact, size_bytes)

    async def discard_idle(self, idle_s: float) -> None:
        """Drops half-written replicas that no open operation has wanted for `idle_s` seconds, and
        those of artifacts that were removed."""
        now, view = asyncio.get_running_loop().time(), self._follower.view
        for artifact in self._residents.partial():
            wanted = operation_making(view, artifact, self._life.node, Tier.DISK)
            if wanted or self._disk_locks.wanted(artifact):
                self._idle_since.pop(artifact, None)
            elif now - self._idle_since.setdefault(artifact, now) >= idle_s or _is_gone(
                view, artifact
            ):
                await self.discard(artifact)

    async def discard(self, artifact: ArtifactId) -> None:
        """Drops a half-written replica, unless somebody is writing it or waits for it."""
        if self._disk_locks.wanted(artifact) or not self._residents.partial_bytes(artifact):
            return
        self._idle_since.pop(artifact, None)
        async with self._disk_locks.alone(artifact):
            replica = on_disk(artifact, self._life)
            found = self._follower.view.replicas.get(replica)
            if found is not None and found.status is ReplicaStatus.FILLING:
                drop = DropReplica(replica=replica, epoch=self._life.epoch)
                await self._reporter.report([drop], None)
            await self.remove(artifact)

    async def remove(self, artifact: ArtifactId) -> None:
        """Removes the file of a half-written replica. The caller holds the artifact's lock of the
        disk."""
        if self._residents.partial_bytes(artifact):
            await in_thread(remove_partial, self._folder, artifact)
            self._residents.set_partial(artifact, None)


def _is_gone(view: ClusterView, artifact: ArtifactId) -> bool:
    found = view.artifacts.get(artifact)
    return found is None or found.status is not ArtifactStatus.SEALED


def choose_window(capacity_bytes: int, chunk_bytes: int) -> int:
    """The size of one of two windows: whole chunks, at least one, and a small share of the memory
    (an eighth, and 32 MiB at most)."""
    share = min(WINDOW_BYTES_MAX, capacity_bytes // WINDOW_SHARE)
    step = max(chunk_bytes, SEGMENT_BYTES_STEP // 2)
    return max(chunk_bytes, share // step * step)


def cut_windows(
    missing: ChunkSet, manifest: Manifest, window_bytes: int
) -> Iterator[tuple[ByteRange, ChunkSet]]:
    """The missing chunks by window: the range of the byte space that the window covers (it begins
    with the first missing chunk), and the chunks in it."""
    chunks_max = max(1, window_bytes // manifest.chunk_bytes)
    left = missing
    while left.ranges:
        first = left.ranges[0][0]
        stop = min(first + chunks_max, manifest.chunks_total)
        inside = left - (ChunkSet.full(manifest.chunks_total) - ChunkSet(((first, stop),)))
        end = chunk_range(stop - 1, manifest.size_bytes, manifest.chunk_bytes).end
        start = first * manifest.chunk_bytes
        yield ByteRange(start, end - start), inside
        left = left - ChunkSet(((first, stop),))
