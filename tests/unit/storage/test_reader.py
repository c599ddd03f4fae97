"""Files read by every way there is: the bytes are always the same."""

from __future__ import annotations

import os

import pytest

from tensorcast.storage.kernel import direct_alignment
from tensorcast.storage.memory import address_of, allocate
from tensorcast.storage.reader import DIRECT_BYTES_MIN, open_reader, read_block
from tensorcast.storage.spans import BLOCK_BYTES, Span

SIZE = 3 * BLOCK_BYTES + 12345


@pytest.fixture(scope="module")
def content() -> bytes:
    return os.urandom(SIZE)


@pytest.fixture
def path(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    return path


def forget(path) -> None:
    """Has the kernel drop the file's pages, where it can."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


PLACES = [
    (0, SIZE, 0),
    (0, 4096, 0),
    (4096, BLOCK_BYTES, 4096),
    (100, BLOCK_BYTES, 100),  # memory and file aligned alike, but not to a page
    (100, BLOCK_BYTES, 33),  # not alike: through the buffer
    (513, 2 * BLOCK_BYTES + 700, 1),
    (SIZE - 100_000, 100_000, 7),
    (SIZE - 1, 1, 0),
    (4095, DIRECT_BYTES_MIN, 4095),
    (1, DIRECT_BYTES_MIN - 1, 0),
]


@pytest.mark.parametrize("is_cached", [True, False])
@pytest.mark.parametrize(("position", "size", "shift"), PLACES)
def test_a_range_is_read(path, content, position, size, shift, is_cached):
    memory = allocate(SIZE + 8192)
    if not is_cached:
        forget(path)
    with open_reader(path) as reader:
        assert reader.read([memory[shift : shift + size]], position) == size
    assert memory[shift : shift + size] == content[position : position + size]
    assert not any(memory[:shift])
    assert not any(memory[shift + size : shift + size + 4096])


@pytest.mark.parametrize("is_cached", [True, False])
def test_parts_are_scattered_and_gaps_passed_over(path, content, is_cached):
    memory = allocate(SIZE)
    spans = tuple(Span(1000 + n * 700, 300, n * 300) for n in range(400))
    if not is_cached:
        forget(path)
    with open_reader(path) as reader:
        assert read_block(reader, spans, address_of(memory))
    wanted = b"".join(content[span.position : span.end] for span in spans)
    assert memory[: len(wanted)] == wanted


@pytest.mark.parametrize("is_cached", [True, False])
@pytest.mark.parametrize("missing", [1, 5000, 300_000])
def test_the_end_of_a_file_is_told(path, content, missing, is_cached):
    memory = allocate(SIZE)
    position = SIZE - 400_000
    if not is_cached:
        forget(path)
    with open_reader(path) as reader:
        os.truncate(path, SIZE - missing)
        assert reader.read([memory[:400_000]], position) == 400_000 - missing
    assert memory[: 400_000 - missing] == content[position : SIZE - missing]


def test_what_was_not_cached_is_not_cached_afterwards(path):
    forget(path)
    with open_reader(path) as reader:
        if direct_alignment(reader.descriptor) is None or reader.is_cached():
            pytest.skip("this file system has no direct reads, or keeps its pages")
        reader.read([allocate(SIZE)], 0)
        assert not reader.is_cached()


def test_what_is_cached_is_known(path):
    with open_reader(path) as reader:
        assert reader.is_cached()
        assert (reader.name, reader.size_bytes) == (str(path), SIZE)


def test_a_file_in_memory_is_read(content):
    descriptor = os.memfd_create("test")
    try:
        os.write(descriptor, content)
        memory = allocate(SIZE)
        with open_reader(f"/proc/self/fd/{descriptor}") as reader:
            assert reader.read([memory], 0) == SIZE
        assert memory == content
    finally:
        os.close(descriptor)


def test_an_empty_read_is_nothing(path):
    with open_reader(path) as reader:
        assert reader.read([], 5) == 0


def test_a_missing_file_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError), open_reader(tmp_path / "none"):
        pass
