import pytest

from tensorcast.movers.core.sources import Limits, Run, Source, admit, choose_runs, settle
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.faults import FaultKind

MIB = 1 << 20
LIMITS = Limits(pulls_in_flight_max=2, run_bytes_max=4 * MIB, corrupt_max=1, probes_fruitless_max=2)
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


def test_a_chunk_larger_than_a_run_is_a_run():
    runs = choose_runs([source()], ALL, 64 * MIB, LIMITS)
    assert spans(runs) == [("a", 0, 1), ("a", 1, 2)]


def test_only_what_a_source_holds_is_asked_of_it():
    runs = choose([source("a", ChunkSet.of([5])), source("b", ChunkSet.of([7, 8]))], ALL)
    assert spans(runs) == [("a", 5, 6), ("b", 7, 9)]


def test_an_idle_source_that_is_filling_is_probed_for_what_nobody_is_asked_for():
    filling = source("a", ChunkSet.of([0]), is_filling=True)
    assert choose([filling], ChunkSet.of([0, 3, 4])) == (Run(node="a", first=0, stop=1),)
    probe = Run(node="a", first=3, stop=4, is_probe=True)
    assert choose([filling], ChunkSet.of([3, 4])) == (probe,)


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


def after(before=BUSY, *, arrived=(), holds=None, fault=None):
    return settle(before, ChunkSet.of(arrived), holds, fault, ASKED, LIMITS)


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
