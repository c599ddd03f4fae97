"""Files written past the page cache: the bytes are those that were given."""

from __future__ import annotations

import contextlib
import os

import pytest

from tensorcast.storage.kernel import cached_bytes, direct_alignment
from tensorcast.storage.memory import allocate
from tensorcast.storage.spans import BLOCK_BYTES
from tensorcast.storage.writer import FileWriter

SIZE = 2 * BLOCK_BYTES + 5000


@pytest.fixture(scope="module")
def memory():
    memory = allocate(SIZE)
    memory[:] = os.urandom(SIZE)
    return memory


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


@contextlib.contextmanager
def writing(path):
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with contextlib.closing(FileWriter(descriptor)) as writer:
            yield writer, descriptor
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("start", [0, 64, 4096])
@pytest.mark.parametrize("position", [0, 12345])
@pytest.mark.parametrize("size", [0, 1, 10_000, BLOCK_BYTES + 4097])
def test_a_range_is_written(path, memory, start, position, size):
    with writing(path) as (writer, _):
        writer.write([memory[start : start + size]], position)
        writer.finish()
    found = path.read_bytes()
    assert found[position:] == memory[start : start + size]
    assert not any(found[:position])


@pytest.mark.parametrize("cut", [4096, 5000, BLOCK_BYTES])
def test_parts_follow_each_other(path, memory, cut):
    parts = [memory[n : n + cut] for n in range(0, SIZE, cut)][:1500]
    with writing(path) as (writer, _):
        for n in range(0, len(parts), 500):
            writer.write(parts[n : n + 500], 77 + n * cut)
        writer.finish()
    assert path.read_bytes()[77:] == memory[: sum(len(part) for part in parts)]


def test_read_only_bytes_are_written(path):
    with writing(path) as (writer, _):
        writer.write([memoryview(b"x" * 9000)], 0)
        writer.finish()
    assert path.read_bytes() == b"x" * 9000


def test_nothing_of_it_stays_in_the_page_cache(path, memory):
    with writing(path) as (writer, descriptor):
        if direct_alignment(descriptor) is None:
            pytest.skip("this file system has no direct writes")
        writer.write([memory], 100)
        writer.finish()
        assert not cached_bytes(descriptor, 0, SIZE)
