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
    return Asked(Posted(PULL, memoryview(bytes(range(200)))))


def test_chunks_have_their_places(asked):
    assert asked.left == ByteRange(40, 25)
    assert bytes(asked.targets(25)) == bytes(range(100, 125))
    first = [bytes(target) for target in asked.targets_by_chunk(20)]
    assert first == [bytes(range(100, 110)), bytes(range(110, 120))]
    for digest in GOOD[:2]:
        asked.settle_chunk(digest)
    assert [bytes(target) for target in asked.targets_by_chunk(5)] == [bytes(range(120, 125))]
    asked.settle_chunk(GOOD[2])
    assert asked.left.size == 0
    asked.take_progress()
    assert asked.end(Status.OK) == Completed(pull=PULL)


def test_progress_is_told_once(asked):
    assert asked.take_progress() is None
    asked.settle_chunk(GOOD[0])
    asked.holds = ChunkSet.full(5)
    told = Progressed(pull=PULL, arrived=ChunkSet.of([4]), holds=ChunkSet.full(5))
    assert asked.take_progress() == told
    assert asked.take_progress() is None
    asked.settle_chunk(None)
    end = asked.end(Status.MISSING)
    assert isinstance(end, Broken)
    assert (end.fault.kind, end.arrived, end.holds) == (
        FaultKind.NOT_FOUND,
        ChunkSet.of([5]),
        ChunkSet.full(5),
    )
    assert asked.left == ByteRange(60, 5)


def test_a_damaged_chunk_is_named_and_does_not_count(asked):
    for digest in (GOOD[0], bytes(8), GOOD[2]):
        asked.settle_chunk(digest)
    end = asked.end(Status.OK)
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
    end = asked.end(Status.NOT_FOUND)
    assert isinstance(end, Broken)
    assert end.fault.kind is FaultKind.NOT_FOUND
    with pytest.raises(Corrupt, match="another artifact"):
        asked.end(Status.INVALID)


def test_pulls_that_wait_for_their_turn_do_not_wait_twice():
    pull = msgspec.structs.replace(PULL, wait_s=2.0)
    asked = Asked(Posted(pull, memoryview(bytes(200)), since=100.0))
    assert asked.wait_s(100.5, 0.0) == 1.5
    assert asked.wait_s(103.0, 0.0) == 0.0
    assert asked.wait_s(103.0, 102.5) == 1.5, "the peer still gets something"
    assert asked.wait_s(100.0, 99.0) == 2.0
