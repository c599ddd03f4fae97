import msgspec
import pytest

from tensorcast.movers.core.transfer import Broken, Completed, Progressed, Pull
from tensorcast.movers.transports.tcp.asked import Asked
from tensorcast.movers.transports.tcp.wire import Status
from tensorcast.movers.transports.tcp.work import Posted
from tensorcast.schema.chunks import ByteRange, ChunkSet
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.faults import FaultKind

GOOD = [bytes([n]) * 8 for n in range(3)]
PULL = Pull(
    number=1,
    peer="n1",
    artifact="a",
    first=4,
    stop=7,
    source_range=ByteRange(40, 25),
    target_range=ByteRange(100, 25),
    chunk_bytes=10,
    digests=b"".join(GOOD),
)


@pytest.fixture
def asked():
    """A pull that has been asked for as a whole."""
    asked = Asked(Posted(PULL, memoryview(bytes(range(200)))))
    assert asked.ask(1000) == ByteRange(40, 25)
    return asked


def test_chunks_have_their_places(asked):
    assert asked.left == ByteRange(40, 25)
    assert bytes(asked.targets(25)) == bytes(range(100, 125))
    first = [bytes(target) for target in asked.targets_by(20, 10)]
    assert first == [bytes(range(100, 110)), bytes(range(110, 120))]
    for digest in GOOD[:2]:
        asked.settle_chunk(digest)
    assert [bytes(target) for target in asked.targets_by(5, 10)] == [bytes(range(120, 125))]
    asked.settle_chunk(GOOD[2])
    assert asked.left.size == 0
    asked.take_progress()
    assert asked.end_range(Status.OK)
    assert asked.end() == Completed(pull=PULL)


def test_progress_is_told_once(asked):
    assert asked.take_progress() is None
    asked.settle_chunk(GOOD[0])
    asked.holds = ChunkSet.full(5)
    told = Progressed(pull=PULL, arrived=ChunkSet.of([4]), holds=ChunkSet.full(5))
    assert asked.take_progress() == told
    assert asked.take_progress() is None
    asked.settle_chunk(None)
    assert asked.left == ByteRange(60, 5)
    assert asked.end_range(Status.MISSING)
    end = asked.end()
    assert isinstance(end, Broken)
    assert (end.fault.kind, end.arrived, end.holds) == (
        FaultKind.NOT_FOUND,
        ChunkSet.of([5]),
        ChunkSet.full(5),
    )


def test_a_damaged_chunk_is_named_and_does_not_count(asked):
    for digest in (GOOD[0], bytes(8), GOOD[2]):
        asked.settle_chunk(digest)
    assert asked.end_range(Status.OK)
    end = asked.end()
    assert isinstance(end, Broken)
    assert end.fault.kind is FaultKind.CORRUPT
    assert "Node n1 sent chunk 5 of artifact a damaged" in end.fault.detail
    assert end.arrived == ChunkSet.of([4, 6])


def test_a_lost_peer_says_nothing_of_what_it_holds(asked):
    asked.settle_chunk(GOOD[0])
    asked.holds = ChunkSet.full(5)
    end = asked.lose("gone")
    assert (end.fault.kind, end.arrived, end.holds) == (
        FaultKind.UNAVAILABLE,
        ChunkSet.of([4]),
        None,
    )


def test_an_absent_artifact_and_another_one(asked):
    with pytest.raises(Corrupt, match="another artifact"):
        asked.end_range(Status.INVALID)
    assert asked.end_range(Status.NOT_FOUND)
    end = asked.end()
    assert isinstance(end, Broken)
    assert end.fault.kind is FaultKind.NOT_FOUND
    assert "does not have artifact a" in end.fault.detail


def test_pulls_that_wait_for_their_turn_do_not_wait_twice():
    pull = msgspec.structs.replace(PULL, wait_s=2.0)
    asked = Asked(Posted(pull, memoryview(bytes(200)), since=100.0))
    assert asked.wait_s(100.5, 0.0) == 1.5
    assert asked.wait_s(103.0, 0.0) == 0.0
    assert asked.wait_s(103.0, 102.5) == 1.5, "the peer still gets something"
    assert asked.wait_s(100.0, 99.0) == 2.0


def in_ranges(size_bytes):
    asked = Asked(Posted(PULL, memoryview(bytes(range(200)))))
    found = []
    while asked.has_more:
        found.append(asked.ask(size_bytes))
    return asked, found


@pytest.mark.parametrize(
    ("size_bytes", "ranges"),
    [
        (1, [(40, 10), (50, 10), (60, 5)]),
        (19, [(40, 10), (50, 10), (60, 5)]),
        (20, [(40, 20), (60, 5)]),
        (30, [(40, 25)]),
    ],
)
def test_it_is_asked_for_range_by_range_of_whole_chunks(size_bytes, ranges):
    asked, found = in_ranges(size_bytes)
    assert found == asked.owed == [ByteRange(*each) for each in ranges]


def test_a_pull_that_may_wait_is_asked_for_as_a_whole():
    pull = msgspec.structs.replace(PULL, wait_s=2.0)
    asked = Asked(Posted(pull, memoryview(bytes(200))))
    assert asked.ask(10) == ByteRange(40, 25)
    assert not asked.has_more


def test_ranges_are_answered_one_after_the_other():
    asked, _ = in_ranges(10)
    for digest, left in zip(GOOD, (10, 10, 5), strict=True):
        assert asked.left.size == left
        asked.settle_chunk(digest)
        assert asked.left.size == 0
        assert asked.end_range(Status.OK) == (digest == GOOD[-1])
    assert asked.end() == Completed(pull=PULL)


def test_what_is_owed_is_asked_for_again_on_another_connection():
    asked, _ = in_ranges(20)
    asked.settle_chunk(GOOD[0])
    assert asked.owed == [ByteRange(50, 10), ByteRange(60, 5)]


def test_after_a_refused_range_no_more_is_asked_for_but_what_was_counts():
    asked = Asked(Posted(PULL, memoryview(bytes(200))))
    asked.ask(10)
    asked.ask(10)
    assert asked.has_more
    assert not asked.end_range(Status.MISSING), "the second one is owed"
    assert not asked.has_more
    assert asked.left == ByteRange(50, 10)
    asked.settle_chunk(GOOD[1])
    assert asked.end_range(Status.OK)
    end = asked.end()
    assert isinstance(end, Broken)
    assert (end.fault.kind, end.arrived) == (FaultKind.NOT_FOUND, ChunkSet.of([5]))


def test_chunks_are_shared_once_and_told_of_all_the_same():
    shared: list[ChunkSet] = []
    asked = Asked(Posted(PULL, memoryview(bytes(200)), share=shared.append))
    asked.ask(1000)
    asked.share()
    for digest in (GOOD[0], bytes(8)):
        asked.settle_chunk(digest)
    asked.share()
    asked.share()
    assert shared == [ChunkSet.of([4])], "not the damaged one"
    told = asked.take_progress()
    assert told is not None
    assert told.arrived == ChunkSet.of([4])
    asked.settle_chunk(GOOD[2])
    asked.share()
    assert shared == [ChunkSet.of([4]), ChunkSet.of([6])]
    asked.end_range(Status.OK)
    end = asked.end()
    assert isinstance(end, Broken)
    assert end.arrived == ChunkSet.of([6])
