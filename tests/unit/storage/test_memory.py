"""Memory to read into."""

from __future__ import annotations

import mmap

import pytest

from tensorcast.schema.errors import OutOfCapacity
from tensorcast.storage.memory import (
    HUGE_BYTES,
    address_of,
    allocate,
    copy,
    populate,
    populate_from_file,
    view_at,
)


@pytest.mark.parametrize("size", [1, 4096, HUGE_BYTES + 1])
def test_memory_begins_at_a_huge_page_and_holds_zeros(size):
    memory = allocate(size)
    assert memory.nbytes == size
    assert not address_of(memory) % HUGE_BYTES
    populate(memory)
    assert bytes(memory[-1:]) == b"\0"


def test_more_memory_than_there_can_be_is_refused():
    with pytest.raises(OutOfCapacity, match="cannot be had"):
        allocate(1 << 62)


def test_bytes_are_copied_and_seen_by_address():
    source, target = allocate(100), allocate(100)
    source[:3] = b"abc"
    copy(target, source)
    copy(target[:0], source[:0])
    assert bytes(view_at(address_of(target), 3)) == b"abc"


def test_pages_of_a_file_are_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 5000)
    with path.open("rb") as file:
        pages = mmap.mmap(file.fileno(), 5000, flags=mmap.MAP_PRIVATE, prot=3)
    memory = memoryview(pages)
    assert populate_from_file(memory)
    assert populate_from_file(memory[:0])
    path.write_bytes(b"")  # what is no longer there is told, and is no signal
    assert not populate_from_file(memory)
    memory.release()
    pages.close()
