import pytest

from tensorcast.movers.core.pace import Pace
from tensorcast.movers.core.sources import (
    End,
    Limits,
    Run,
    Source,
    admit,
    choose_runs,
    find_detours,
    hear_of,
    occupy,
    settle,
)
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.faults import Detour, Fault, FaultKind

MIB = 1 << 20
LIMITS = Limits(
    pulls_in_flight_max=2,
    run_bytes_min=MIB,
    run_bytes_max=4 * MIB,
    corrupt_max=1,
    probes_fruitless_max=2,
)
ALL = ChunkSet.full(100)


def source(node="a", chunks=ALL, **more):
    return Source(node=node, chunks=chunks, **more)


def choose(sources, wanted, limits=LIMITS):
    return choose_runs(sources, wanted, MIB, limits)


def spans(runs):
    return [(run.node, run.first, run.stop) for run in runs]


def test_every_source_is_kept_busy():
    runs = choose([source("a"), source("b")], ALL)
    assert spans(runs) == [("a", 0, 4), ("b", 4, 8), ("a", 8, 12), ("b", 12, 16)]


def test_one_with_less_in_flight_comes_first():
    runs = choose([source("a", in_flight=1), source("b")], ALL)
    assert [run.node for run in runs] == ["b", "a", "b"]


def test_nothing_is_asked_of_a_busy_source():
    assert choose([source(in_flight=2)], ALL) == ()


def test_runs_get_shorter_towards_the_end():
    assert spans(choose([source()], ChunkSet.full(8))) == [("a", 0, 2), ("a", 2, 4)]
    assert spans(choose([source()], ChunkSet.of([7]))) == [("a", 7, 8)]


def test_those_of_the_only_source_get_shorter_late():
    limits = Limits(pulls_in_flight_max=16, run_bytes_first=4 * MIB, run_bytes_min=1 * MIB)
    for left, longest in ((40, 4), (32, 4), (16, 2), (8, 1), (1, 1)):
        runs = choose([source()], ChunkSet.full(left), limits)
        assert spans(runs)[0] == ("a", 0, longest)


def test_the_only_source_gets_no_short_runs():
    limits = Limits(pulls_in_flight_max=2, run_bytes_min=3 * MIB)
    assert spans(choose([source()], ChunkSet.full(8), limits)) == [("a", 0, 3), ("a", 3, 6)]
    both = [source(), source("b")]
    assert spans(choose(both, ChunkSet.full(8), limits))[0] == ("a", 0, 1)


def test_a_chunk_larger_than_a_run_is_a_run():
    runs = choose_runs([source()], ALL, 64 * MIB, LIMITS)
    assert spans(runs) == [("a", 0, 1), ("a", 1, 2)]


def test_only_what_a_source_holds_is_asked_of_it():
    runs = choose([source("a", ChunkSet.of([5])), source("b", ChunkSet.of([7, 8]))], ALL)
    assert spans(runs) == [("a", 5, 6), ("b", 7, 9)]


def test_a_source_that_is_filling_is_asked_for_long_runs_ahead_of_what_it_holds():
    filling = source("a", ChunkSet.of([0]), is_filling=True)
    assert choose([filling], ALL) == (
        Run(node="a", first=0, stop=4, waits=True),
        Run(node="a", first=4, stop=8, waits=True),
    )
    other = source("b", ChunkSet.of([2]), in_flight=2)
    assert spans(choose([filling, other], ALL))[0] == ("a", 0, 2), "the other has the next one"
    assert choose([filling], ChunkSet.of([3])) == (Run(node="a", first=3, stop=4, waits=True),)


def test_what_another_source_has_is_only_probed_at_one_that_is_filling():
    whole, filling = source("a", in_flight=2), source("b", ChunkSet(), is_filling=True)
    assert choose([whole, filling], ALL) == (Run(node="b", first=0, stop=1, waits=True),)
    busy = source("b", ChunkSet(), is_filling=True, in_flight=1)
    assert choose([whole, busy], ALL) == ()


def test_the_next_rank_is_asked_only_for_what_nobody_better_has_or_gets():
    planned, other = source("a", ChunkSet.full(50), in_flight=2), source("b", rank=1)
    assert spans(choose([planned, other], ALL)) == [("b", 50, 54), ("b", 54, 58)]
    filling = source("a", ChunkSet(), is_filling=True, in_flight=2)
    assert choose([filling, other], ALL) == ()
    vain = source("a", ChunkSet(), is_filling=True, fruitless=2)
    assert {run.node for run in choose([vain, other], ALL)} == {"b"}


def test_one_that_has_not_begun_is_asked_once_and_rests_between_tries():
    coming = source("a", ChunkSet(), is_filling=True, is_coming=True)
    first = choose([coming], ALL)
    assert spans(first) == [("a", 0, 4)]
    rests = []
    for _ in range(LIMITS.absences_max):
        assert coming.is_promising(LIMITS)
        (coming,) = occupy([coming], first, 1.0)
        end = End(asked=first[0].chunks, fault=FaultKind.NOT_FOUND, vain_before=coming.fruitless)
        coming = settle(coming, end, LIMITS, 1.0)
        rests.append(coming.rests_until_s - 1.0)
        assert choose_runs([coming], ALL, MIB, LIMITS, 1.0) == ()
    assert rests == pytest.approx([LIMITS.absent_rest_s * 2**n for n in range(len(rests))])
    assert not coming.is_promising(LIMITS)
    begun = hear_of(coming, ChunkSet.of([0]), MIB, 2.0)
    assert not begun.is_coming


def test_runs_are_as_long_as_the_pace_allows():
    limits = Limits(pulls_in_flight_max=4, run_bytes_max=4 * MIB, run_s=0.1, ahead_s=0.2)
    fast = source("a", pace=Pace(rate=40 * MIB))
    slow = source("b", pace=Pace(rate=4 * MIB))
    runs = spans(choose([fast, slow], ALL, limits))
    assert runs == [("a", 0, 4), ("b", 4, 5), ("a", 5, 9), ("b", 9, 10)]
    new = spans(choose([source("a")], ALL, Limits(pulls_in_flight_max=2, run_bytes_first=MIB)))
    assert new == [("a", 0, 1), ("a", 1, 2)]


def test_one_on_probation_gets_one_chunk_until_it_delivers():
    good, doubted = source("a", in_flight=2), source("b", is_trusted=False)
    assert spans(choose([good, doubted], ALL)) == [("b", 0, 1)]
    (busy,) = occupy([doubted], choose([doubted], ALL))
    assert choose([busy], ALL) == ()
    assert not doubted.is_promising(LIMITS)
    assert hear_of(busy, ChunkSet.of([0]), MIB, 0.1).is_trusted
    assert not hear_of(busy, ChunkSet(), 0, 0.1).is_trusted


def test_silence_is_counted_from_the_first_request_after_a_rest():
    idle = source("a", pace=Pace(rate=5.0, heard_s=1.0))
    runs = choose([idle], ALL)
    (busy,) = occupy([idle], runs, 9.0)
    assert (busy.in_flight, busy.pace) == (2, Pace(rate=5.0, since_s=9.0, heard_s=9.0))
    (more,) = occupy([busy], runs[:1], 11.0)
    assert (more.in_flight, more.pace.heard_s) == (3, 9.0)


def test_two_probes_ask_for_different_chunks():
    sources = [source(node, ChunkSet(), is_filling=True) for node in "ab"]
    assert spans(choose(sources, ChunkSet.of([3, 4]))) == [("a", 3, 4), ("b", 4, 5)]


def test_admit_adds_knowledge_and_keeps_counts():
    known = [source("a", ChunkSet.of([1]), is_filling=True, in_flight=2, corrupt=1)]
    found = [source("a", ChunkSet.of([2])), source("b", in_flight=9), source("c")]
    assert admit(known, found, frozenset({("c", 0)})) == (
        source("a", ChunkSet.of([1, 2]), in_flight=2, corrupt=1),
        source("b"),
    )


ASKED = ChunkSet.of([1, 2])
BUSY = source(in_flight=1)


def after(before=BUSY, *, arrived=(), holds=None, fault=None, vain_before=None):
    end = End(
        asked=ASKED,
        arrived=ChunkSet.of(arrived),
        holds=holds,
        fault=fault,
        vain_before=before.fruitless if vain_before is None else vain_before,
    )
    return settle(before, end, LIMITS)


def test_a_pull_that_arrived_frees_its_place():
    assert after(arrived=[1, 2]) == source(in_flight=0)


def test_what_a_peer_says_it_holds_is_believed():
    filling = source(chunks=ChunkSet.of([1]), is_filling=True, in_flight=1, fruitless=2)
    told = after(filling, arrived=[1, 2], holds=ChunkSet.of([1, 2, 3]))
    assert told == source(chunks=ChunkSet.of([1, 2, 3]), is_filling=True)


@pytest.mark.parametrize(
    "kind", [k for k in FaultKind if k not in (FaultKind.CORRUPT, FaultKind.NOT_FOUND)]
)
def test_a_lost_peer_is_dropped(kind):
    assert after(fault=kind) is None


def test_a_peer_without_the_artifact_is_dropped():
    assert after(fault=FaultKind.NOT_FOUND) is None


def test_a_peer_that_lacks_a_chunk_is_not_asked_for_it_again():
    ready = after(fault=FaultKind.NOT_FOUND, holds=ALL - ASKED)
    assert ready is not None
    assert ready.chunks == ALL - ASKED
    filling = after(source(is_filling=True, in_flight=1), fault=FaultKind.NOT_FOUND)
    assert filling is not None
    assert filling.chunks == ALL - ASKED


def test_damaged_chunks_are_forgiven_up_to_a_limit():
    once = after(fault=FaultKind.CORRUPT)
    assert once == source(corrupt=1)
    assert after(once, fault=FaultKind.CORRUPT) is None


def test_probes_in_vain_end():
    filling = source(chunks=ChunkSet(), is_filling=True, in_flight=1)
    for n in (1, 2):
        assert filling.is_promising(LIMITS)
        filling = after(filling, fault=FaultKind.NOT_FOUND)
        assert filling.fruitless == n
    assert not filling.is_promising(LIMITS)
    assert choose([filling], ALL) == ()
    assert after(filling, arrived=[1], holds=ASKED).is_promising(LIMITS)
    (heard,) = admit([filling], [source(chunks=ChunkSet.of([5]), is_filling=True)], frozenset())
    assert heard.is_promising(LIMITS)


def test_a_new_life_is_admitted_and_an_old_one_is_not():
    first, second = source("a", ChunkSet.of([1]), epoch=1, corrupt=1), source("a", epoch=2)
    lost = frozenset({("a", 1)})
    assert admit([], [first], lost) == ()
    assert admit([first], [second], lost) == (second,)
    assert admit([second], [first], frozenset()) == (second,)


def test_a_peer_that_contradicts_itself_is_dropped():
    liar = source(in_flight=1)
    for _ in range(LIMITS.checks_fruitless_max):
        liar = after(liar, fault=FaultKind.NOT_FOUND, holds=ALL)
        assert liar.chunks == ALL
    assert after(liar, fault=FaultKind.NOT_FOUND, holds=ALL) is None


def test_pulls_that_waited_side_by_side_in_vain_count_once():
    filling = source(chunks=ChunkSet(), is_filling=True, in_flight=3)
    for _ in range(3):
        filling = after(filling, fault=FaultKind.NOT_FOUND, holds=ChunkSet(), vain_before=0)
    assert (filling.in_flight, filling.fruitless) == (0, 1)


def test_a_source_whose_transport_fails_is_reached_over_the_next_one():
    known = source(transport="rdma", fallbacks=("tcp",), in_flight=2, pace=Pace(rate=9.0))
    lost = End(asked=ChunkSet.of([1]), fault=FaultKind.UNAVAILABLE, transport="rdma")
    after = settle(known, lost, LIMITS)
    assert (after.transport, after.fallbacks, after.in_flight) == ("tcp", (), 1)
    assert after.pace.rate == 0, "the other one has a pace of its own"
    again = settle(after, lost, LIMITS)
    assert (again.transport, again.in_flight) == ("tcp", 0), "a pull of before says nothing new"
    assert settle(again, End(asked=ALL, fault=FaultKind.UNAVAILABLE), LIMITS) is None


def test_what_a_peer_lacks_or_sends_damaged_is_no_fault_of_the_transport():
    known = source(transport="rdma", fallbacks=("tcp",), in_flight=1, is_filling=True)
    for kind in (FaultKind.NOT_FOUND, FaultKind.CORRUPT):
        end = End(asked=ChunkSet.of([1]), fault=kind, transport="rdma")
        assert settle(known, end, LIMITS).transport == "rdma"


def test_a_detour_says_why():
    before = source(transport="rdma", fallbacks=("tcp",))
    after = source(transport="tcp")
    fault = Fault(kind=FaultKind.UNAVAILABLE, detail="The link is down.")
    assert find_detours(before, after, fault) == (
        Detour(peer="a", before="rdma", after="tcp", why="The link is down."),
    )
    assert find_detours(after, after, fault) == ()
