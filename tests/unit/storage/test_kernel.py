"""What the kernel tells of files. Where it cannot tell, the answers are None."""

from __future__ import annotations

import os

import pytest

from tensorcast.storage.kernel import (
    SAFE_ALIGNMENT,
    available_bytes,
    cached_bytes,
    direct_alignment,
    is_remote,
    open_direct,
    parse_mounts,
    readahead_bytes,
    sample_cached,
)

SIZE = 1 << 20


@pytest.fixture
def descriptor(tmp_path):
    """A file that is on the disk, opened for reading."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(SIZE))
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    yield descriptor
    os.close(descriptor)


def test_what_was_just_written_is_cached(descriptor):
    found = cached_bytes(descriptor, 0, SIZE)
    assert found is None or found == SIZE
    assert sample_cached(descriptor, SIZE) in (None, 1.0)


def test_nothing_is_cached_of_an_empty_range(descriptor):
    assert cached_bytes(descriptor, 0, 0) is None
    assert sample_cached(descriptor, 0) is None


def test_what_is_no_file_has_no_cached_bytes():
    ends = os.pipe()
    try:
        assert not cached_bytes(ends[0], 0, SIZE)
        assert sample_cached(ends[0], SIZE) is None
    finally:
        for end in ends:
            os.close(end)


def test_direct_reads_work_as_the_alignment_says(descriptor):
    alignment = direct_alignment(descriptor)
    direct = open_direct(descriptor, os.O_RDONLY)
    if alignment is None or direct is None:
        pytest.skip("this file system has no direct I/O")
    os.close(direct)
    assert not SAFE_ALIGNMENT.memory_bytes % alignment.memory_bytes
    assert not SAFE_ALIGNMENT.position_bytes % alignment.position_bytes


def test_memory_files_have_no_direct_reads():
    descriptor = os.memfd_create("test")
    try:
        assert direct_alignment(descriptor) in (None, SAFE_ALIGNMENT)
        assert not is_remote(descriptor)
    finally:
        os.close(descriptor)


def test_mounts_are_read_by_device():
    text = (
        "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw\n"
        "37 35 0:42 / /models rw shared:9 - nfs4 host:/models rw\n"
        "broken line\n"
        "38 - \n"
    )
    assert parse_mounts(text) == {"98:0": "ext3", "0:42": "nfs4"}


def test_readahead_is_known_or_not(descriptor):
    found = readahead_bytes(descriptor)
    assert found is None or found >= 0
    memory = os.memfd_create("test")
    try:
        assert not readahead_bytes(memory)
    finally:
        os.close(memory)


def test_there_is_memory():
    found = available_bytes()
    assert found is None or found > 0
