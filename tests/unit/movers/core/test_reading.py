import pytest

from tensorcast.movers.core.digests import chunk_digest
from tensorcast.movers.core.reading import Read, Reading
from tensorcast.movers.core.transfer import Broken, Completed, Progressed, Pull
from tensorcast.schema.chunks import ByteRange, ChunkSet
from tensorcast.schema.faults import FaultKind

CHUNK = 100
CONTENT = bytes(range(250))
DIGESTS = b"".join(chunk_digest(CONTENT[n : n + CHUNK]) for n in range(0, 250, CHUNK))


def reading(*, holds: ChunkSet | None = None, share=None, **more) -> Reading:
    """Of chunks 1 and 2 (the second one short) into memory that begins with chunk 1."""
    pull = Pull(
        number=1,
        peer="n1",
        artifact="a" * 40,
        first=1,
        stop=3,
        source_range=ByteRange(100, 150),
        target_range=ByteRange(0, 150),
        chunk_bytes=CHUNK,
        digests=DIGESTS[8:],
        **more,
    )
    found = Reading(pull, 5.0, share)
    found.is_granted = True
    found.holds = holds
    return found


def good(chunk: int) -> bytes:
    return chunk_digest(CONTENT[chunk * CHUNK : (chunk + 1) * CHUNK])


def take(one: Reading, step: int = 60) -> list[Read]:
    return list(iter(lambda: one.next_read(step), None))


def test_chunks_are_read_in_pieces_that_end_where_they_end():
    reads = take(reading())
    assert reads == [
        Read(1, 100, 0, 60),
        Read(1, 160, 60, 40),
        Read(2, 200, 100, 50),
    ]


def test_a_chunk_counts_when_it_is_whole():
    shared: list[ChunkSet] = []
    one = reading(share=shared.append)
    first, second, third = take(one)
    assert one.arrive(first) is None
    assert one.arrive(second) == (0, 100)
    one.settle(1, good(1))
    assert one.take_progress() == Progressed(pull=one.pull, arrived=ChunkSet.of([1]))
    assert one.take_progress() is None
    assert not one.is_done
    assert one.arrive(third) == (100, 150)
    one.settle(2, good(2))
    assert one.is_done
    assert one.end() == Completed(pull=one.pull)
    assert shared == [ChunkSet.of([1]), ChunkSet.of([2])]


def test_a_chunk_that_does_not_match_is_named_and_the_others_count():
    one = reading()
    one.settle(1, b"12345678")
    one.settle(2, None)
    end = one.end()
    assert isinstance(end, Broken)
    assert end.fault.kind is FaultKind.CORRUPT
    assert "chunk 1" in end.fault.detail
    assert end.arrived == ChunkSet.of([2])


def test_what_the_peer_does_not_have_is_waited_for():
    one = reading(holds=ChunkSet.of([1]), wait_s=2.0)
    (read,) = take(one, CHUNK)
    assert one.is_waiting
    assert not one.is_stuck
    one.arrive(read)
    one.settle(1, good(1))
    assert one.is_stuck
    assert one.wait_s(6.0, 0.0) == pytest.approx(1.0)
    assert one.wait_s(6.0, 5.9) == pytest.approx(1.9)
    one.holds = ChunkSet.of([1, 2])
    assert not one.is_stuck
    assert [each.chunk for each in take(one, CHUNK)] == [2]


def test_nothing_is_read_before_it_is_granted():
    one = reading()
    one.is_granted = False
    assert take(one) == []


def test_after_a_rail_has_failed_only_the_broken_chunk_is_read_again():
    one = reading()
    first, second, third = take(one)
    one.arrive(first)
    one.arrive(second)
    one.settle(1, good(1))
    one.restart()
    assert take(one) == []
    one.is_granted, one.holds = True, None
    assert take(one) == [third]
    one = reading()
    one.arrive(one.next_read(60))
    one.restart()
    one.is_granted, one.holds = True, None
    assert take(one)[0] == first, "the part that had come comes again"


@pytest.mark.parametrize(
    ("end", "kind", "holds"),
    [
        (lambda one: one.miss(), FaultKind.NOT_FOUND, ChunkSet.of([1])),
        (lambda one: one.lack(), FaultKind.NOT_FOUND, None),
        (lambda one: one.refuse("no."), FaultKind.INVALID, None),
        (lambda one: one.lose("it is gone"), FaultKind.UNAVAILABLE, None),
    ],
)
def test_ends_say_what_follows(end, kind, holds):
    one = reading(holds=ChunkSet.of([1]))
    one.settle(1, good(1))
    broken = end(one)
    assert (broken.fault.kind, broken.arrived, broken.holds) == (kind, ChunkSet.of([1]), holds)
    assert "n1" in broken.fault.detail
