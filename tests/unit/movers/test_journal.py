"""Reports survive a crash, keep their order and reach the log once."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from samples import manifest
from tensorcast.log.follower import Follower
from tensorcast.log.memory import MemoryLog
from tensorcast.movers.journal import Journal, Report, plan
from tensorcast.movers.reserve import Reserve
from tensorcast.movers.seals import AcceptedSeal
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.codec import decode
from tensorcast.schema.commands import (
    CancelOperation,
    Command,
    CompleteReplica,
    FillReplica,
    IssueOperation,
    StartOperation,
    StartReplica,
    SucceedOperation,
)
from tensorcast.schema.errors import Corrupt, OutOfCapacity, Unavailable
from tensorcast.schema.ids import (
    ArtifactId,
    Epoch,
    EventId,
    NodeId,
    OperationId,
    Seq,
    Tier,
    replica_id,
)
from tensorcast.schema.socket import SealPut
from tensorcast.schema.work import Materialize

AT = datetime(2026, 1, 1, tzinfo=UTC)
A = ArtifactId("a" * 40)
N = NodeId("n1")
R = replica_id(A, N, Tier.DRAM)
OP = OperationId("op-1")
ISSUE = IssueOperation(operation=OP, node=N, work=Materialize(artifact=A), policy="demand")
START = StartOperation(operation=OP, epoch=Epoch(1))
SUCCEED = SucceedOperation(operation=OP, epoch=Epoch(1), bytes_moved=1)
BEGIN = StartReplica(replica=R, artifact=A, node=N, tier=Tier.DRAM, epoch=Epoch(1), chunks_total=2)
FILL = FillReplica(replica=R, epoch=Epoch(1), chunks=ChunkSet.of([0]))
READY = CompleteReplica(
    replica=R, artifact=A, node=N, tier=Tier.DRAM, epoch=Epoch(1), chunks_total=2
)


def report(number: int, command: Command) -> Report:
    return Report(id=EventId(f"event-{number}"), at=AT, actor="mover:n1", command=command)


@asynccontextmanager
async def draining(journal: Journal, log: MemoryLog) -> AsyncIterator[Follower]:
    follower = Follower(log)
    tasks = [
        asyncio.ensure_future(follower.run()),
        asyncio.ensure_future(journal.run(log, follower)),
    ]
    try:
        yield follower
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError, Unavailable):
                await task


def types(log: MemoryLog) -> list[str]:
    return [decode(stored.payload, stored.seq).type for stored in log._stored]


def test_reports_of_one_batch_see_each_other():
    planned = plan(ClusterView(), [report(1, BEGIN), report(2, FILL), report(3, READY)])
    assert [type(draft.event).__name__ for draft in planned.drafts] == [
        "ReplicaStarted",
        "ReplicaFilled",
        "ReplicaReady",
    ]
    assert [draft.expected for draft in planned.drafts] == [Seq(0), None, None]
    assert planned.refused == ()


def test_a_report_that_is_already_so_needs_no_event():
    planned = plan(ClusterView(), [report(1, BEGIN), report(2, BEGIN)])
    assert len(planned.drafts) == 1


def test_an_illegal_report_is_refused_and_the_others_go_on():
    planned = plan(ClusterView(), [report(1, FILL), report(2, BEGIN)])
    assert [r.id for r, _ in planned.refused] == ["event-1"]
    assert [d.id for d in planned.drafts] == ["event-2"]


async def test_what_is_recorded_reaches_the_log_in_order(tmp_path: Path):
    log, journal = MemoryLog(), Journal(tmp_path / "journal.db")
    async with draining(journal, log):
        await journal.record([report(0, ISSUE), report(1, START), report(2, BEGIN)])
        await asyncio.gather(
            journal.record([report(3, FILL)]),
            journal.record([report(4, READY)]),
            journal.record([report(5, SUCCEED)]),
        )
        await journal.settled()
    assert types(log) == [
        "operation.issued",
        "operation.started",
        "replica.started",
        "replica.filled",
        "replica.ready",
        "operation.succeeded",
    ]
    assert journal.pending == 0
    journal.close()


async def test_unsent_reports_survive_the_process(tmp_path: Path):
    first = Journal(tmp_path / "journal.db")
    await first.record([report(0, BEGIN), report(1, FILL)])
    first.close()
    log, second = MemoryLog(), Journal(tmp_path / "journal.db")
    assert second.pending == 2
    async with draining(second, log):
        await second.settled()
    second.close()
    assert types(log) == ["replica.started", "replica.filled"]
    third = Journal(tmp_path / "journal.db")
    assert third.pending == 0
    third.close()


async def test_a_report_that_the_log_shows_is_not_sent_again(tmp_path: Path):
    log, first = MemoryLog(), Journal(tmp_path / "journal.db")
    await first.record([report(0, BEGIN), report(1, FILL)])
    first.close()
    await log.append(plan(ClusterView(), [report(0, BEGIN), report(1, FILL)]).drafts)
    second = Journal(tmp_path / "journal.db")
    for stored in log._stored:
        second.observe(decode(stored.payload, stored.seq))
    async with draining(second, log):
        await second.settled()
    second.close()
    assert types(log) == ["replica.started", "replica.filled"]


async def test_a_cancelled_operation_is_not_reported_as_succeeded(tmp_path: Path):
    log, journal = MemoryLog(), Journal(tmp_path / "journal.db")
    cancel = CancelOperation(operation=OP, reason="not needed")
    await log.append(
        plan(ClusterView(), [report(0, ISSUE), report(1, START), report(2, cancel)]).drafts
    )
    async with draining(journal, log):
        await journal.record([report(3, SUCCEED), report(4, BEGIN)])
        await journal.settled()
    journal.close()
    assert types(log)[3:] == ["replica.started"]


async def test_another_writer_of_the_same_aggregate_only_delays(tmp_path: Path):
    log, journal = MemoryLog(), Journal(tmp_path / "journal.db")
    await log.append(plan(ClusterView(), [report(0, ISSUE), report(1, START)]).drafts)
    stale = Follower(log)  # never runs: its view is empty until the journal asks it to catch up
    run = asyncio.ensure_future(journal.run(log, stale))
    await journal.record([report(2, SUCCEED)])
    await asyncio.sleep(0)
    follow = asyncio.ensure_future(stale.run())
    await journal.settled()
    for task in (run, follow):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    journal.close()
    assert types(log) == ["operation.issued", "operation.started", "operation.succeeded"]


async def test_segments_are_remembered(tmp_path: Path):
    first = Journal(tmp_path / "journal.db")
    await first.keep_segment(R, "segment-1")
    await first.keep_segment(replica_id(A, N, Tier.DISK), "segment-2")
    await first.forget_segment(replica_id(A, N, Tier.DISK))
    first.close()
    second = Journal(tmp_path / "journal.db")
    assert second.segments == {R: "segment-1"}
    second.close()


def test_a_file_that_is_no_journal_is_a_clear_error(tmp_path: Path):
    (tmp_path / "journal.db").write_bytes(b"nonsense" * 1000)
    with pytest.raises(Unavailable, match="cannot be opened"):
        Journal(tmp_path / "journal.db")


async def test_a_node_knows_its_log_again(tmp_path: Path):
    log, first = MemoryLog(), Journal(tmp_path / "journal.db")
    await first.check_log("test", "monday", Seq(0))
    async with draining(first, log):
        await first.record([report(0, BEGIN), report(1, FILL)])
        await first.settled()
        await first.note_position(Seq(1))  # it never goes back
    first.close()
    second = Journal(tmp_path / "journal.db")
    await second.check_log("test", "monday", Seq(2))
    with pytest.raises(Corrupt, match="seen 2 events of its log, and this one is another one"):
        await second.check_log("test", "tuesday", Seq(9))
    with pytest.raises(Corrupt, match="this one ends at event 1"):
        await second.check_log("test", "monday", Seq(1))
    await second.check_log("test", "tuesday", Seq(9), Seq(9))  # it was filled again
    await second.note_position(Seq(12))
    second.close()
    third = Journal(tmp_path / "journal.db")
    await third.check_log("test", "tuesday", Seq(12), Seq(9))
    with pytest.raises(Corrupt, match="this one ends at event 11"):
        await third.check_log("test", "tuesday", Seq(11), Seq(9))
    with pytest.raises(Corrupt, match="is another one"):
        await third.check_log("test", "tuesday", Seq(12))
    await third.check_log("test", "tuesday", Seq(10), Seq(10))  # it was cut short, and filled again
    third.close()


async def test_reports_wait_as_long_as_they_may_not_be_sent(tmp_path: Path):
    log, journal = MemoryLog(), Journal(tmp_path / "journal.db")
    follower = Follower(log)
    tasks = [
        asyncio.ensure_future(follower.run()),
        asyncio.ensure_future(journal.run(log, follower, lambda view: bool(view.operations))),
    ]
    await journal.record([report(1, BEGIN)])
    for _ in range(20):
        await asyncio.sleep(0)
    assert types(log) == []
    await log.append(plan(ClusterView(), [report(0, ISSUE)]).drafts)
    await journal.settled()
    assert types(log) == ["operation.issued", "replica.started"]
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    journal.close()


def make_full(journal: Journal) -> None:
    """The file may not grow any more: sqlite says "database or disk is full"."""
    pages = journal._file._db.execute("PRAGMA page_count").fetchone()[0]
    journal._file._db.execute(f"PRAGMA max_page_count = {pages}")


def make_room(journal: Journal) -> None:
    journal._file._db.execute("PRAGMA max_page_count = 1000000")


def a_seal(ticket: str) -> AcceptedSeal:
    content = SealPut(session=1, kind="k" * 50_000, manifest=manifest(1), labels={})
    return AcceptedSeal(ticket=ticket, segment="s", actor="me", request=content)


async def test_on_a_full_disk_a_put_is_refused_soon_and_says_why(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db", N, wait_s=0.1)
    make_full(journal)
    async with asyncio.timeout(10):
        with pytest.raises(OutOfCapacity, match=r"disk of node n1 is full .* free room in"):
            await journal.keep_seal(a_seal("one"))
        with pytest.raises(OutOfCapacity, match=str(tmp_path)):
            await journal.keep_segment_soon(R, "s" * 50_000)
        assert "cannot be written" in journal.trouble
        assert R not in journal.segments
        assert isinstance(await Stall(journal).error(), OutOfCapacity)
    make_room(journal)
    await journal.check_room()
    await journal.keep_seal(a_seal("one"))
    assert journal.trouble == ""
    journal.close()


class Stall:
    """A report that waits for room, and what those are told who wait for what it is about."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def error(self) -> OutOfCapacity:
        long = CancelOperation(operation=OP, reason="x" * 50_000)
        recording = asyncio.ensure_future(self._journal.record([report(1, long)]))
        try:
            return await self._journal.stuck()
        finally:
            assert not recording.done()
            recording.cancel()


async def test_reports_outlast_a_full_disk(tmp_path: Path):
    log, journal = MemoryLog(), Journal(tmp_path / "journal.db", N, wait_s=0.1)
    make_full(journal)
    long = IssueOperation(
        operation=OP, node=N, work=Materialize(artifact=A), policy="demand" * 10_000
    )
    recording = asyncio.ensure_future(journal.record([report(0, long), report(1, START)]))
    await journal.stuck()
    make_room(journal)
    async with draining(journal, log), asyncio.timeout(10):
        await recording
        await journal.settled()
    journal.close()
    assert types(log) == ["operation.issued", "operation.started"]


async def test_a_full_disk_gives_up_the_reserve_and_takes_no_new_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    journal = Journal(tmp_path / "journal.db", N, wait_s=0.1)
    failures = iter([sqlite3.OperationalError("database or disk is full")])

    def add(rows: object, add=journal._file.add) -> None:
        for failure in failures:
            raise failure
        add(rows)

    journal._file.add = add
    monkeypatch.setattr(Reserve, "refill", lambda self: False)
    async with asyncio.timeout(10):
        await journal.record([report(0, BEGIN)])  # the reserve had the room for it
        assert not (tmp_path / "journal.reserve").exists()
        with pytest.raises(OutOfCapacity, match="its reserve is in use"):
            await journal.check_room()
        monkeypatch.undo()
        await journal.check_room()
    assert (tmp_path / "journal.reserve").exists()
    journal.close()
