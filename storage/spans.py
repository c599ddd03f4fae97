"""Which bytes of a file belong where in memory, and how they are cut into reads. Pure.

A read takes one range of the file and scatters it: what is wanted goes straight to its place, small
gaps between are read and thrown away (a disk reads whole pages anyway), large gaps are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

BLOCK_BYTES: Final = 2 << 20
"""What one read takes. A power of two."""
GAP_BYTES_MAX: Final = 32 << 10
"""A gap up to here is cheaper to read than to leave out."""
PARTS_MAX: Final = 1000
"""Pieces of one read; the kernel takes 1024 (IOV_MAX)."""
PAGE_BYTES: Final = 4096


class Span(NamedTuple):
    """`size` bytes from `position` of a file on belong to `target` in memory (an offset, or an
    address)."""

    position: int
    size: int
    target: int

    @property
    def end(self) -> int:
        return self.position + self.size


Block = tuple[Span, ...]


def place_after(cursor: int, position: int, alignment: int, *, begins_run: bool = False) -> int:
    """Where in memory bytes from `position` of a file go when everything before `cursor` is taken:
    memory and file are aligned alike, so that the disk can write there without a copy. Bytes that
    follow each other in the file follow each other in memory. When the file itself does not keep
    `alignment`, memory does.

    A long run is aligned by blocks: then no two reads share a huge page, which both would clear.
    """
    if position % alignment:
        return -(-cursor // PAGE_BYTES) * PAGE_BYTES
    return cursor + (position - cursor) % (BLOCK_BYTES if begins_run else PAGE_BYTES)


def cut_blocks(
    spans: Iterable[Span],
    *,
    block_bytes: int = BLOCK_BYTES,
    gap_bytes_max: int = GAP_BYTES_MAX,
) -> Iterator[Block]:
    """The spans as reads: each a run in file order, within one block of the file, with no gap
    above the limit. `spans` are sorted by position and disjoint."""
    block: list[Span] = []
    for span in _cut_at_blocks(join_spans(spans), block_bytes):
        if block and not _belongs(block, span, block_bytes, gap_bytes_max):
            yield tuple(block)
            block = []
        block.append(span)
    if block:
        yield tuple(block)


def join_spans(spans: Iterable[Span]) -> Iterator[Span]:
    """Neighbours in the file that are neighbours in memory, as one."""
    before: Span | None = None
    for span in spans:
        if not span.size:
            continue
        if before and before.end == span.position and before.target + before.size == span.target:
            before = before._replace(size=before.size + span.size)
            continue
        if before:
            yield before
        before = span
    if before:
        yield before


def _cut_at_blocks(spans: Iterable[Span], block_bytes: int) -> Iterator[Span]:
    for span in spans:
        at = span.position
        while at < span.end:
            end = min(span.end, at - at % block_bytes + block_bytes)
            yield Span(at, end - at, span.target + at - span.position)
            at = end


def _belongs(block: list[Span], span: Span, block_bytes: int, gap_bytes_max: int) -> bool:
    last = block[-1]
    return (
        span.position // block_bytes == block[0].position // block_bytes
        and 0 <= span.position - last.end <= gap_bytes_max
        and 2 * len(block) + 2 <= PARTS_MAX
    )
