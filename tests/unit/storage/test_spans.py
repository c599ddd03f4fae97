"""Bytes of files and their places in memory: everything once, nothing else, in few reads."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tensorcast.storage.spans import (
    BLOCK_BYTES,
    PARTS_MAX,
    Span,
    cut_blocks,
    join_spans,
    place_after,
)

BLOCK = 64
GAP = 5


@st.composite
def spans(draw):
    """Disjoint spans in file order, neighbours and gaps among them, places in memory at random."""
    found = []
    position = draw(st.integers(0, 200))
    target = 0
    for gap, size, hole in draw(
        st.lists(st.tuples(st.integers(0, 12), st.integers(0, 150), st.integers(0, 9)), max_size=20)
    ):
        position += gap
        target += gap if hole < 5 else hole
        found.append(Span(position, size, target))
        position += size
        target += size
    return found


def bytes_of(found) -> list[tuple[int, int]]:
    return [(span.position + n, span.target + n) for span in found for n in range(span.size)]


@given(spans())
def test_every_byte_is_read_once_into_its_place(given_spans):
    blocks = list(cut_blocks(given_spans, block_bytes=BLOCK, gap_bytes_max=GAP))
    assert [b for block in blocks for b in bytes_of(block)] == bytes_of(given_spans)
    for block in blocks:
        assert block[0].position // BLOCK == (block[-1].end - 1) // BLOCK
        for before, after in itertools.pairwise(block):
            assert 0 <= after.position - before.end <= GAP


@given(spans())
def test_neighbours_become_one(given_spans):
    joined = list(join_spans(given_spans))
    assert bytes_of(joined) == bytes_of(given_spans)
    for before, after in itertools.pairwise(joined):
        assert (before.end, before.target + before.size) != (after.position, after.target)


def test_a_read_never_has_more_parts_than_the_kernel_takes():
    rows = [Span(n * 8, 4, n * 4) for n in range(5000)]
    for block in cut_blocks(rows, block_bytes=1 << 20):
        assert 2 * len(block) <= PARTS_MAX


def test_a_large_gap_is_not_read():
    rows = [Span(0, 4, 0), Span(4 + GAP + 1, 4, 4)]
    assert len(list(cut_blocks(rows, block_bytes=1 << 20, gap_bytes_max=GAP))) == 2


@given(st.integers(0, 1 << 20), st.integers(0, 1 << 20))
def test_memory_is_aligned_as_the_file_is(cursor, position):
    place = place_after(cursor, position - position % 8, 8)
    assert place >= cursor
    assert place - cursor < 4096
    assert place % 4096 == (position - position % 8) % 4096


@given(st.integers(0, 1 << 24), st.integers(0, 1 << 30))
def test_a_long_run_is_aligned_by_blocks(cursor, position):
    place = place_after(cursor, position, 1, begins_run=True)
    assert 0 <= place - cursor < BLOCK_BYTES
    assert (place - position) % BLOCK_BYTES == 0


def test_memory_is_aligned_where_the_file_is_not():
    assert place_after(10, 4099, 4) == 4096
    assert place_after(4096, 4099, 4) == 4096
