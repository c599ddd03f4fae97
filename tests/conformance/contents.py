"""Real bytes with a manifest, for tests of transports and tiers."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator

from tensorcast.movers.core.digests import chunk_digest
from tensorcast.movers.core.layout import Layout, gaps
from tensorcast.movers.transports.base import Bell, Lending
from tensorcast.schema.chunks import ChunkSet, choose_chunk_bytes, count_chunks
from tensorcast.schema.errors import NotFound
from tensorcast.schema.ids import ArtifactId
from tensorcast.schema.tensors import Index, Manifest, TensorSpec, lay_out

MIB = 1 << 20


def plain_index(size_bytes: int) -> Index:
    """One tensor that takes the whole space."""
    return (TensorSpec(name="t", dtype="U8", shape=(size_bytes,), offset=0),)


def odd_index() -> tuple[Index, int]:
    """Tensors of odd sizes with gaps between them: (index, size in bytes)."""
    return lay_out(
        [
            ("a", "F32", (100, 3)),
            ("b.weight", "BF16", (300_001,)),
            ("scalar", "F64", ()),
            ("none", "I64", (0, 7)),
            ("c", "U8", (1_234_567,)),
            ("packed", "F4", (10, 6)),
            ("d", "BOOL", (9,)),
        ]
    )


def manifest_of(index: Index, content: bytes | memoryview) -> Manifest:
    """The manifest of a byte space."""
    size, view = len(content), memoryview(content)
    chunk = choose_chunk_bytes(size)
    parts = [view[n * chunk : (n + 1) * chunk] for n in range(count_chunks(size, chunk))]
    digests = b"".join(chunk_digest(part) for part in parts)
    return Manifest(index=index, size_bytes=size, chunk_bytes=chunk, digests=digests)


def make_content(index: Index, size_bytes: int) -> bytearray:
    """Random bytes in the tensors, zeros in the gaps."""
    content = bytearray(os.urandom(min(size_bytes, 1 << 24)))
    while len(content) < size_bytes:
        content += content[: size_bytes - len(content)]
    for gap in gaps(index, size_bytes):
        content[gap.offset : gap.end] = bytes(gap.size)
    return content


class Shelf:
    """A provider that lends artifacts from memfds; `hold` changes what it has while it lends."""

    def __init__(self) -> None:
        self.fds: dict[ArtifactId, int] = {}
        self.memory: dict[ArtifactId, memoryview] = {}
        self.manifests: dict[ArtifactId, Manifest] = {}
        self.chunks: dict[ArtifactId, ChunkSet] = {}
        self.bell = Bell()
        self.lent = 0

    def put(self, artifact: ArtifactId, manifest: Manifest, content: bytes | bytearray) -> None:
        fd = os.memfd_create("shelf", os.MFD_CLOEXEC)
        os.truncate(fd, len(content))
        at = 0
        while at < len(content):
            at += os.pwrite(fd, memoryview(content)[at : at + (8 << 20)], at)
        self.fds[artifact] = fd
        self.memory[artifact] = memoryview(mmap.mmap(fd, len(content)))
        self.manifests[artifact] = manifest
        self.chunks[artifact] = ChunkSet.full(manifest.chunks_total)

    def hold(self, artifact: ArtifactId, chunks: ChunkSet) -> None:
        """From now on these chunks may be served."""
        self.chunks[artifact] = chunks
        self.bell.ring()

    @contextlib.contextmanager
    def lend(self, artifact: ArtifactId) -> Iterator[Lending]:
        if artifact not in self.fds:
            raise NotFound(f"Artifact {artifact} is not here.")
        manifest = self.manifests[artifact]
        self.lent += 1
        try:
            yield Lending(
                fd=self.fds[artifact],
                layout=Layout.whole(manifest.size_bytes),
                chunk_bytes=manifest.chunk_bytes,
                chunks=lambda: self.chunks[artifact],
                bell=self.bell,
                memory=self.memory[artifact],
            )
        finally:
            self.lent -= 1

    def close(self) -> None:
        for fd in self.fds.values():
            os.close(fd)
        self.fds.clear()
