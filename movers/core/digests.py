"""Checking bytes against the XXH3-64 digests of a manifest. Pure; xxhash releases the GIL."""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

from tensorcast.schema.chunks import ChunkSet, chunk_range
from tensorcast.schema.tensors import Manifest


def chunk_digest(content: memoryview | bytes) -> bytes:
    """The XXH3-64 digest of one chunk: 8 bytes, big-endian."""
    return xxhash.xxh3_64_digest(content)


def matching_chunks(memory: memoryview, manifest: Manifest, chunks: Iterable[int]) -> ChunkSet:
    """Those of `chunks` whose bytes in `memory` (the byte space from 0) match their digests."""
    return ChunkSet.of(c for c in chunks if matches(memory, manifest, c))


def matches(memory: memoryview, manifest: Manifest, chunk: int) -> bool:
    """Whether one chunk in `memory` (the byte space from 0) matches its digest."""
    where = chunk_range(chunk, manifest.size_bytes, manifest.chunk_bytes)
    return chunk_digest(memory[where.offset : where.end]) == manifest.digest(chunk)
