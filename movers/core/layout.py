"""Where the bytes of an artifact's byte space lie behind a descriptor. Pure.

In a segment they lie as they are; in a safetensors file the gaps between tensors are left out, so
one range of the byte space becomes several pieces.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import msgspec

from tensorcast.schema.chunks import ByteRange
from tensorcast.schema.tensors import Index


class Piece(msgspec.Struct, frozen=True):
    """`size` bytes from `position` of the descriptor on; position None: zeros, not stored."""

    position: int | None
    size: int


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Stored parts of a byte space of `size_bytes`: (offset in the space, size, position behind
    the descriptor), sorted and disjoint. What lies between them is zero."""

    size_bytes: int
    parts: tuple[tuple[int, int, int], ...]

    @classmethod
    def whole(cls, size_bytes: int, position: int = 0) -> Layout:
        """The byte space as it is, from `position` on: a segment."""
        return cls(size_bytes=size_bytes, parts=((0, size_bytes, position),) if size_bytes else ())

    def locate(self, wanted: ByteRange) -> Iterator[Piece]:
        """The pieces of a range of the byte space, in order; together they have its size."""
        at = wanted.offset
        first = max(0, bisect_right(self.parts, at, key=lambda part: part[0]) - 1)
        for offset, size, position in self.parts[first:]:
            if offset >= wanted.end:
                break
            if offset + size <= at:
                continue
            if at < offset:
                yield Piece(None, offset - at)
                at = offset
            taken = min(offset + size, wanted.end) - at
            yield Piece(position + at - offset, taken)
            at += taken
        if at < wanted.end:
            yield Piece(None, wanted.end - at)


def gaps(index: Index, size_bytes: int) -> tuple[ByteRange, ...]:
    """The bytes of the space that belong to no tensor; they must be zero."""
    found: list[ByteRange] = []
    at = 0
    for extent in sorted(spec.extent for spec in index):
        if extent.offset > at:
            found.append(ByteRange(at, extent.offset - at))
        at = max(at, extent.end)
    if at < size_bytes:
        found.append(ByteRange(at, size_bytes - at))
    return tuple(found)
