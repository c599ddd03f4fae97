"""How an artifact is cut into windows that are smaller than the memory."""

from __future__ import annotations

import pytest
from msgspec import structs

from samples import MIB, manifest
from tensorcast.movers.disk_pulls import WINDOW_BYTES_MAX, choose_window, cut_windows
from tensorcast.schema.chunks import ByteRange, ChunkSet

GIB = 1 << 30


@pytest.mark.parametrize(
    ("capacity", "chunk", "window"),
    [
        (2 * MIB, MIB, MIB),
        (64 * MIB, MIB, 8 * MIB),
        (GIB, MIB, WINDOW_BYTES_MAX),
        (64 * GIB, MIB, WINDOW_BYTES_MAX),
        (64 * MIB, 16 * MIB, 16 * MIB),  # one chunk at least
        (GIB, 64 * MIB, 64 * MIB),
        (100 * MIB, 8 * MIB, 8 * MIB),  # whole chunks
    ],
)
def test_a_window_is_a_small_part_of_the_memory(capacity: int, chunk: int, window: int):
    assert choose_window(capacity, chunk) == window


def test_windows_cover_what_is_missing_and_no_more():
    missing = ChunkSet.of([0, 1, 2, 5, 6, 9])
    windows = list(cut_windows(missing, manifest(10), 3 * MIB))
    assert windows == [
        (ByteRange(0, 3 * MIB), ChunkSet.of([0, 1, 2])),
        (ByteRange(5 * MIB, 3 * MIB), ChunkSet.of([5, 6])),
        (ByteRange(9 * MIB, MIB), ChunkSet.of([9])),
    ]


def test_the_last_chunk_may_be_short():
    short = structs.replace(manifest(3), size_bytes=2 * MIB + 5)
    windows = list(cut_windows(ChunkSet.full(3), short, 2 * MIB))
    assert windows[-1] == (ByteRange(2 * MIB, 5), ChunkSet.of([2]))


def test_nothing_is_missing():
    assert list(cut_windows(ChunkSet(), manifest(3), MIB)) == []
