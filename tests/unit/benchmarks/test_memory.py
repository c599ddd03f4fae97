from __future__ import annotations

import os

import pytest

from contenders.raw_tcp import share_out
from harness.memory import clear, compare, create_memory, cut, fill, map_memory

SIZE = (1 << 20) + 640


@pytest.fixture
def pair() -> tuple[memoryview, memoryview]:
    fds = [create_memory(SIZE) for _ in range(2)]
    found = tuple(map_memory(fd, SIZE) for fd in fds)
    for fd in fds:
        os.close(fd)
    return found


def test_what_was_copied_is_equal_and_one_bit_is_seen(pair) -> None:
    source, target = pair
    fill(source, 1)
    with pytest.raises(ValueError, match="the first one at 0"):
        compare(target, source)
    target[:] = source
    compare(target, source)
    target[SIZE - 3] ^= 4
    with pytest.raises(ValueError, match=f"the first one at {SIZE - 3}"):
        compare(target, source)
    clear(target)
    assert not any(target)
    with pytest.raises(ValueError, match="bytes came instead of"):
        compare(target[:-1], source)


def test_no_page_equals_another(pair) -> None:
    fill(pair[0], 1)
    pages = {bytes(pair[0][at : at + 4096]) for at in range(0, SIZE - 4096, 4096)}
    assert len(pages) == SIZE // 4096


@pytest.mark.parametrize(("size", "count"), [(1 << 30, 300), (16 << 20, 30), (1 << 20, 1)])
def test_tensors_fill_the_memory(size: int, count: int) -> None:
    places = cut(size, count)
    assert len(places) == count
    assert places[0][0] == 0
    ends = [at + each for at, each in places]
    assert ends[:-1] == [at for at, _ in places[1:]]
    assert ends[-1] == size
    assert all(each > 0 and each % 64 == 0 for _, each in places)


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_streams_share_all_bytes(streams: int) -> None:
    places = cut(1 << 20, 30)
    shares = share_out(places, streams)
    assert len(shares) == streams
    joined = [piece for share in shares for piece in share]
    assert sum(size for _, size in joined) == 1 << 20
    at = 0
    for start, size in joined:
        assert start == at
        at += size
