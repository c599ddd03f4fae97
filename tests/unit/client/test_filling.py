"""Bytes into a segment, whatever kind of pages it has."""

from __future__ import annotations

import os
import threading

import blake3
import pytest

from tensorcast.client.filling import LARGE_BYTES, Block, Intake, Piece, write
from tensorcast.schema.chunks import ByteRange
from tensorcast.schema.errors import Cancelled
from tensorcast.storage.memory import HUGE_BYTES

KIB = 1 << 10


@pytest.fixture
def segment():
    made = os.memfd_create("test")
    os.ftruncate(made, LARGE_BYTES + 2 * HUGE_BYTES)
    yield made
    os.close(made)


def bytes_of(seed: int, size: int) -> bytearray:
    return bytearray(blake3.blake3(bytes([seed])).digest(length=size))


def piece(place: ByteRange, content: bytearray, *, is_memory: bool) -> Piece:
    def read(target: memoryview, start: int) -> None:
        target[:] = content[start : start + len(target)]

    return Piece(place, read, memoryview(content) if is_memory else None)


def intake_of(size: int, *, is_memory: bool = True) -> tuple[Intake, bytes]:
    """Three pieces with zeros between and after them, and all bytes together."""
    third = size // 3
    expected = bytearray(size)
    pieces = []
    for n in range(3):
        place = ByteRange(n * third, third - 100)
        content = bytes_of(n, place.size)
        expected[place.offset : place.end] = content
        pieces.append(piece(place, content, is_memory=is_memory))
    return Intake((), size, tuple(pieces)), bytes(expected)


def fill(segment: int, intake: Intake, *, is_zero: bool = True) -> bytes:
    write(segment, intake, is_zero=is_zero, stop=threading.Event())
    return os.pread(segment, intake.size_bytes, 0)


SIZES = [5 * KIB, HUGE_BYTES, 3 * HUGE_BYTES + 5 * KIB, LARGE_BYTES + HUGE_BYTES + 5 * KIB]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("is_memory", [True, False])
def test_new_memory_gets_all_bytes_and_is_no_larger_than_its_segment(segment, size, is_memory):
    intake, expected = intake_of(size, is_memory=is_memory)
    assert fill(segment, intake) == expected
    whole = -(-size // HUGE_BYTES) * HUGE_BYTES
    assert os.fstat(segment).st_blocks * 512 <= whole
    assert os.pread(segment, whole - size, size) == bytes(whole - size)


@pytest.mark.parametrize("size", SIZES)
def test_used_memory_gets_them_too_and_zeros_between(segment, size):
    first, _ = intake_of(size)
    fill(segment, first)
    held = bytearray(b"\xff" * size)
    old = Intake((), size, (piece(ByteRange(0, size), held, is_memory=True),))
    assert fill(segment, old, is_zero=False) == held
    intake, expected = intake_of(size)
    assert fill(segment, intake, is_zero=False) == expected


@pytest.mark.parametrize("start", [0, HUGE_BYTES, HUGE_BYTES + 4 * KIB])
def test_memory_whose_pages_were_made_in_part_gets_them_too(segment, start):
    os.posix_fallocate(segment, start, HUGE_BYTES)
    intake, expected = intake_of(SIZES[-1])
    assert fill(segment, intake) == expected


def test_a_segment_that_ends_within_a_huge_page_is_filled():
    descriptor = os.memfd_create("test")
    size = HUGE_BYTES + 5 * KIB
    os.ftruncate(descriptor, size)
    intake, expected = intake_of(size)
    assert fill(descriptor, intake) == expected
    os.close(descriptor)


@pytest.mark.parametrize("is_zero", [True, False])
def test_blocks_with_gaps_come_before_the_pieces(segment, is_zero):
    size = 2 * HUGE_BYTES
    if not is_zero:
        os.pwrite(segment, b"\xff" * size, 0)
    place = ByteRange(HUGE_BYTES - 4 * KIB, 8 * KIB)

    def every_other(target: memoryview) -> None:
        for at in range(0, len(target), 2):
            target[at] = 7

    before = bytes_of(1, place.offset)
    pieces = (
        piece(ByteRange(0, place.offset), before, is_memory=True),
        Piece(place, None),
    )
    intake = Intake((), size, pieces, (Block(place, every_other, has_gaps=True),))
    found = fill(segment, intake, is_zero=is_zero)
    assert found == bytes(before) + b"\7\0" * (4 * KIB) + bytes(size - place.end)


def test_a_write_that_is_stopped_ends(segment):
    stop = threading.Event()
    stop.set()
    intake, _ = intake_of(SIZES[-1])
    with pytest.raises(Cancelled):
        write(segment, intake, is_zero=True, stop=stop)
