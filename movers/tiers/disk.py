"""The disk of a node: each artifact is a folder with a safetensors file that any tool can open.

`<folder>/<artifact>/model.safetensors` holds the tensors as `core/file_plan.py` says, and
`manifest.json` the manifest. A folder appears by one rename after its files are durable, so a
crash leaves either all of it or a leftover that `list` removes. Nothing stays in the page cache:
the node's memory is for replicas.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tensorcast.movers.core.file_plan import FilePlan, plan_file
from tensorcast.movers.durable import (
    TEMPORARY_PREFIX,
    explained,
    remove_leftovers,
    sync_folder,
    write_file,
)
from tensorcast.movers.model_file import (
    MANIFEST,
    MODEL,
    Arrived,
    Record,
    blocks_of,
    copies_of,
    find_damage,
    read_chunks,
)
from tensorcast.movers.tiers.base import Held, OpenFile
from tensorcast.schema.chunks import ByteRange, ChunkSet
from tensorcast.schema.errors import Corrupt, NotFound, TensorCastError
from tensorcast.schema.ids import ArtifactId
from tensorcast.schema.tensors import Manifest, check_manifest
from tensorcast.storage.crew import choose_copies, choose_reads, spread
from tensorcast.storage.reader import FileReader
from tensorcast.storage.spans import BLOCK_BYTES
from tensorcast.storage.writer import FileWriter


class DiskTier:
    """Replicas below `folder`, which is made if need be. Satisfies `tiers.base.Tier`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def persist(self, artifact: ArtifactId, manifest: Manifest, memory: memoryview) -> None:
        """Stores the byte space that `memory` begins with, durably, whole or not at all. Does
        nothing when it is there already. Raises OutOfCapacity (nothing is left behind),
        PermissionDenied or Unavailable."""
        plan = plan_file(manifest.index, manifest.size_bytes)
        path = self.folder / artifact
        with explained(path, "write"):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._is_whole(path, plan):
                return
            temporary = self.folder / f"{TEMPORARY_PREFIX}{artifact}-{secrets.token_hex(4)}"
            try:
                temporary.mkdir(mode=0o700)
                _write_model(temporary / MODEL, plan, memory)
                record = Record(artifact=artifact, manifest=manifest)
                write_file(temporary / MANIFEST, msgspec.json.encode(record))
                sync_folder(temporary)
                _replace(temporary, path)
                sync_folder(self.folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)

    def load(
        self,
        artifact: ArtifactId,
        manifest: Manifest,
        memory: memoryview,
        *,
        missing: ChunkSet | None = None,
        arrived: Arrived | None = None,
    ) -> ChunkSet:
        """Fills `memory` with the byte space, or with its chunks in `missing`; returns those of
        them that match their digests (all, unless the file is damaged). Raises NotFound, or Corrupt
        when it is not this artifact."""
        with self._open_reader(artifact, manifest) as (reader, opened):
            return read_chunks(
                reader,
                opened.layout,
                manifest,
                memory,
                chunks=ChunkSet.full(manifest.chunks_total) if missing is None else missing,
                run_bytes=BLOCK_BYTES,
                threads=_choose_threads(reader),
                arrived=arrived,
            )

    def verify(self, artifact: ArtifactId, manifest: Manifest) -> ChunkSet:
        """The chunks that do not match their digests: none, unless the file is damaged. Raises as
        `load`."""
        with self._open_reader(artifact, manifest) as (reader, opened):
            return find_damage(
                reader,
                opened.layout,
                manifest,
                run_bytes=BLOCK_BYTES,
                threads=_choose_threads(reader),
            )

    def remove(self, artifact: ArtifactId) -> None:
        """Forgets an artifact, durably. Safe to repeat."""
        path = self.folder / artifact
        with explained(path, "remove"):
            if not path.exists():
                return
            _set_aside(path)
            sync_folder(self.folder)

    @contextlib.contextmanager
    def open_ranges(self, artifact: ArtifactId, manifest: Manifest) -> Iterator[OpenFile]:
        """The open file and where the byte space lies in it. It can be read until the context
        ends, even if the artifact is removed. Raises as `load`."""
        plan = plan_file(manifest.index, manifest.size_bytes)
        path = self.folder / artifact / MODEL
        with explained(path, "read"):
            fd = _open(path, artifact, plan)
        try:
            yield OpenFile(fd=fd, layout=plan.layout)
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _open_reader(
        self, artifact: ArtifactId, manifest: Manifest
    ) -> Iterator[tuple[FileReader, OpenFile]]:
        path = self.folder / artifact
        with (
            explained(path, "read"),
            self.open_ranges(artifact, manifest) as opened,
            contextlib.closing(FileReader(opened.fd, str(path / MODEL))) as reader,
        ):
            yield reader, opened

    def list(self) -> tuple[Held, ...]:
        """What is on the disk. Removes what a crash left half-written; skips folders that hold no
        whole artifact."""
        with explained(self.folder, "read"):
            if not self.folder.exists():
                return ()
            remove_leftovers(self.folder)
            found = (self._read_held(path) for path in sorted(self.folder.iterdir()))
            return tuple(held for held in found if held is not None)

    def _read_held(self, path: Path) -> Held | None:
        try:
            record = msgspec.json.decode((path / MANIFEST).read_bytes(), type=Record)
            check_manifest(record.manifest)
            plan = plan_file(record.manifest.index, record.manifest.size_bytes)
            if record.artifact != path.name or not self._is_whole(path, plan):
                return None
        except (OSError, msgspec.MsgspecError, TensorCastError):
            return None
        return Held(
            artifact=record.artifact, manifest=record.manifest, stored_bytes=plan.file_bytes
        )

    def _is_whole(self, path: Path, plan: FilePlan) -> bool:
        """Whether the file is there with the right head and size; its bytes are not read."""
        try:
            fd = os.open(path / MODEL, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            _check_file(fd, plan, path)
            return (path / MANIFEST).exists()
        except Corrupt:
            return False
        finally:
            os.close(fd)


def _choose_threads(reader: FileReader) -> int:
    """Each thread also digests what it has read, so a disk gets more of them than reads."""
    return choose_copies() if reader.is_cached() else choose_reads() + choose_copies()


def _write_model(path: Path, plan: FilePlan, memory: memoryview) -> None:
    """Writes the whole file, durably. Room is claimed first, so a full disk shows at once."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, plan.file_bytes)
        with contextlib.closing(FileWriter(fd)) as writer:

            def write_block(block: tuple[int, tuple[ByteRange, ...]]) -> None:
                position, places = block
                writer.write([memory[p.offset : p.end] for p in places], position)

            writer.write([memoryview(plan.head)], 0)
            spread(write_block, blocks_of(plan.layout), choose_reads())
            for position, piece in copies_of(plan, memory):
                writer.write([memoryview(piece)], position)
            writer.finish()
    finally:
        os.close(fd)


def _replace(temporary: Path, path: Path) -> None:
    """Puts the new folder in place of an old one that was not whole."""
    if path.exists():
        _set_aside(path)
    temporary.rename(path)


def _set_aside(path: Path) -> None:
    """Removes a folder in one step as seen by `list`, whatever is in it."""
    aside = path.with_name(f"{TEMPORARY_PREFIX}{path.name}-{secrets.token_hex(4)}")
    path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _open(path: Path, artifact: ArtifactId, plan: FilePlan) -> int:
    """Raises NotFound, Corrupt, OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NotFound(
            f"Artifact {artifact} is not on this node's disk.", artifact=artifact
        ) from error
    try:
        _check_file(fd, plan, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_file(fd: int, plan: FilePlan, path: Path) -> None:
    """Raises Corrupt unless size and head of the file are what the manifest makes of them."""
    is_right = os.fstat(fd).st_size == plan.file_bytes
    if not is_right or os.pread(fd, len(plan.head), 0) != plan.head:
        raise Corrupt(
            f"{path} is not what its manifest says.", hint="Remove it, and persist again."
        )
