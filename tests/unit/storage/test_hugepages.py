"""Huge pages of shared memory: made where nothing was, never at the cost of a byte."""

from __future__ import annotations

import os
import time

import pytest

from tensorcast.schema.errors import OutOfCapacity
from tensorcast.storage.hugepages import EXCESS_S_MAX, AlignedMapping, HugePages
from tensorcast.storage.memory import HUGE_BYTES, address_of, collapse

SIZE = 8 * HUGE_BYTES


@pytest.fixture
def descriptor():
    made = os.memfd_create("test")
    os.ftruncate(made, SIZE)
    yield made
    os.close(made)


@pytest.fixture
def memory(descriptor):
    with AlignedMapping(descriptor, SIZE) as mapped:
        yield mapped


def size_on_machine(descriptor: int) -> int:
    return os.fstat(descriptor).st_blocks * 512


def needs_huge_pages() -> None:
    """Skips where the kernel gives none to shared memory, or has not enough of them just now."""
    probe = os.memfd_create("probe")
    os.ftruncate(probe, 2 * SIZE)
    with AlignedMapping(probe, 2 * SIZE) as mapped:
        for at in range(0, 2 * SIZE, HUGE_BYTES):
            mapped[at] = 1
        is_possible = collapse(mapped)
    os.close(probe)
    if not is_possible:
        pytest.skip(
            "this kernel has no huge pages for shared memory, or its memory is too scattered"
        )


def refuse(_: memoryview) -> bool:
    return False


def dawdle(_: memoryview) -> bool:
    begun = time.thread_time()
    while time.thread_time() - begun < 2 * EXCESS_S_MAX:
        pass
    return True


def test_a_mapping_begins_at_a_huge_page_and_shares_its_bytes(descriptor):
    mapping = AlignedMapping(descriptor, 5000)
    assert mapping.memory.nbytes == 5000
    assert not address_of(mapping.memory) % HUGE_BYTES
    mapping.memory[:3] = b"abc"
    assert os.pread(descriptor, 4, 0) == b"abc\0"
    mapping.close()
    mapping.close()


def test_a_mapping_lives_as_long_as_a_view_of_it(descriptor):
    mapping = AlignedMapping(descriptor, SIZE)
    view = mapping.memory[:3]
    with pytest.raises(BufferError):
        mapping.close()
    view[:] = b"abc"
    view.release()
    mapping.close()
    assert os.pread(descriptor, 3, 0) == b"abc"


def test_what_cannot_be_mapped_is_refused(descriptor):
    with pytest.raises(OutOfCapacity, match="cannot be mapped"):
        AlignedMapping(descriptor, 1 << 60)
    reading = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
    with pytest.raises(PermissionError):
        AlignedMapping(reading, SIZE)
    os.close(reading)


def test_new_memory_comes_in_huge_pages_and_takes_no_more_than_asked(descriptor, memory):
    needs_huge_pages()
    with HugePages(descriptor, memory) as pages:
        assert pages.make(HUGE_BYTES + 5, 3 * HUGE_BYTES - 5)
        assert size_on_machine(descriptor) == 2 * HUGE_BYTES
        assert pages.make(0, SIZE)
        assert pages.make(0, 1)
    assert size_on_machine(descriptor) == SIZE
    assert memory == bytes(SIZE)


def test_huge_pages_are_known_again_and_ordinary_ones_told_from_them(descriptor):
    needs_huge_pages()
    with AlignedMapping(descriptor, SIZE) as memory, HugePages(descriptor, memory) as pages:
        assert pages.make(0, 2 * HUGE_BYTES)
        memory[0] = 7
    os.posix_fallocate(descriptor, 2 * HUGE_BYTES, HUGE_BYTES)
    with AlignedMapping(descriptor, SIZE) as memory:
        with HugePages(descriptor, memory, refuse) as pages:
            assert pages.make(0, 2 * HUGE_BYTES)
            assert not pages.make(2 * HUGE_BYTES, 3 * HUGE_BYTES)
        assert memory[0] == 7


def test_what_has_pages_keeps_them_and_its_bytes(descriptor, memory):
    os.pwrite(descriptor, b"abc", HUGE_BYTES)
    os.pwrite(descriptor, b"xyz", 4 * HUGE_BYTES)
    with HugePages(descriptor, memory) as pages:
        assert not pages.make(0, SIZE)
    for number in (1, 4):
        assert os.lseek(descriptor, number * HUGE_BYTES, os.SEEK_HOLE) < (number + 1) * HUGE_BYTES
    assert memory[HUGE_BYTES : HUGE_BYTES + 4] == b"abc\0"
    assert memory[4 * HUGE_BYTES : 4 * HUGE_BYTES + 4] == b"xyz\0"
    assert bytes(memory).count(0) == SIZE - 6


@pytest.mark.parametrize("collapse", [refuse, dawdle])
def test_pages_that_are_refused_or_cost_too_much_are_asked_for_no_more(
    descriptor, memory, collapse
):
    with HugePages(descriptor, memory, collapse) as pages:
        found = [pages.make(n * HUGE_BYTES, (n + 1) * HUGE_BYTES) for n in range(8)]
    asked = size_on_machine(descriptor) // 4096  # one page is made for each that is asked for
    assert 1 <= asked <= 4
    assert not found[-1]
    assert memory == bytes(SIZE)


def test_the_end_of_a_segment_that_is_no_whole_page_is_left_alone(descriptor):
    with AlignedMapping(descriptor, SIZE - 5) as memory, HugePages(descriptor, memory) as pages:
        assert not pages.make(SIZE - HUGE_BYTES, SIZE - 5)
    assert size_on_machine(descriptor) == 0
