import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tensorcast.movers.memory.memfd import create_segment
from tensorcast.movers.memory.pool import NoStore, Pool, zero_gaps
from tensorcast.schema.errors import OutOfCapacity
from tensorcast.schema.tensors import TensorSpec

STEP = 2 << 20


class Store:
    def __init__(self):
        self.names = []

    def keep(self, name, fd):
        assert os.fstat(fd).st_size
        self.names.append(name)

    def forget(self, name):
        self.names.remove(name)


@pytest.fixture
def pool():
    made = Pool(5 * STEP, Store())
    yield made
    made.close()


def test_new_segments_are_zero_and_kept_in_the_store(pool):
    lent = pool.allocate(STEP + 1)
    assert lent.is_zero
    assert lent.segment.capacity_bytes == 2 * STEP
    assert pool._store.names == [lent.segment.name]


def test_a_released_segment_is_used_again(pool):
    first = pool.allocate(4 * STEP).segment
    pool.release(first)
    pool.release(first)
    again = pool.allocate(4 * STEP - 5)
    assert again.segment is first
    assert not again.is_zero


def test_the_closest_fit_is_taken_and_waste_is_limited(pool):
    small, large = pool.allocate(STEP).segment, pool.allocate(4 * STEP).segment
    pool.release(small)
    pool.release(large)
    assert pool.allocate(1).segment is small
    assert pool.allocate(3 * STEP).is_zero, "4 steps for 3 would waste a third"
    assert large.fd == -1, "its room was needed"


def test_free_segments_make_room_for_others(pool):
    for lent in [pool.allocate(STEP) for _ in range(5)]:
        pool.release(lent.segment)
    assert pool.stats().segments_free == 5
    pool.allocate(2 * STEP)
    assert pool.stats().segments_free == 3
    assert len(pool._store.names) == 4


def test_the_budget_is_never_exceeded(pool):
    pool.allocate(3 * STEP)
    assert pool.shortfall(2 * STEP) == 0
    assert pool.shortfall(3 * STEP) == STEP
    with pytest.raises(OutOfCapacity) as caught:
        pool.allocate(3 * STEP)
    assert str(3 * STEP) in caught.value.message
    assert str(2 * STEP) in caught.value.message
    assert pool.stats().used_bytes == 3 * STEP


def test_what_a_reader_still_maps_is_neither_free_nor_used_again(pool):
    segment = pool.allocate(3 * STEP).segment
    reader = segment.open_read_only()
    pool.release(segment)
    assert pool.stats().retired_bytes == 3 * STEP
    with pytest.raises(OutOfCapacity):
        pool.allocate(3 * STEP)
    os.close(reader)
    assert pool.shortfall(5 * STEP) == 0
    assert pool.allocate(3 * STEP).segment is segment


def test_an_adopted_segment_counts_and_can_be_released(pool):
    stored = create_segment("segment-old", 6 * STEP)
    pool._store.names.append("segment-old")
    adopted = pool.adopt("segment-old", os.dup(stored.fd))
    stored.close()
    assert pool.stats().used_bytes == 6 * STEP
    with pytest.raises(OutOfCapacity):
        pool.allocate(1)
    pool.release(adopted)
    pool.allocate(STEP)
    assert "segment-old" not in pool._store.names


def test_stats_add_up(pool):
    kept, freed = pool.allocate(STEP), pool.allocate(2 * STEP)
    pool.release(freed.segment)
    stats = pool.stats()
    assert (stats.capacity_bytes, stats.used_bytes, stats.free_bytes) == (5 * STEP, STEP, 2 * STEP)
    assert (stats.segments, stats.segments_free, stats.retired_bytes) == (2, 1, 0)
    assert kept.segment.fd >= 0


def test_threads_share_the_budget():
    pool = Pool(8 * STEP, NoStore())

    def try_once(_):
        try:
            return pool.allocate(STEP).segment.name
        except OutOfCapacity:
            return None

    with ThreadPoolExecutor(4) as threads:
        names = [name for name in threads.map(try_once, range(20)) if name]
    assert len(set(names)) == len(names) == 8
    pool.close()


def test_a_segment_that_could_not_be_made_takes_no_budget():
    pool = Pool(1 << 50)
    with pytest.raises(OutOfCapacity):
        pool.allocate(1 << 47)
    assert pool.stats().used_bytes == 0


def test_gaps_of_an_older_use_are_zeroed(pool):
    segment = pool.allocate(STEP).segment
    segment.memory[:100] = b"x" * 100
    index = (TensorSpec(name="t", dtype="U8", shape=(10,), offset=64),)
    zero_gaps(segment, index, 90)
    assert segment.memory[:100] == bytes(64) + b"x" * 10 + bytes(16) + b"x" * 10


def test_what_is_free_for_long_goes_back_to_the_machine(pool):
    used, free = pool.allocate(STEP).segment, pool.allocate(STEP).segment
    pool.release(free)
    pool.trim(60.0)
    assert pool.stats().segments_free == 1
    pool.trim(0.0)
    pool.trim(0.0)
    assert (pool.stats().segments, pool._store.names) == (1, [used.name])
    pool.release(used)
    assert pool.allocate(STEP).segment is used
    pool.release(used)
    pool.trim(0.0)
    assert pool.stats().segments == 0


def test_an_untouched_segment_that_is_given_up_is_closed(pool):
    lent = pool.allocate(STEP, is_touched=False)
    assert lent.is_zero
    pool.release(lent.segment)
    assert lent.segment.fd == -1
    assert pool._store.names == []
    assert pool.stats().segments == 0


def test_an_untouched_segment_that_is_settled_is_like_any_other(pool):
    segment = pool.allocate(STEP, is_touched=False).segment
    os.pwrite(segment.fd, b"x" * 5000, 0)
    pool.settle(segment, 5000)
    assert os.fstat(segment.fd).st_blocks * 512 >= STEP
    pool.release(segment)
    assert pool.allocate(STEP).segment is segment


def test_a_segment_that_was_adopted_untouched_can_be_settled(pool):
    made = create_segment("kept", STEP, is_touched=False)
    adopted = pool.adopt("kept", os.dup(made.fd), is_touched=False)
    made.close()
    pool.settle(adopted, 0)
    assert os.fstat(adopted.fd).st_blocks * 512 >= STEP


class Watcher:
    """Keeps what it is told, by the address of the memory."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def mapped(self, memory) -> None:
        self.told.append(("mapped", memory.nbytes))

    def emptied(self, memory) -> None:
        self.told.append(("emptied", memory.nbytes))

    def unmapped(self, memory) -> None:
        self.told.append(("unmapped", memory.nbytes))


def test_who_registers_memory_hears_when_a_segment_begins_is_emptied_and_ends():
    watcher = Watcher()
    pool = Pool(4 * STEP, watcher=watcher)
    first = pool.allocate(1).segment
    pool.release(first)
    assert pool.allocate(1).segment is first
    pool.release(first)
    pool.trim(0.0)
    pool.allocate(1)
    pool.close()
    one = STEP
    assert watcher.told == [
        ("mapped", one),
        ("emptied", one),
        ("emptied", one),
        ("unmapped", one),
        ("mapped", one),
        ("unmapped", one),
    ]
