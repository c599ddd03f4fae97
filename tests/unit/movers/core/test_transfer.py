"""The transfer machine: tables for what must happen, properties for what may."""

import itertools
from collections import Counter

import msgspec
import pytest

from tensorcast.movers.core.laggards import Laggard, Reason
from tensorcast.movers.core.sources import Limits
from tensorcast.movers.core.transfer import (
    Completed,
    Progressed,
    Target,
    TransferStatus,
    advance,
    learn,
    tick,
)
from tensorcast.schema.chunks import ByteRange, ChunkSet
from tensorcast.schema.events import (
    OperationFailed,
    OperationSucceeded,
    ReplicaFilled,
    ReplicaReady,
)
from tensorcast.schema.faults import FaultKind
from transfers import (
    ARTIFACT,
    LIMITS,
    MIB,
    TARGET,
    broken,
    events_of,
    filling,
    finish,
    lost,
    ready,
    start,
)


def test_a_pull_knows_all_that_a_transport_needs():
    turn = start(3, [ready("a", 3, transport="rdma")], missing=ChunkSet.of([1, 2]))
    first, second = turn.pulls
    assert (first.number, first.peer, first.artifact) == (0, "a", ARTIFACT)
    assert first.chunks == ChunkSet.of([1])
    assert first.source_range == first.target_range == ByteRange(MIB, MIB)
    assert second.target_range == ByteRange(2 * MIB, MIB - 100)
    assert second.digest(2) == (2).to_bytes(8, "big")
    assert (second.transport, second.wait_s) == ("rdma", 0.0)


def test_a_transfer_ends_with_the_replica_and_the_operation():
    turns = finish(start(5, [ready("a", 5)]))
    moved = 5 * MIB - 100
    assert turns[-1].status is TransferStatus.READY
    assert turns[-1].fault is None
    assert list(turns[-1].events) == [
        ReplicaReady(
            replica=TARGET.replica,
            artifact=ARTIFACT,
            node="n9",
            tier="dram",
            epoch=3,
            chunks_total=5,
        ),
        OperationSucceeded(operation="op-1", epoch=3, bytes_moved=moved, transports={"tcp": moved}),
    ]


def test_a_reader_on_the_node_gets_no_operation_events():
    target = Target(artifact=ARTIFACT, node="n9", epoch=3)
    turns = finish(start(2, [ready("a", 2)], target=target))
    assert [type(event) for event in turns[-1].events] == [ReplicaReady]
    failed = start(2, [], target=target)
    assert (failed.status, failed.events) == (TransferStatus.FAILED, ())


@pytest.mark.parametrize("chunks", [0, 4])
def test_nothing_missing_is_ready_at_once(chunks):
    turn = start(chunks, [], missing=ChunkSet())
    assert turn.status is TransferStatus.READY
    assert turn.pulls == ()
    assert turn.events[-1].bytes_moved == 0


def test_no_source_fails_with_a_sentence():
    turn = start(4, [])
    assert turn.status is TransferStatus.FAILED
    assert turn.fault == turn.events[0].fault
    assert turn.fault.kind is FaultKind.UNAVAILABLE
    assert turn.fault.detail == (
        f"The bytes of artifact {ARTIFACT} are nowhere: no node that is up has them."
    )


def test_bytes_are_counted_by_transport():
    sources = [ready("a", 4, transport="tcp"), ready("b", 4, transport="rdma")]
    turns = finish(start(4, sources, limits=Limits(pulls_in_flight_max=1, run_bytes_max=MIB)))
    assert set(turns[-1].transfer.transports) == {"tcp", "rdma"}
    assert turns[-1].transfer.bytes_moved == 4 * MIB - 100


def test_a_lost_peer_is_replaced():
    turn = start(4, [ready("a", 4), ready("b", 4)])
    gone = [p for p in turn.pulls if p.peer == "a"]
    for pull in gone:
        turn = advance(turn.transfer, lost(pull))
    assert {p.peer for p in turn.transfer.in_flight} == {"b"}
    assert turn.transfer.lost == {("a", 0)}
    assert finish(turn)[-1].status is TransferStatus.READY


def test_what_arrived_before_the_loss_is_kept():
    turn = start(64, [ready("a", 64), ready("b", 64)])
    pull = turn.pulls[0]
    assert len(pull.chunks) == 2
    kept = broken(pull, FaultKind.UNAVAILABLE, arrived=ChunkSet.of([pull.first]))
    turn = advance(turn.transfer, kept)
    assert pull.first not in turn.transfer.missing
    assert turn.transfer.bytes_moved == MIB


def test_the_last_peer_lost_fails_the_operation_and_tells_why():
    turn = start(4, [ready("a", 4)])
    for pull in turn.pulls:
        turn = advance(turn.transfer, lost(pull))
    assert turn.status is TransferStatus.FAILED
    assert isinstance(turn.events[-1], OperationFailed)
    assert turn.fault.retryable
    assert turn.fault.detail.endswith("4 of 4 chunks are missing. Last: a unavailable.")


def test_damaged_chunks_go_to_another_source_and_their_peer_is_dropped():
    turn = start(4, [ready("a", 4), ready("b", 4)])
    damaged = 0
    while turn.status is TransferStatus.RUNNING:
        pull = turn.transfer.in_flight[0]
        if pull.peer == "a":
            damaged += 1
            turn = advance(turn.transfer, broken(pull, FaultKind.CORRUPT))
        else:
            turn = advance(turn.transfer, Completed(pull=pull))
    assert turn.status is TransferStatus.READY
    assert damaged <= LIMITS.corrupt_max + LIMITS.pulls_in_flight_max


def test_only_damaged_sources_fail_as_corrupt():
    turn = start(4, [ready("a", 4)])
    while turn.status is TransferStatus.RUNNING:
        turn = advance(turn.transfer, broken(turn.transfer.in_flight[0], FaultKind.CORRUPT))
    assert turn.fault.kind is FaultKind.CORRUPT


def test_a_damaged_source_that_drops_the_chunks_still_fails_as_corrupt():
    turn = start(4, [ready("a", 4)])
    kinds = iter([FaultKind.CORRUPT])
    while turn.status is TransferStatus.RUNNING:
        pull, kind = turn.transfer.in_flight[0], next(kinds, FaultKind.NOT_FOUND)
        turn = advance(turn.transfer, broken(pull, kind))
    assert turn.fault.kind is FaultKind.CORRUPT
    assert "a corrupt" in turn.fault.detail


def test_a_filling_source_is_probed_and_its_news_are_used():
    turn = start(4, [filling("a")])
    probe, other = turn.pulls
    assert (probe.chunks, probe.wait_s) == (ChunkSet.of([0]), LIMITS.probe_wait_s)
    assert (other.chunks, other.wait_s) == (ChunkSet.of([1]), LIMITS.probe_wait_s)
    turn = advance(turn.transfer, Completed(pull=probe, holds=ChunkSet.of([0, 1, 2])))
    assert [(p.chunks, p.wait_s) for p in turn.pulls] == [(ChunkSet.of([2]), 0.0)]


def test_a_filling_source_that_never_gets_more_ends_the_transfer():
    turn = start(4, [filling("a")])
    probes = 0
    while turn.status is TransferStatus.RUNNING:
        probes += 1
        for probe in turn.transfer.in_flight:
            turn = advance(turn.transfer, broken(probe, FaultKind.NOT_FOUND, holds=ChunkSet()))
    assert probes == LIMITS.probes_fruitless_max
    assert turn.fault.kind is FaultKind.UNAVAILABLE
    assert "no node that is up has them" in turn.fault.detail


def test_replicas_that_wait_for_each_other_do_not_wait_long():
    limits = Limits()
    assert limits.probes_fruitless_max * limits.probe_wait_s <= 3


def test_a_new_life_of_a_lost_source_is_used_again():
    turn = start(4, [ready("a", 4, epoch=1), filling("b")])
    for pull in [p for p in turn.pulls if p.peer == "a"]:
        turn = advance(turn.transfer, lost(pull))
    assert {pull.peer for pull in turn.transfer.in_flight} == {"b"}
    assert learn(turn.transfer, [ready("a", 4, epoch=1)]).pulls == ()
    turn = learn(turn.transfer, [ready("a", 4, epoch=2)])
    assert {pull.life for pull in turn.pulls} == {("a", 2)}


def test_the_end_of_an_old_life_is_no_fault_of_the_new_one():
    turn = start(8, [ready("a", 8, epoch=1)])
    old = turn.pulls
    turn = learn(turn.transfer, [ready("a", 8, epoch=2)])
    new = turn.pulls
    for pull in old:
        turn = advance(turn.transfer, lost(pull))
    assert turn.status is TransferStatus.RUNNING
    assert {p.life for p in turn.transfer.in_flight} == {("a", 2)}
    assert len(new) == LIMITS.pulls_in_flight_max
    assert finish(turn)[-1].status is TransferStatus.READY


def test_a_source_that_was_asked_in_vain_is_used_when_it_holds_more():
    turn = start(6, [filling("a"), filling("b", ChunkSet.of([5]))])
    while pulls := [p for p in turn.transfer.in_flight if p.peer == "a"]:
        turn = advance(turn.transfer, broken(pulls[0], FaultKind.NOT_FOUND, holds=ChunkSet()))
    assert turn.status is TransferStatus.RUNNING
    for pull in turn.transfer.in_flight[:1]:
        turn = advance(turn.transfer, broken(pull, FaultKind.NOT_FOUND, holds=ChunkSet()))
    turn = learn(turn.transfer, [filling("a", ChunkSet.full(5))])
    assert "a" in {pull.peer for pull in turn.transfer.in_flight}


def test_a_ready_source_that_still_checks_its_bytes_is_waited_for():
    turn = start(4, [ready("a", 4)])
    for pull in turn.pulls:
        turn = advance(turn.transfer, broken(pull, FaultKind.NOT_FOUND, holds=ChunkSet()))
    for _ in range(LIMITS.checks_fruitless_max - 3):
        assert turn.status is TransferStatus.RUNNING
        for probe in turn.transfer.in_flight:
            assert probe.wait_s
            turn = advance(turn.transfer, broken(probe, FaultKind.NOT_FOUND, holds=ChunkSet()))
        turn = learn(turn.transfer, [ready("a", 4)])
    turn = advance(turn.transfer, Completed(pull=turn.transfer.in_flight[0]))
    assert all(p.wait_s == 0 for p in turn.pulls), "it holds everything by now"
    assert finish(turn)[-1].status is TransferStatus.READY


def test_a_source_that_found_damage_at_its_check_is_filling():
    turn = start(4, [ready("a", 4)])
    for pull in turn.pulls:
        turn = advance(turn.transfer, broken(pull, FaultKind.NOT_FOUND, holds=ChunkSet()))
    turn = learn(turn.transfer, [filling("a", ChunkSet.of([1, 2]))])
    (source,) = turn.transfer.sources
    assert source.is_filling
    assert not source.promised.ranges
    assert source.chunks == ChunkSet.of([1, 2])


def test_news_of_the_cluster_add_sources_but_never_a_lost_one():
    turn = start(8, [ready("a", 8)])
    turn = learn(turn.transfer, [ready("b", 8)])
    assert {p.peer for p in turn.pulls} == {"b"}
    turn = advance(turn.transfer, lost(turn.pulls[0]))
    turn = learn(turn.transfer, [ready("b", 8)])
    assert turn.pulls == ()
    over = finish(turn)[-1]
    assert learn(over.transfer, [ready("c", 8)]) == type(over)(transfer=over.transfer)


def test_a_completion_counts_once():
    turn = start(8, [ready("a", 8)])
    pull = turn.pulls[0]
    once = advance(turn.transfer, Completed(pull=pull))
    again = advance(once.transfer, Completed(pull=pull))
    assert (again.transfer, again.pulls, again.events) == (once.transfer, (), ())


def test_chunks_count_as_they_progress_and_only_once():
    turn = start(8, [ready("a", 8)])
    pull = turn.pulls[0]
    assert len(pull.chunks) == 2
    part = Progressed(pull=pull, arrived=ChunkSet.of([pull.first]))
    turn = advance(turn.transfer, part)
    assert pull in turn.transfer.in_flight
    assert pull.first not in turn.transfer.missing
    assert turn.transfer.bytes_moved == MIB
    again = advance(turn.transfer, part)
    assert again.transfer.bytes_moved == MIB
    over = finish(again)[-1]
    assert over.status is TransferStatus.READY
    assert over.transfer.bytes_moved == 8 * MIB - 100


def test_what_progressed_before_a_loss_is_kept():
    turn = start(8, [ready("a", 8)])
    first, second = turn.pulls
    turn = advance(turn.transfer, Progressed(pull=first, arrived=ChunkSet.of([first.first])))
    turn = advance(turn.transfer, lost(first))
    turn = advance(turn.transfer, lost(second))
    assert turn.status is TransferStatus.FAILED
    assert turn.transfer.missing == ChunkSet.full(8) - ChunkSet.of([first.first])
    assert advance(turn.transfer, Progressed(pull=first, arrived=first.chunks)).events == ()


def test_progress_tells_what_a_filling_source_holds():
    turn = start(4, [filling("a")])
    pull, _ = turn.pulls
    more = Progressed(pull=pull, arrived=ChunkSet.of([0]), holds=ChunkSet.of([0, 1, 2]))
    turn = advance(turn.transfer, more)
    assert turn.transfer.sources[0].chunks == ChunkSet.of([0, 1, 2])


def test_progress_is_reported_in_few_events():
    turns = finish(start(100, [ready("a", 100)]))
    reports = [e for e in events_of(turns) if isinstance(e, ReplicaFilled)]
    assert 1 < len(reports) <= LIMITS.reports_max
    small = finish(start(10, [ready("a", 10)], limits=Limits()))
    assert not [e for e in events_of(small) if isinstance(e, ReplicaFilled)]


def test_progress_that_comes_soon_after_a_report_is_reported_later():
    limits = msgspec.structs.replace(LIMITS, report_s=40.0)
    turn = start(100, [ready("a", 100)], limits=limits)
    reported_s, count = [], 0
    for at_s in range(1, 200):
        if turn.transfer.in_flight:
            turn = advance(turn.transfer, Completed(pull=turn.transfer.in_flight[0]), float(at_s))
            news = [e for e in turn.events if isinstance(e, ReplicaFilled)]
            reported_s += [at_s] * len(news)
            count += sum(len(e.chunks) for e in news)
    assert turn.status is TransferStatus.READY
    assert reported_s
    assert all(now >= before + 40 for before, now in itertools.pairwise([0, *reported_s]))
    assert count < 100


def test_a_failure_reports_what_has_arrived():
    turn = start(100, [ready("a", 100)], limits=Limits())
    first = turn.pulls[0]
    turn = advance(turn.transfer, Completed(pull=first))
    while turn.status is TransferStatus.RUNNING:
        turn = advance(turn.transfer, lost(turn.transfer.in_flight[0]))
    filled, failed = turn.events
    assert filled == ReplicaFilled(replica=TARGET.replica, epoch=3, chunks=first.chunks)
    assert failed.bytes_moved == first.source_range.size


def test_a_silent_source_is_left_when_another_can_take_over():
    turn = start(8, [ready("a", 8), ready("b", 8)])
    first = {p.peer: p for p in turn.pulls}
    turn = advance(turn.transfer, Completed(pull=first["b"]), 1.0)
    turn = tick(turn.transfer, 1.9)
    assert turn.leaving == ()
    turn = tick(turn.transfer, 2.1)
    assert turn.leaving == (Laggard(node="a", epoch=0, reason=Reason.SILENT),)
    owed = [p for p in turn.transfer.in_flight if p.peer == "a"]
    assert owed, "its pulls are in flight until its channel is closed"
    assert tick(turn.transfer, 2.2).leaving == ()
    for pull in owed:
        turn = advance(turn.transfer, lost(pull), 2.2)
    assert {p.peer for p in turn.transfer.in_flight} == {"b"}
    assert finish(turn)[-1].status is TransferStatus.READY


def test_the_only_source_may_be_silent():
    turn = tick(start(8, [ready("a", 8)]).transfer, 60.0)
    assert (turn.leaving, turn.status) == ((), TransferStatus.RUNNING)


def test_a_lost_source_that_is_forgiven_is_used_again_and_a_liar_is_not():
    turn = start(8, [ready("a", 8), ready("b", 8), ready("c", 8)])
    for pull in turn.pulls:
        if pull.peer == "a":
            turn = advance(turn.transfer, lost(pull))
        if pull.peer == "b":
            turn = advance(turn.transfer, broken(pull, FaultKind.NOT_FOUND))
    lives = frozenset({("a", 0), ("b", 0)})
    assert (turn.transfer.lost, turn.transfer.banned) == ({("a", 0)}, {("b", 0)})
    turn = learn(turn.transfer, [ready("a", 8), ready("b", 8)], 1.0, lives)
    assert {source.node for source in turn.transfer.sources} == {"a", "c"}


def test_a_planned_source_that_has_not_begun_is_waited_for_a_moment():
    turn = start(4, [filling("a", is_coming=True), ready("s", 4, rank=1)])
    at_s = 0.0
    while {p.peer for p in turn.transfer.in_flight} != {"s"}:
        for pull in turn.transfer.in_flight:
            turn = advance(turn.transfer, broken(pull, FaultKind.NOT_FOUND), at_s)
        assert turn.status is TransferStatus.RUNNING
        at_s += 0.01
        turn = tick(turn.transfer, at_s)
    assert 0.5 < at_s < 2.0


def test_the_pace_of_sources_is_measured_and_shapes_the_runs():
    limits = Limits(
        pulls_in_flight_max=1, run_bytes_max=8 * MIB, run_bytes_first=8 * MIB, run_s=0.25
    )
    turn = start(400, [ready("a", 400), ready("b", 400)], limits=limits)
    at_s, sizes = 0.0, Counter()
    for _ in range(20):
        at_s += 0.1
        for pull in turn.transfer.in_flight:
            if pull.peer == "a":
                sizes["a"] += len(pull.chunks)
                turn = advance(turn.transfer, Completed(pull=pull), at_s)
            else:
                chunk = ChunkSet.of([(pull.chunks & turn.transfer.missing).ranges[0][0]])
                done = (
                    Completed(pull=pull)
                    if len(pull.chunks & turn.transfer.missing) == 1
                    else (Progressed(pull=pull, arrived=chunk))
                )
                turn = advance(turn.transfer, done, at_s)
    rates = {s.node: s.pace.rate / MIB for s in turn.transfer.sources}
    assert rates["a"] == pytest.approx(80, rel=0.2)
    assert rates["b"] == pytest.approx(10, rel=0.2)
    assert len(next(p for p in turn.transfer.in_flight if p.peer == "b").chunks) <= 3


def test_when_a_transport_fails_the_rest_comes_over_the_next_one_and_it_is_told():
    known = ready("a", 6, transport="rdma", fallbacks=("tcp",))
    turn = start(6, [known])
    turn = advance(turn.transfer, Completed(pull=turn.pulls[0]))
    while over_rdma := [p for p in turn.transfer.in_flight if p.transport == "rdma"]:
        turn = advance(turn.transfer, lost(over_rdma[0]))
    assert {pull.transport for pull in turn.transfer.in_flight} == {"tcp"}
    last = finish(turn)[-1]
    assert last.status is TransferStatus.READY
    assert set(last.transfer.transports) == {"rdma", "tcp"}
    assert last.transfer.bytes_moved == 6 * MIB - 100
    (event,) = [e for e in last.events if isinstance(e, OperationSucceeded)]
    assert event.transports == last.transfer.transports
    assert [(d.peer, d.before, d.after) for d in event.detours] == [("a", "rdma", "tcp")]
