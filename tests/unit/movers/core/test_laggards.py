import pytest

from tensorcast.movers.core.laggards import Laggard, Reason, find_laggards
from tensorcast.movers.core.pace import Pace
from tensorcast.movers.core.sources import Limits, Source
from tensorcast.schema.chunks import ChunkSet

MIB = 1 << 20
ALL = ChunkSet.full(100)
REST = ChunkSet.of([90, 91, 92, 93])
LIMITS = Limits(stall_s=2.0)


def source(node, rate=0.0, heard_s=10.0, **more):
    pace = Pace(rate=rate * MIB, since_s=heard_s, heard_s=heard_s)
    return Source(node=node, chunks=more.pop("chunks", ALL), pace=pace, **more)


def find(*sources, owed=REST, is_all_asked=True, at_s=10.0):
    found = find_laggards(
        sources,
        {("slow", 0): owed},
        is_all_asked=is_all_asked,
        chunk_bytes=MIB,
        limits=LIMITS,
        at_s=at_s,
    )
    assert all(one.life == ("slow", 0) for one in found)
    return [one.reason for one in found]


SLOW = source("slow", rate=2, in_flight=1)
FAST = source("fast", rate=100)


def test_an_idle_source_takes_over_at_the_end():
    assert find(SLOW, FAST) == [Reason.SLOW]
    assert find(SLOW, FAST, is_all_asked=False) == []
    assert find(SLOW, source("fast", rate=100, in_flight=1)) == []


@pytest.mark.parametrize(("rate", "found"), [(60, []), (20, [Reason.LATE]), (1, [Reason.SLOW])])
def test_only_when_it_gains_something(rate, found):
    assert find(source("slow", rate=rate, in_flight=1), FAST) == found


def test_a_source_that_is_filling_is_late_but_not_to_blame():
    assert find(source("slow", rate=1, in_flight=1, is_filling=True), FAST) == [Reason.LATE]


@pytest.mark.parametrize(
    "other",
    [
        source("fast", rate=100, rank=1),
        source("fast", rate=100, is_trusted=False),
        source("fast", rate=100, chunks=ALL - ChunkSet.of([92])),
        source("fast"),
    ],
)
def test_not_for_one_of_a_worse_rank_or_without_the_chunks_or_that_nobody_knows(other):
    assert find(SLOW, other) == []


def test_one_idle_source_takes_over_from_one():
    other = source("other", rate=2, in_flight=1)
    found = find_laggards(
        [SLOW, other, FAST],
        {("slow", 0): REST, ("other", 0): ChunkSet.of([80])},
        is_all_asked=True,
        chunk_bytes=MIB,
        limits=LIMITS,
        at_s=10.0,
    )
    assert found == (Laggard(node="slow", epoch=0, reason=Reason.SLOW),)


def test_one_that_was_only_just_asked_gets_its_chance():
    new = source("slow", in_flight=1)
    assert find(new, FAST, at_s=10.04) == []
    assert find(new, FAST, at_s=10.2) == [Reason.SLOW]


def test_silence_is_left_for_whoever_has_the_rest():
    busy = source("fast", rate=100, rank=1, in_flight=4, heard_s=12.9)
    silent = source("slow", rate=100, in_flight=1)
    assert find(silent, busy, is_all_asked=False, at_s=11.9) == []
    assert find(silent, busy, is_all_asked=False, at_s=13.0) == [Reason.SILENT]
    assert find(silent, is_all_asked=False, at_s=99.0) == []
    alike = source("fast", rate=100, in_flight=1)
    assert find(silent, alike, is_all_asked=False, at_s=99.0) == [], "the network is at fault"
    other = source("fast", rate=100, chunks=ALL - REST)
    assert find(silent, other, is_all_asked=False, at_s=13.0) == []
