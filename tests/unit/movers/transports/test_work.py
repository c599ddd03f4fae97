import threading

from tensorcast.movers.core.transfer import Pull
from tensorcast.movers.transports.tcp.wire import RANGES_MAX
from tensorcast.movers.transports.tcp.work import BATCH_BYTES_MAX, Posted, Work
from tensorcast.schema.chunks import ByteRange

MIB = 1 << 20


def post(work, *pulls):
    return work.put([Posted(pull, memoryview(b"")) for pull in pulls])


def pull(number, size=MIB, artifact="a", wait_s=0.0):
    where = ByteRange(0, size)
    return Pull(
        number=number,
        peer="n1",
        artifact=artifact,
        first=0,
        stop=1,
        source_range=where,
        target_range=where,
        chunk_bytes=MIB,
        digests=bytes(8),
        wait_s=wait_s,
    )


def numbers(batch):
    return [posted.pull.number for posted in batch]


def batches(work):
    found = []
    while batch := work.take(0):
        found.append(numbers(batch))
    return found


def test_small_pulls_share_a_request():
    work = Work()
    post(work, *(pull(n) for n in range(10)))
    assert batches(work) == [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9]]


def test_a_large_pull_goes_alone():
    work = Work()
    post(work, pull(0, BATCH_BYTES_MAX * 2), pull(1), pull(2, BATCH_BYTES_MAX))
    assert batches(work) == [[0], [1], [2]]


def test_so_do_other_artifacts_and_pulls_that_may_wait():
    work = Work()
    post(work, pull(0), pull(1, artifact="b"), pull(2, artifact="b", wait_s=1.0), pull(3))
    assert batches(work) == [[0], [1], [2], [3]]


def test_one_pull_at_a_time_may_wait_and_the_others_overtake():
    work = Work()
    waits = {"wait_s": 1.0}
    post(work, pull(0, **waits), pull(1, **waits), pull(2), pull(3), pull(4, **waits), pull(5))
    assert batches(work) == [[0], [2, 3], [5]]
    work.go_on()
    assert batches(work) == [[1]]
    work.go_on()
    assert batches(work) == [[4]]
    assert batches(work) == []


def test_who_waits_for_work_hears_that_a_pull_waits_no_longer():
    work = Work()
    post(work, pull(0, wait_s=1.0), pull(1, wait_s=1.0))
    assert numbers(work.take(0)) == [0]
    found = []
    waiting = threading.Thread(target=lambda: found.append(numbers(work.take(5))))
    waiting.start()
    work.go_on()
    waiting.join()
    assert found == [[1]]


def test_a_request_has_a_limit_of_ranges():
    work = Work()
    post(work, *(pull(n, 1) for n in range(RANGES_MAX + 1)))
    assert [len(batch) for batch in batches(work)] == [RANGES_MAX, 1]


def test_closing_returns_what_is_left_and_wakes_who_waits():
    work = Work()
    found = []
    waiting = threading.Thread(target=lambda: found.append(work.take(None)))
    waiting.start()
    assert work.close() == ()
    waiting.join()
    assert found == [None]
    assert not post(work, pull(1))
    left = Work()
    post(left, pull(1), pull(2))
    assert numbers(left.close()) == [1, 2]
    assert left.take(0) is None
