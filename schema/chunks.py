"""Chunk arithmetic: an artifact's byte space is cut into equal chunks, the unit of verification,
of resuming and of serving from a replica that is still filling."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

CHUNK_BYTES_MIN = 1 << 20
CHUNKS_MAX = 16384

ChunkCount = Annotated[int, Meta(ge=0, le=CHUNKS_MAX)]


class ByteRange(msgspec.Struct, frozen=True, order=True, gc=False):
    """`size` bytes from `offset` on."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size


def choose_chunk_bytes(size_bytes: int) -> int:
    """The chunk size of an artifact: the smallest power of two, at least 1 MiB, that gives at
    most 16,384 chunks (so the digests of any artifact fit into one event)."""
    chunk = CHUNK_BYTES_MIN
    while size_bytes > chunk * CHUNKS_MAX:
        chunk *= 2
    return chunk


def count_chunks(size_bytes: int, chunk_bytes: int) -> int:
    """How many chunks `size_bytes` take; an empty artifact has none."""
    return -(-size_bytes // chunk_bytes)


def chunk_range(chunk: int, size_bytes: int, chunk_bytes: int) -> ByteRange:
    """The bytes of one chunk; the last one may be short."""
    offset = chunk * chunk_bytes
    return ByteRange(offset, min(chunk_bytes, size_bytes - offset))


class ChunkSet(msgspec.Struct, frozen=True, gc=False):
    """A set of chunk numbers as sorted, disjoint, non-touching half-open ranges.

    Raises ValueError for any other ranges, also when it comes off the wire.
    """

    ranges: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        last = -1
        for start, stop in self.ranges:
            if not last < start < stop <= CHUNKS_MAX:
                raise ValueError(f"chunk range {start}..{stop} is out of order or out of bounds")
            last = stop

    @classmethod
    def of(cls, chunks: Iterable[int]) -> ChunkSet:
        """The set of the given chunk numbers."""
        return cls.merge((chunk, chunk + 1) for chunk in chunks)

    @classmethod
    def full(cls, count: int) -> ChunkSet:
        """The set of all chunks 0 .. count-1."""
        return cls(((0, count),)) if count else cls()

    @classmethod
    def merge(cls, ranges: Iterable[tuple[int, int]]) -> ChunkSet:
        """The union of half-open ranges in any order."""
        merged: list[tuple[int, int]] = []
        for start, stop in sorted(r for r in ranges if r[0] < r[1]):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
            else:
                merged.append((start, stop))
        return cls(tuple(merged))

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.ranges)

    def __iter__(self) -> Iterator[int]:
        for start, stop in self.ranges:
            yield from range(start, stop)

    def __contains__(self, chunk: object) -> bool:
        return isinstance(chunk, int) and any(a <= chunk < b for a, b in self.ranges)

    def __or__(self, other: ChunkSet) -> ChunkSet:
        return ChunkSet.merge((*self.ranges, *other.ranges))

    def __sub__(self, other: ChunkSet) -> ChunkSet:
        left: list[tuple[int, int]] = []
        for start, stop in self.ranges:
            for cut_start, cut_stop in other.ranges:
                if cut_stop <= start:
                    continue
                if cut_start >= stop:
                    break
                if start < cut_start:
                    left.append((start, cut_start))
                start = max(start, cut_stop)
            if start < stop:
                left.append((start, stop))
        return ChunkSet(tuple(left))

    def __and__(self, other: ChunkSet) -> ChunkSet:
        return self - (self - other)
