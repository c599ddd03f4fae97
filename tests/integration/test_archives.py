"""Old events in files: nothing is lost on the way, and every question is answered as before."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from datetime import timedelta
from itertools import pairwise
from types import SimpleNamespace

import msgspec
import pytest
from sqlalchemy import text

from archived import (
    CLUSTER,
    FIRST_END,
    archive_before,
    database,
    floor_of,
    history,
    prepared,
    serving,
    wait_for,
)
from stores import committed, engine, folded, persisting, read_all, stored_view, until
from tensorcast.client.log_copies import verify_log_file
from tensorcast.controlplane.archiver import archive
from tensorcast.controlplane.rebuilder import rebuild
from tensorcast.controlplane.services import snapshots as service
from tensorcast.controlplane.services.api_store import show_archives
from tensorcast.controlplane.services.beginning import find_beginning
from tensorcast.controlplane.services.retention import TOPIC, archive_old, tell_archived
from tensorcast.controlplane.services.workers import Workers
from tensorcast.controlplane.settings import Settings
from tensorcast.controlplane.store import archiving, extent, queries, signal_queries
from tensorcast.controlplane.store.archives import list_archives, move_archives
from tensorcast.controlplane.store.archiving import Limits
from tensorcast.controlplane.store.event_infos import About
from tensorcast.controlplane.store.jobs import list_jobs
from tensorcast.controlplane.store.verification import verify_span
from tensorcast.log.memory import MemoryLog
from tensorcast.log.port import Stored
from tensorcast.schema.api import AuditQuery
from tensorcast.schema.api_audit import RowsQuery, VerifySpan
from tensorcast.schema.api_store import ArchivesQuery
from tensorcast.schema.errors import Conflict, Corrupt, NotFound
from tensorcast.schema.events import AggregateKind
from tensorcast.schema.ids import Seq

__all__ = ["database", "engine", "history", "prepared"]  # fixtures
pytest.importorskip("pyarrow")


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(service, "POLL_S", 0.01)
    monkeypatch.setattr(service, "RETRY_S", 0.05)


def questions(history):
    """Audit queries of every sort, with what they are about."""
    view = history.views[-1]
    yield AuditQuery(limit=1000), None
    yield AuditQuery(limit=17), None
    yield AuditQuery(limit=150, newest=True), None
    yield AuditQuery(since=Seq(90), before=Seq(111)), None
    yield AuditQuery(since=Seq(28), before=Seq(31)), None
    for pattern in ("replica.*", "node.cordoned", "*.s*", "*", "unreadable"):
        yield AuditQuery(types=(pattern,)), None
    yield AuditQuery(actor="user:*"), None
    yield AuditQuery(actor="policy:%"), None
    for key in list(view.keys)[:3]:
        yield AuditQuery(key=key), None
    for artifact in list(view.artifacts)[:5]:
        yield AuditQuery(artifact=artifact), None
        yield AuditQuery(artifact=artifact, newest=True, limit=3), None
    for node in view.nodes:
        yield AuditQuery(node=node), None
    for name in list(view.replicas)[:4]:
        yield AuditQuery(), About(AggregateKind.REPLICA, name)
    for plan in list(view.plans)[:4]:
        yield AuditQuery(plan=plan), None


async def find(engine, query, about=None):
    """The events that match, without where their causes are: of those in archives it is not
    told."""
    found = await queries.find_events(engine, query, about=about)
    return tuple(msgspec.structs.replace(one, cause_seq=None) for one in found)


async def ask_all(engine, history, times, events):
    """The answers to many questions about the past."""
    answers = [await find(engine, query, about) for query, about in questions(history)]
    for moment in times:
        answers.append(await queries.seq_at(engine, moment))
        answers.append(await find(engine, AuditQuery(time_to=moment)))
        answers.append(await find(engine, AuditQuery(time_from=moment, limit=9)))
    for one in events:
        answers.append(await queries.find_event(engine, one.id))
        answers.append(await queries.find_effects(engine, [one.id], limit=5))
    answers.append(await queries.find_effects(engine, [one.id for one in events], limit=40))
    signals = [one.seq for one in events if one.type == "signal.emitted"]
    answers.append(await signal_queries.find_signals(engine, [*signals, Seq(3)]))
    async with engine.connect() as connection:
        after, rows = Seq(0), []
        while page := (
            await extent.read_rows(
                connection, RowsQuery(log_epoch=1, after=after, last=history.last)
            )
        ).events:
            rows += page
            after = page[-1].seq
        assert len(rows) == history.last
        answers.append(rows)
        for first, last in ((1, history.last), (40, 120), (150, 170), (1, 1)):
            span = VerifySpan(log_epoch=1, first=Seq(first), last=Seq(last))
            answers.append(await verify_span(connection, span))
            assert answers[-1].first_bad is None
        answers.append(await extent.read_lives(connection))
    return answers


async def test_every_question_is_answered_as_before(database, engine, history, tmp_path):
    events = await queries.find_events(engine, AuditQuery())
    times = [one.at for one in events[::23]] + [events[0].at - timedelta(days=1)]
    before = await ask_all(engine, history, times, events[::11])
    moved = await archive_before(database, tmp_path, 300)
    assert moved == await floor_of(engine) == 256
    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT min(seq) FROM events")) == 257
    after = await ask_all(engine, history, times, events[::11])
    for number, (one, other) in enumerate(zip(before, after, strict=True)):
        assert one == other, f"answer {number}"
    for seq in range(0, history.last + 1, 13):
        assert await queries.view_at(engine, Seq(seq)) == history.views[seq]
    assert await archive_before(database, tmp_path, 300) == 0
    assert await archive_before(database, tmp_path, history.last) > 0
    assert await ask_all(engine, history, times, events[::11]) == before


async def test_files_prove_themselves_and_join(database, engine, history, tmp_path):
    await archive_before(database, tmp_path, 300)
    async with engine.connect() as connection:
        found = await list_archives(connection)
    assert [(one.first, one.last) for one in found] == [
        (1, 100),
        (101, 128),
        (129, 192),
        (193, 256),
    ]
    assert sorted(str(path) for path in tmp_path.iterdir()) == [one.path for one in found]
    infos = [verify_log_file(one.path) for one in found]
    assert all(info.ok for info in infos)
    for one, info in zip(found, infos, strict=True):
        assert info.events == one.last - one.first + 1
        assert one.is_dropped
        assert one.problem is None


async def test_what_was_done_to_a_file_is_found_and_named(database, engine, history, tmp_path):
    import pyarrow
    from pyarrow import parquet

    await archive_before(database, tmp_path, 300)
    path = sorted(tmp_path.iterdir())[1]
    table = parquet.read_table(path)
    payloads = table["payload"].to_pylist()
    payloads[9] = payloads[9].replace(b"a", b"b")
    place = table.schema.get_field_index("payload")
    changed = table.set_column(place, "payload", pyarrow.array(payloads, pyarrow.binary()))
    whole = path.read_bytes()
    async with engine.connect() as connection:

        async def verify():
            await connection.execute(
                text("UPDATE archives SET size_bytes = :size WHERE first = 101"),
                {"size": path.stat().st_size},
            )
            span = VerifySpan(log_epoch=1, first=Seq(1), last=Seq(300))
            return await verify_span(connection, span)

        parquet.write_table(changed, path)
        info = await verify()
        assert (info.events, info.first_bad.seq) == (109, 110)
        parquet.write_table(table.slice(0, 20), path)
        info = await verify()
        assert (info.events, info.first_bad.seq) == (120, 121)
        path.write_bytes(whole[:2000])
        info = await verify()
        assert (info.events, info.first_bad.seq) == (100, 101)
        path.write_bytes(whole)
        assert (await verify()).first_bad is None


async def test_a_moment_in_an_archive_that_is_away_is_told_and_the_others_open(
    database, engine, history, tmp_path
):
    away, there = tmp_path / "away", tmp_path / "there"
    await archive_before(database, there, 300)
    events = await find(engine, AuditQuery())
    there.rename(away)
    assert await queries.view_at(engine, history.last) == history.views[history.last]
    assert len(await queries.find_events(engine, AuditQuery(since=Seq(256)))) == history.last - 256
    assert len(await queries.find_events(engine, AuditQuery(newest=True, limit=50))) == 50
    said = r"Events 1 to 100 lie in the archive .*, which is not there.*--moved-to DIR"
    with pytest.raises(NotFound, match=said):
        await queries.view_at(engine, Seq(20))
    for question in (
        queries.find_events(engine, AuditQuery()),
        queries.find_event(engine, events[3].id),
        queries.find_effects(engine, [events[3].id], limit=9),
        queries.seq_at(engine, events[0].at - timedelta(days=1)),
    ):
        with pytest.raises(NotFound, match="which is not there"):
            await question
    async with engine.begin() as connection:
        assert await move_archives(connection, str(tmp_path)) == 0
        assert (await list_archives(connection))[0].problem is not None
        assert await move_archives(connection, str(away)) == 4
    assert await find(engine, AuditQuery()) == events


async def test_read_models_begin_anew_from_a_snapshot_or_from_the_files(
    database, engine, history, tmp_path
):
    before = await stored_view(engine)
    assert before.parked
    await archive_before(database, tmp_path / "old", 300)

    async def letters():
        async with engine.connect() as connection:
            found = await connection.execute(
                text("SELECT seq, reason FROM dead_letters ORDER BY 1")
            )
            return [tuple(row) for row in found]

    parked = await letters()
    (tmp_path / "old").rename(tmp_path / "away")
    async with engine.begin() as connection:
        await connection.execute(text("DELETE FROM replicas"))
    await rebuild(database)
    assert (await stored_view(engine), await letters()) == (before, parked)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE cursors SET fold = 'another'"))
    assert (await stored_view(engine), await letters()) == (before, parked)
    async with engine.begin() as connection:  # as a release with another fold finds them
        await connection.execute(text("UPDATE cursors SET fold = 'another'"))
        await connection.execute(text("DELETE FROM snapshots"))
        await connection.execute(text("DELETE FROM snapshot_parts"))
    with pytest.raises(NotFound, match="which is not there"):
        await stored_view(engine)
    (tmp_path / "away").rename(tmp_path / "old")
    assert (await stored_view(engine), await letters()) == (before, parked)
    async with serving(history.log, database) as progress:
        await history.grow(50)
        await committed(progress, history.last)
        await wait_for(lambda: snapshot_count(engine), 8)
    assert await stored_view(engine) == await folded(history.log)
    assert await queries.view_at(engine, Seq(200)) == history.views[200]


async def snapshot_count(engine):
    async with engine.connect() as connection:
        return await connection.scalar(text("SELECT count(*) FROM snapshots"))


async def test_a_log_that_was_lost_is_filled_from_files_and_tables(
    database, engine, history, tmp_path
):
    await archive_before(database, tmp_path, 300)
    async with persisting(history.log, database) as progress:  # it knows its own log
        await committed(progress, history.last)
    older = MemoryLog()
    older._stored.extend(history.log._stored[:40])
    async with persisting(older, database) as progress:
        await committed(progress, history.last + 1)
    assert (await read_all(older))[: history.last] == await read_all(history.log)
    foreign = MemoryLog()
    foreign._stored.extend(history.log._stored[:38])
    one, other = foreign._stored[20:22]
    foreign._stored[20:22] = [
        Stored(one.seq, other.subject, other.payload),
        Stored(other.seq, one.subject, one.payload),
    ]
    async with persisting(foreign, database) as progress:
        await until(lambda: isinstance(progress.refusal, Corrupt))
    assert "another event at position 2" in str(progress.refusal)


async def test_the_log_is_told_once_what_went(database, engine, history, tmp_path):
    await archive_before(database, tmp_path, 300)
    log = MemoryLog()
    assert await tell_archived(log, engine) == 4
    assert await tell_archived(log, engine) == 0
    assert [one.subject.endswith(TOPIC) for one in await read_all(log)] == [True] * 4


async def test_limits_choose_whole_partitions_from_the_oldest_on(
    database, engine, history, tmp_path
):
    events = await queries.find_events(engine, AuditQuery())
    newest = max(one.at for one in events[:128])

    async def chosen(**limits):
        async with engine.connect() as connection:
            works = await archiving.plan_archive(connection, Limits(**limits))
        for one, other in pairwise(works):
            assert other.first == one.last + 1
        return works[-1].last if works else 0

    async def refused(**limits):
        async with engine.connect() as connection:
            return await archiving.why_nothing(connection, Limits(**limits))

    assert await chosen(before_seq=Seq(FIRST_END)) == 0
    assert f"not before {FIRST_END}" in await refused(before_seq=Seq(FIRST_END))
    assert await chosen(before_seq=Seq(FIRST_END + 1)) == FIRST_END
    assert await chosen(before_time=newest) <= 100
    assert await chosen(before_time=newest + timedelta(microseconds=1)) >= 128
    oldest = min(one.at for one in events)
    assert await chosen(before_time=oldest) == 0
    assert f"events 1 to {FIRST_END}" in await refused(before_time=oldest)
    assert await chosen(keep_bytes=1 << 40) == 0
    assert "no more room" in await refused(keep_bytes=1 << 40)
    everything = await chosen(keep_bytes=0)
    assert everything == await chosen(before_seq=Seq(10_000)) < history.last
    async with engine.begin() as connection:
        await connection.execute(text("DELETE FROM snapshots WHERE seq > 180"))
    assert await chosen(keep_bytes=0) == 128
    async with engine.begin() as connection:
        await connection.execute(text("DELETE FROM snapshots"))
    await archive(database, CLUSTER, tmp_path, Limits(keep_bytes=0))
    job = next(one for one in await list_jobs(engine) if one.name == "archive")
    assert job.phase.startswith(f"moved nothing: the state after event {FIRST_END}")


# ---- what breaks off ---------------------------------------------------------------------------

STEPS = (
    "SegmentWriter.write",
    "sync",
    "_check",
    "digest_of",
    "Archiver._drop",
    "Archiver._drop_once",
)
KILLED = """
import os, signal, sys
from tensorcast.controlplane import archiver
from tensorcast.controlplane.store import archiving
owner, _, name = sys.argv[1].rpartition(".")
place = getattr(archiving, owner) if owner else archiving
left = int(sys.argv[2])
real = getattr(place, name)
def dying(*arguments):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)
setattr(place, name, dying)
sys.exit(archiver.main(sys.argv[3:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("times", [(0,), pytest.param((0, 1), marks=pytest.mark.long)])
async def test_killed_at_any_step_the_next_run_goes_on(database, engine, history, tmp_path, times):
    events = await find(engine, AuditQuery())
    environ = {**os.environ, "TENSORCAST_POSTGRES_URL": database, "TENSORCAST_CLUSTER": CLUSTER}
    for step in STEPS:
        for after in times:
            words = [sys.executable, "-c", KILLED, step, str(after), str(tmp_path)]
            killed = await asyncio.to_thread(
                subprocess.run, [*words, "--before-seq=200"], env=environ, check=False
            )
            assert killed.returncode in (-signal.SIGKILL, 0)
            assert await find(engine, AuditQuery()) == events
    left = 192 - await floor_of(engine)
    assert await archive_before(database, tmp_path, 200) == left
    assert await floor_of(engine) == 192
    assert await find(engine, AuditQuery()) == events
    assert [path.suffix for path in tmp_path.iterdir()] == [".parquet"] * 3
    span = VerifySpan(log_epoch=1, first=Seq(1), last=history.last)
    async with engine.connect() as connection:
        assert (await verify_span(connection, span)).first_bad is None


async def test_nothing_goes_that_was_not_written_as_it_is(
    database, engine, history, tmp_path, monkeypatch
):
    real = archiving.sync

    def lying(path):
        real(path)
        if path.suffix == ".part":
            data = bytearray(path.read_bytes())
            data[len(data) // 3] ^= 1
            path.write_bytes(data)

    monkeypatch.setattr(archiving, "sync", lying)
    with pytest.raises(Corrupt, match="not what was written"):
        await archive_before(database, tmp_path, 300)
    assert await floor_of(engine) == 0
    monkeypatch.setattr(archiving, "sync", real)
    async with engine.begin() as connection:
        await connection.execute(text("ALTER TABLE events DISABLE TRIGGER USER"))
        await connection.execute(text("UPDATE events SET payload = 'x' WHERE seq = 70"))
    with pytest.raises(Corrupt, match="Event 70 is not what the chain has"):
        await archive_before(database, tmp_path, 300)
    assert await floor_of(engine) == 0


async def test_a_file_that_went_bad_before_its_rows_went_is_written_anew(
    database, engine, history, tmp_path, monkeypatch
):

    async def refuse(self, work):
        raise Conflict("not now")

    real = archiving.Archiver._drop
    monkeypatch.setattr(archiving.Archiver, "_drop", refuse)
    with pytest.raises(Conflict):
        await archive_before(database, tmp_path, 300)
    monkeypatch.setattr(archiving.Archiver, "_drop", real)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-100] + bytes(100))
    await archive_before(database, tmp_path, 300)
    assert verify_log_file(path).ok


async def test_one_archive_at_a_time_and_readers_are_waited_for(
    database, engine, history, tmp_path, monkeypatch
):
    monkeypatch.setattr(archiving, "_LOCK_TIMEOUT", "50ms")
    monkeypatch.setattr(archiving, "_PAUSE_S", 0.05)
    async with engine.connect() as reader:
        await reader.execute(text("SELECT count(*) FROM events"))
        moving = asyncio.create_task(archive_before(database, tmp_path, 300))
        await until(lambda: list(tmp_path.glob("*.parquet")))
        with pytest.raises(Conflict, match="at work already"):
            await archive(database, CLUSTER, tmp_path, Limits())
        assert await reader.scalar(text("SELECT min(seq) FROM events")) == 1
        assert not moving.done()
    assert await moving == 256
    shutil.rmtree(tmp_path)


async def test_retention_has_what_is_beyond_a_limit_archived(database, engine, history, tmp_path):
    settings = Settings(
        cluster=CLUSTER,
        nats_url="nats://nowhere",
        postgres_url=database,
        services=frozenset(),
        archive_dir=str(tmp_path),
    )
    workers = Workers(database)
    assert not await archive_old(engine, workers, settings)
    old = msgspec.structs.replace(settings, retention_s=1e9)
    assert not await archive_old(engine, workers, old)
    full = msgspec.structs.replace(old, retention_bytes=0)
    assert await archive_old(engine, workers, full)
    assert 256 <= await floor_of(engine) < history.last
    assert not await archive_old(engine, workers, full)
    [job] = await list_jobs(engine)
    assert (job.name, job.phase, job.done) == ("archive", "done", await floor_of(engine))


async def test_where_archives_are_is_told_by_the_api(database, engine, history, tmp_path):
    await archive_before(database, tmp_path / "old", 150)
    desk = SimpleNamespace(proofs=SimpleNamespace(engine=engine))
    found = await show_archives(desk, ArchivesQuery())
    assert [(one.first, one.last) for one in found] == [(1, 100), (101, 128)]
    assert [one.problem for one in found] == [None, None]
    with pytest.raises(NotFound, match="None of the archives is in"):
        await show_archives(desk, ArchivesQuery(folder=str(tmp_path)))
    (tmp_path / "old").rename(tmp_path / "new")
    assert "not there" in (await show_archives(desk, ArchivesQuery()))[0].problem
    found = await show_archives(desk, ArchivesQuery(folder=str(tmp_path / "new")))
    assert found[0].problem is None
    assert found[0].path.startswith(str(tmp_path / "new"))


async def test_a_start_does_not_need_archives_that_are_away(database, history, tmp_path):
    assert await archive_before(database, tmp_path, 300)
    shutil.rmtree(tmp_path)
    beginning = await find_beginning(history.log, database, reacted=None)
    assert beginning.at > 200
    assert beginning == history.views[beginning.at]
