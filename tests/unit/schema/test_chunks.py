import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import chunk_sets
from tensorcast.schema.chunks import (
    CHUNK_BYTES_MIN,
    CHUNKS_MAX,
    ByteRange,
    ChunkSet,
    choose_chunk_bytes,
    chunk_range,
    count_chunks,
)

SMALL = 40
SETS = chunk_sets(SMALL)


def test_a_byte_range_ends_where_the_next_begins():
    assert ByteRange(3, 4).end == 7


@pytest.mark.parametrize(
    ("size", "chunk"),
    [
        (0, CHUNK_BYTES_MIN),
        (CHUNK_BYTES_MIN * CHUNKS_MAX, CHUNK_BYTES_MIN),
        (CHUNK_BYTES_MIN * CHUNKS_MAX + 1, 2 * CHUNK_BYTES_MIN),
        (1 << 48, 1 << 34),
    ],
)
def test_the_chunk_size_keeps_the_number_of_chunks_bounded(size, chunk):
    assert choose_chunk_bytes(size) == chunk
    assert count_chunks(size, chunk) <= CHUNKS_MAX


@given(st.integers(0, 50_000_000), st.integers(1, 5_000_000))
def test_chunks_cover_the_bytes_exactly(size, chunk_bytes):
    count = count_chunks(size, chunk_bytes)
    if count > 1000:
        return
    ranges = [chunk_range(i, size, chunk_bytes) for i in range(count)]
    assert sum(r.size for r in ranges) == size
    assert all(r.size > 0 for r in ranges)
    assert all(a.end == b.offset for a, b in itertools.pairwise(ranges))


@given(st.sets(st.integers(0, SMALL)))
def test_a_chunk_set_is_a_set(numbers):
    chunks = ChunkSet.of(numbers)
    assert list(chunks) == sorted(numbers)
    assert len(chunks) == len(numbers)
    assert all((n in chunks) == (n in numbers) for n in range(-1, SMALL + 2))
    assert "1" not in chunks


@given(SETS, SETS)
def test_union_and_difference(a, b):
    assert set(a | b) == set(a) | set(b)
    assert set(a - b) == set(a) - set(b)
    assert (a - b) | b == a | b
    assert set(a & b) == set(a) & set(b)


@given(SETS, SETS)
def test_equal_sets_have_equal_ranges(a, b):
    """So that equality of the struct is equality of the set, and an encoding is canonical."""
    assert (a == b) == (set(a) == set(b))
    assert all(x[1] < y[0] for x, y in zip(a.ranges, a.ranges[1:], strict=False))


def test_the_full_set():
    assert ChunkSet.full(0) == ChunkSet()
    assert list(ChunkSet.full(3)) == [0, 1, 2]


@pytest.mark.parametrize(
    "ranges",
    [
        ((3, 3),),
        ((4, 3),),
        ((-1, 3),),
        ((0, 2), (2, 3)),
        ((0, 5), (3, 6)),
        ((5, 6), (0, 1)),
        ((0, CHUNKS_MAX + 1),),
    ],
)
def test_any_other_ranges_cannot_be_built(ranges):
    with pytest.raises(ValueError, match="out of order or out of bounds"):
        ChunkSet(ranges)
