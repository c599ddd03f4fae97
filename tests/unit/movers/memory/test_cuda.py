"""The budget of devices, and segments that outlive their release for as long as they are read."""

from __future__ import annotations

from collections import Counter

import pytest

from tensorcast.gpu.fake import FakeGpu
from tensorcast.gpu.port import GRANULE_BYTES
from tensorcast.movers.memory.cuda import CudaPool
from tensorcast.schema.errors import OutOfCapacity

STEP = GRANULE_BYTES


@pytest.fixture
def readers():
    return Counter()


@pytest.fixture
def pool(readers):
    gpus = [FakeGpu(0, 8 * STEP), FakeGpu(1, 3 * STEP)]
    pool = CudaPool(gpus, 4 * STEP, readers.__getitem__)
    yield pool
    pool.close()


def test_a_share_of_each_device_is_used_the_roomiest_first(pool):
    assert pool.capacity_bytes == 7 * STEP
    first = pool.allocate(2 * STEP)
    second = pool.allocate(2 * STEP)
    assert (first.device.gpu.properties.index, second.device.gpu.properties.index) == (0, 1)
    assert pool.used_bytes == 4 * STEP
    assert pool.shortfall(3 * STEP) == STEP
    with pytest.raises(OutOfCapacity, match="are free"):
        pool.allocate(3 * STEP)
    pool.release(first)
    assert pool.shortfall(3 * STEP) == 0
    with pytest.raises(OutOfCapacity, match="never fit") as never:
        pool.check_possible(5 * STEP)
    assert not never.value.retryable


def test_what_is_read_is_freed_after_its_last_reader(pool, readers):
    segment = pool.allocate(100)
    readers[segment.name] = 1
    pool.release(segment)
    assert pool.used_bytes == STEP
    readers[segment.name] = 0
    pool.reclaim()
    assert pool.used_bytes == 0


def test_bytes_go_in_and_out(pool):
    segment = pool.allocate(8_000_000)
    content = bytes(range(250)) * 32_000
    segment.fill(0, memoryview(content))
    assert segment.read(5, 1_000_005) == content[5:1_000_005]
    target = bytearray(10)
    segment.take(7_999_990, memoryview(target))
    assert target == content[-10:]


def test_a_watcher_hears_of_each_segment():
    told = []

    class Watcher:
        def mapped(self, memory):
            told.append(("mapped", memory.nbytes))

        def emptied(self, memory):
            told.append(("emptied", memory.nbytes))

        def unmapped(self, memory):
            told.append(("unmapped", memory.nbytes))

    pool = CudaPool([FakeGpu()], 4 * STEP, watcher=Watcher())
    pool.release(pool.allocate(77))
    assert told == [("mapped", 77), ("emptied", 77), ("unmapped", 77)]
    pool.close()
