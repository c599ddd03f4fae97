"""Images of segments on disk, for the time between a graceful stop and the next start."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tensorcast.movers.core.digests import chunk_digest
from tensorcast.movers.durable import (
    TEMPORARY_PREFIX,
    explained,
    remove_leftovers,
    sync_folder,
    write_all,
)
from tensorcast.movers.memory.verify import verify_chunks
from tensorcast.schema.chunks import ChunkSet, chunk_range
from tensorcast.schema.errors import Corrupt, NotFound
from tensorcast.schema.ids import ArtifactId
from tensorcast.schema.tensors import Manifest

_SUFFIX = ".image"


def write_image(folder: Path, artifact: ArtifactId, manifest: Manifest, memory: memoryview) -> None:
    """Writes the byte space that `memory` begins with, durably, whole or not at all. Blocks.
    Raises OutOfCapacity (and leaves nothing behind), PermissionDenied or Unavailable."""
    write_bytes(folder, artifact, memory[: manifest.size_bytes])


def write_bytes(folder: Path, name: str, content: memoryview) -> None:
    """As `write_image`, for bytes that are no artifact yet."""
    path = folder / f"{name}{_SUFFIX}"
    temporary = folder / f"{TEMPORARY_PREFIX}{path.name}"
    with explained(path, "write"):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            _write(temporary, content)
            temporary.rename(path)
            sync_folder(folder)
        finally:
            temporary.unlink(missing_ok=True)


def _write(path: Path, content: memoryview) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        if content.nbytes:
            os.posix_fallocate(fd, 0, content.nbytes)
        write_all(fd, content, 0)
        os.fsync(fd)
    finally:
        os.close(fd)


def read_image(
    folder: Path, artifact: ArtifactId, manifest: Manifest, memory: memoryview
) -> ChunkSet:
    """Fills `memory` from the image; returns the chunks that match their digests (all, unless the
    file is damaged). Blocks. Raises NotFound."""
    target = memory[: manifest.size_bytes]
    read_bytes(folder, artifact, target)
    return verify_chunks(target, manifest)


def read_bytes(folder: Path, name: str, target: memoryview) -> None:
    """Fills `target` from what `write_bytes` wrote, as far as it goes. Blocks. Raises NotFound."""
    path = folder / f"{name}{_SUFFIX}"
    with explained(path, "read"):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise NotFound(f"There is no image of {name}.") from error
        try:
            at = 0
            while at < target.nbytes and (read := os.preadv(fd, [target[at:]], at)):
                at += read
        finally:
            os.close(fd)


def list_images(folder: Path) -> tuple[ArtifactId, ...]:
    """The artifacts that have an image. Removes what a crash left half-written."""
    with explained(folder, "read"):
        remove_leftovers(folder)
        names = sorted(path.name for path in folder.glob(f"*{_SUFFIX}"))
    return tuple(ArtifactId(name.removesuffix(_SUFFIX)) for name in names)


def remove_image(folder: Path, artifact: str) -> None:
    """Forgets an image. Safe to repeat."""
    with explained(folder, "remove from"):
        (folder / f"{artifact}{_SUFFIX}").unlink(missing_ok=True)


def verify_image(folder: Path, artifact: ArtifactId, manifest: Manifest) -> ChunkSet:
    """The chunks of an image that match their digests, read one by one. Blocks. Raises
    NotFound."""
    with explained(folder, "read"), open_image(folder, artifact) as fd:
        return ChunkSet.of(
            chunk
            for chunk in range(manifest.chunks_total)
            if chunk_digest(_read_chunk(fd, manifest, chunk)) == manifest.digest(chunk)
        )


def _read_chunk(fd: int, manifest: Manifest, chunk: int) -> bytes:
    where = chunk_range(chunk, manifest.size_bytes, manifest.chunk_bytes)
    return os.pread(fd, where.end - where.offset, where.offset)


@contextmanager
def map_image(folder: Path, artifact: ArtifactId, manifest: Manifest) -> Iterator[memoryview]:
    """The byte space of an image that was verified, without a copy. Raises NotFound, or Corrupt
    when it is too short."""
    with explained(folder, "read"), open_image(folder, artifact) as fd:
        if os.fstat(fd).st_size < manifest.size_bytes:
            raise Corrupt(f"The image of {artifact} is too short.", artifact=artifact)
        with (
            mmap.mmap(fd, manifest.size_bytes, prot=mmap.PROT_READ) as mapped,
            memoryview(mapped) as content,
        ):
            yield content


@contextmanager
def open_image(folder: Path, artifact: ArtifactId) -> Iterator[int]:
    """A descriptor of the image, readable until the context ends, even when it is removed. Raises
    NotFound."""
    try:
        fd = os.open(folder / f"{artifact}{_SUFFIX}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NotFound(f"There is no image of {artifact}.", artifact=artifact) from error
    try:
        yield fd
    finally:
        os.close(fd)
