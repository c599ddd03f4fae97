"""A replica on its way to the disk: its file is there, and fills as chunks come.

`<folder>/.filling-<artifact>/model.safetensors` has its final size and head from the beginning.
What is in it is told by the digests alone, so nothing else must be kept to go on after a crash. The
folder gets its final name by one rename when every chunk is in it and on the disk.
"""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tensorcast.movers.core.digests import chunk_digest
from tensorcast.movers.core.file_plan import contiguous_bytes, plan_file
from tensorcast.movers.durable import (
    TEMPORARY_PREFIX,
    explained,
    sync_folder,
    write_all,
    write_file,
)
from tensorcast.movers.model_file import MANIFEST, MODEL
from tensorcast.schema.chunks import ByteRange, ChunkSet, chunk_range
from tensorcast.schema.ids import ArtifactId, is_artifact_id
from tensorcast.schema.tensors import Manifest

PREFIX = ".filling-"
_IOVECS_MAX = 1024


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """What `manifest.json` holds, as the disk tier reads it."""

    artifact: ArtifactId
    manifest: Manifest


class PartialFile:
    """The open file. All methods but `write` and `contains` block for long; one at a time.
    `is_new`: nothing of it was there before. Raises OutOfCapacity, PermissionDenied or Unavailable
    when the storage does."""

    def __init__(self, folder: Path, artifact: ArtifactId, manifest: Manifest) -> None:
        self.plan = plan_file(manifest.index, manifest.size_bytes)
        self._folder = folder
        self._artifact = artifact
        self._manifest = manifest
        self._place = folder / f"{PREFIX}{artifact}"
        with explained(self._place, "write"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._adopt()
            self.fd = self._open()

    def _adopt(self) -> None:
        """What lies under the final name is damaged, or nobody would want it again: what is good
        of it need not come again."""
        final = self._folder / self._artifact
        if final.exists() and not self._place.exists():
            final.rename(self._place)
        self._place.mkdir(exist_ok=True, mode=0o700)

    def _open(self) -> int:
        fd = os.open(self._place / MODEL, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self.is_new = os.fstat(fd).st_size != self.plan.file_bytes
            if self.is_new:
                os.ftruncate(fd, 0)
                os.posix_fallocate(fd, 0, self.plan.file_bytes)
            write_all(fd, self.plan.head, 0)
            return fd
        except BaseException:
            os.close(fd)
            raise

    def good_chunks(self) -> ChunkSet:
        """The chunks that are in the file and match."""
        if self.is_new:
            return ChunkSet()
        manifest = self._manifest
        buffer = memoryview(bytearray(manifest.chunk_bytes))
        good = []
        with explained(self._place, "read"):
            for chunk in range(manifest.chunks_total):
                where = chunk_range(chunk, manifest.size_bytes, manifest.chunk_bytes)
                target = buffer[: where.size]
                self._read(where, target)
                if chunk_digest(target) == manifest.digest(chunk):
                    good.append(chunk)
        return ChunkSet.of(good)

    def _read(self, where: ByteRange, target: memoryview) -> None:
        for piece, part in self._cut(where, target):
            if piece is None:
                part[:] = bytes(len(part))
            else:
                os.preadv(self.fd, [part], piece)

    def _cut(self, where: ByteRange, memory: memoryview) -> Iterator[tuple[int | None, memoryview]]:
        """The parts of a range in memory, each with its position in the file."""
        at = 0
        for piece in self.plan.layout.locate(where):
            yield piece.position, memory[at : at + piece.size]
            at += piece.size

    def write(self, where: ByteRange, content: memoryview) -> None:
        """Writes a range of the byte space, and waits until the disk has it: so no more than a
        window of it ever waits in the page cache."""
        with explained(self._place, "write"):
            pending: list[memoryview] = []
            start = 0
            for position, part in self._cut(where, content):
                if position is not None:
                    start = start if pending else position
                    pending.append(part)
            # What lies in one range of the byte space lies in one range of the file.
            for n in range(0, len(pending), _IOVECS_MAX):
                start = _write_parts(self.fd, pending[n : n + _IOVECS_MAX], start)
            os.fdatasync(self.fd)

    def finish(self) -> None:
        """Every chunk is there: the file becomes the artifact's replica, durably."""
        with explained(self._place, "write"):
            self._write_copies()
            record = _Record(artifact=self._artifact, manifest=self._manifest)
            write_file(self._place / MANIFEST, msgspec.json.encode(record))
            os.fsync(self.fd)
            sync_folder(self._place)
            final = self._folder / self._artifact
            if final.exists():
                shutil.rmtree(final)
            self._place.rename(final)
            sync_folder(self._folder)

    def _write_copies(self) -> None:
        """The tensors that are stored a second time are made from what the file has."""
        if not self.plan.copies:
            return
        with mmap.mmap(self.fd, self.plan.file_bytes, prot=mmap.PROT_READ) as mapping:
            memory = memoryview(mapping)
            for position, spec in self.plan.copies:
                (piece,) = self.plan.layout.locate(spec.extent) if spec.size_bytes else (None,)
                if piece is None or piece.position is None:
                    continue
                placed = msgspec.structs.replace(spec, offset=piece.position)
                for part in contiguous_bytes(placed, memory):
                    position = write_all(self.fd, part, position)
                    if isinstance(part, memoryview):
                        part.release()
            memory.release()

    def close(self) -> None:
        """Leaves the file as it is. Safe to repeat."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _write_parts(fd: int, parts: list[memoryview], position: int) -> int:
    """Writes the parts one after the other; returns the position behind them."""
    while parts:
        written = os.pwritev(fd, parts, position)
        position += written
        while parts and written >= len(parts[0]):
            written -= len(parts.pop(0))
        if written:
            parts[0] = parts[0][written:]
    return position


def list_partial(folder: Path) -> dict[ArtifactId, int]:
    """The half-written replicas of a folder, with the bytes that each takes."""
    found: dict[ArtifactId, int] = {}
    for path in folder.glob(f"{PREFIX}*"):
        name = path.name.removeprefix(PREFIX)
        model = path / MODEL
        if is_artifact_id(name):
            found[ArtifactId(name)] = model.stat().st_size if model.exists() else 0
    return found


def remove_partial(folder: Path, artifact: ArtifactId) -> None:
    """Removes a half-written replica. Safe to repeat."""
    path = folder / f"{PREFIX}{artifact}"
    with explained(path, "remove"):
        if path.exists():
            aside = folder / f"{TEMPORARY_PREFIX}{artifact}-removed"
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
