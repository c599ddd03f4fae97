"""The disk of a node: each artifact is a folder with a safetensors file that any tool can open.

`<folder>/<artifact>/model.safetensors` holds the tensors as `core/file_plan.py` says, and
`manifest.json` the manifest. A folder appears by one rename after its files are durable, so a
crash leaves either all of it or a leftover that `list` removes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from tensorcast.movers.core.digests import chunk_digest, matches
from tensorcast.movers.core.file_plan import FilePlan, contiguous_bytes, plan_file
from tensorcast.movers.durable import (
    TEMPORARY_PREFIX,
    explained,
    remove_leftovers,
    sync_folder,
    write_all,
    write_file,
)
from tensorcast.movers.pages import prefault
from tensorcast.movers.tiers.base import Held, OpenFile
from tensorcast.schema.chunks import ByteRange, ChunkSet, chunk_range
from tensorcast.schema.errors import Corrupt, NotFound, TensorCastError
from tensorcast.schema.ids import ArtifactId
from tensorcast.schema.tensors import Manifest, check_manifest

MODEL = "model.safetensors"
MANIFEST = "manifest.json"
THREADS = 4
_IOVECS_MAX = 1024
_COPY_BYTES = 1 << 20


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """What `manifest.json` holds."""

    artifact: ArtifactId
    manifest: Manifest


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
                record = _Record(artifact=artifact, manifest=manifest)
                write_file(temporary / MANIFEST, msgspec.json.encode(record))
                sync_folder(temporary)
                _replace(temporary, path)
                sync_folder(self.folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)

    def load(self, artifact: ArtifactId, manifest: Manifest, memory: memoryview) -> ChunkSet:
        """Fills `memory` with the byte space; returns the chunks that match their digests (all,
        unless the file is damaged). Raises NotFound, or Corrupt when it is not this artifact."""
        reading = explained(self.folder / artifact, "read")
        with reading, self.open_ranges(artifact, manifest) as opened:

            def load_chunk(chunk: int) -> bool:
                where = chunk_range(chunk, manifest.size_bytes, manifest.chunk_bytes)
                target = memory[where.offset : where.end]
                prefault(target)
                return _is_read(opened, where, target) and matches(memory, manifest, chunk)

            return _filter_chunks(manifest, load_chunk)

    def verify(self, artifact: ArtifactId, manifest: Manifest) -> ChunkSet:
        """The chunks that do not match their digests: none, unless the file is damaged. Raises as
        `load`."""
        scratch = threading.local()
        reading = explained(self.folder / artifact, "read")
        with reading, self.open_ranges(artifact, manifest) as opened:

            def is_damaged(chunk: int) -> bool:
                where = chunk_range(chunk, manifest.size_bytes, manifest.chunk_bytes)
                if not hasattr(scratch, "buffer"):
                    scratch.buffer = memoryview(bytearray(manifest.chunk_bytes))
                target = scratch.buffer[: where.size]
                is_read = _is_read(opened, where, target)
                return not is_read or chunk_digest(target) != manifest.digest(chunk)

            return _filter_chunks(manifest, is_damaged)

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
            record = msgspec.json.decode((path / MANIFEST).read_bytes(), type=_Record)
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


def _write_model(path: Path, plan: FilePlan, memory: memoryview) -> None:
    """Writes the whole file, durably. Room is claimed first, so a full disk shows at once."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, plan.file_bytes)
        write_all(fd, plan.head, 0)
        for offset, size, position in plan.layout.parts:
            write_all(fd, memory[offset : offset + size], position)
        for position, spec in plan.copies:
            _write_pieces(fd, contiguous_bytes(spec, memory), position)
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_pieces(fd: int, pieces: Iterator[memoryview | bytes], position: int) -> None:
    """Writes many small pieces as few large ones."""
    gathered = bytearray()
    for piece in pieces:
        gathered += piece
        if len(gathered) >= _COPY_BYTES:
            position = write_all(fd, bytes(gathered), position)
            gathered.clear()
    write_all(fd, bytes(gathered), position)


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


def _filter_chunks(manifest: Manifest, test: Callable[[int], bool]) -> ChunkSet:
    """The chunks that pass a test which several threads run."""
    chunks = range(manifest.chunks_total)
    with ThreadPoolExecutor(THREADS) as threads:
        passed = threads.map(test, chunks)
        return ChunkSet.of(chunk for chunk, has in zip(chunks, passed, strict=True) if has)


def _is_read(opened: OpenFile, wanted: ByteRange, target: memoryview) -> bool:
    """Reads a range; False when the disk cannot: what cannot be read is as good as damaged."""
    try:
        read_range(opened, wanted, target)
    except OSError:
        return False
    return True


def read_range(opened: OpenFile, wanted: ByteRange, target: memoryview) -> None:
    """Reads a range of the byte space into `target` of the same size; gaps become zero. Bytes
    that the file lacks stay as they are (their digest will not match). Raises OSError."""
    pending: list[memoryview] = []
    start: int | None = None
    at = 0
    for piece in opened.layout.locate(wanted):
        part = target[at : at + piece.size]
        at += piece.size
        if piece.position is None:
            part[:] = bytes(piece.size)
            continue
        start = piece.position if start is None else start
        pending.append(part)
    # What lies in one range of the byte space lies in one range of the file, without the gaps.
    for n in range(0, len(pending), _IOVECS_MAX):
        batch = pending[n : n + _IOVECS_MAX]
        start = _read_all(opened.fd, batch, start or 0)


def _read_all(fd: int, targets: list[memoryview], position: int) -> int:
    """Fills all targets from one range of a file; returns the position behind it."""
    while targets:
        got = os.preadv(fd, targets, position)
        if not got:
            break
        position += got
        while targets and got >= targets[0].nbytes:
            got -= targets.pop(0).nbytes
        if got:
            targets[0] = targets[0][got:]
    return position
