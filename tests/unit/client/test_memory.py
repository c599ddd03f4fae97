from __future__ import annotations

import gc
import os

import pytest

from tensorcast.client.memory import map_segment
from tensorcast.schema.errors import Corrupt


def segment(data: bytes) -> int:
    descriptor = os.memfd_create("test")
    os.write(descriptor, data)
    read_only = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
    os.close(descriptor)
    return read_only


@pytest.fixture
def lifeline():
    """Both ends; ours tells the end of the other."""
    ours, theirs = os.pipe()
    yield ours, theirs
    os.close(ours)


def is_over(ours: int) -> bool:
    os.set_blocking(ours, False)
    try:
        return os.read(ours, 1) == b""
    except BlockingIOError:
        return False


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_mapping_is_private_and_writable(lifeline):
    first = segment(b"abcd")
    again = os.dup(first)
    mapping = map_segment((first, lifeline[1]), 4)
    mapping[0:1] = b"X"
    assert bytes(mapping) == b"Xbcd"
    assert os.pread(again, 4, 0) == b"abcd"
    os.close(again)


def test_the_lifeline_ends_with_the_last_user(lifeline):
    mapping = map_segment((segment(b"abcd"), lifeline[1]), 4)
    view = memoryview(mapping)
    del mapping
    gc.collect()
    assert not is_over(lifeline[0])
    assert bytes(view) == b"abcd"
    del view
    gc.collect()
    assert is_over(lifeline[0])


def test_an_artifact_without_bytes_holds_nothing(lifeline):
    assert map_segment((segment(b""), lifeline[1]), 0) is None
    assert is_over(lifeline[0])


def test_a_segment_that_is_too_small_is_refused_and_nothing_leaks(lifeline):
    before = descriptors()
    handed = (segment(b"abcd"), lifeline[1])
    with pytest.raises(Corrupt, match="smaller than 5 bytes"):
        map_segment(handed, 5)
    assert is_over(lifeline[0])
    assert descriptors() == before - 1
    with pytest.raises(Corrupt, match="1 descriptors"):
        map_segment((segment(b"abcd"),), 4)
    assert descriptors() == before - 1
