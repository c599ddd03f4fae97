"""What the persister writes, and what the API reads of it."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import asyncpg
import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError

from conformance.log import cordoned, draft
from histories import Dice
from samples import artifact_id
from stores import (
    committed,
    database,
    engine,
    folded,
    persisting,
    read_all,
    stored_view,
    until,
)
from tensorcast.controlplane.services.continuity import check_start
from tensorcast.controlplane.store import queries
from tensorcast.controlplane.store.event_infos import About
from tensorcast.controlplane.store.load import fold, rebuild
from tensorcast.controlplane.store.tables import READ_MODELS, events
from tensorcast.controlplane.store.write import Batch, Position, load_position, write_batch
from tensorcast.log.identity import now
from tensorcast.log.memory import MemoryLog
from tensorcast.log.port import Stored
from tensorcast.schema.api import AuditQuery
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.codec import decode, decode_event
from tensorcast.schema.errors import Conflict, Corrupt, Timeout, Unavailable
from tensorcast.schema.events import AggregateKind, aggregate_of
from tensorcast.schema.ids import Seq

__all__ = ["database", "engine"]  # fixtures


async def grow(log: MemoryLog, seed: int, count: int) -> None:
    """Appends `count` or a few more events of a random legal history."""
    dice = Dice(seed)
    view = await folded(log)
    goal = view.at + count
    while view.at < goal:
        await log.append(dice.drafts(view))
        view = fold(view, tuple(log._stored[view.at :]))


async def rows_of(engine) -> list[tuple[int, str, bytes]]:
    async with engine.connect() as connection:
        found = await connection.execute(
            select(events.c.seq, events.c.subject, events.c.payload).order_by(events.c.seq)
        )
        return [tuple(row) for row in found]


@pytest.mark.parametrize("seed", range(4))
async def test_postgres_holds_the_log_and_what_it_leads_to(database, engine, seed):
    """For any legal history, cut into batches anyhow: the rows are the events, the read models are
    the fold, also when a new persister goes on from where the last one stood."""
    log, chance = MemoryLog(), random.Random(seed)
    for part in range(3):
        await grow(log, seed * 10 + part, chance.randrange(1, 400))
        async with persisting(log, database) as progress:
            await committed(progress, (await log.last_seq()) // 2)
            await grow(log, seed * 10 + 5 + part, chance.randrange(1, 100))
            await committed(progress, await log.last_seq())
        stored = [(one.seq, one.subject, one.payload) for one in await read_all(log)]
        assert await rows_of(engine) == stored
        view = await folded(log)
        assert await stored_view(engine) == view
        for seq in chance.sample(range(view.at + 1), 3):
            past = MemoryLog()
            past._stored = log._stored[:seq]
            assert await queries.view_at(engine, Seq(seq)) == await folded(past)


async def test_read_models_can_be_made_anew(database, engine):
    log = MemoryLog()
    await grow(log, 3, 300)
    async with persisting(log, database) as progress:
        await committed(progress, await log.last_seq())
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE nodes SET state = '{}'"))
        await connection.execute(text("DELETE FROM replicas"))
    assert await stored_view(engine) == await folded(log)  # a state that is none was met
    async with engine.begin() as connection:
        await connection.execute(text("DELETE FROM replicas"))
    async with engine.connect() as connection:
        view = await rebuild(connection, await load_position(connection))
    assert view == await folded(log) == await stored_view(engine)


async def test_only_one_persister_writes_and_another_takes_over(database, engine):
    log = MemoryLog()
    await log.append([draft(cordoned("n1"))])
    async with persisting(log, database) as second:
        async with persisting(log, database) as first:
            await until(lambda: first.is_active or second.is_active)
            for number in range(20):
                await log.append([draft(cordoned(f"n{number}"))])
                await asyncio.sleep(0.005)
            writer, waiting = (first, second) if first.is_active else (second, first)
            await committed(writer, 21)
            assert not waiting.is_active
            await until(lambda: waiting.committed_seq > 0)
            assert waiting.problem is None
        await log.append([draft(cordoned("last"))])
        await committed(second, 22)
    assert [seq for seq, *_ in await rows_of(engine)] == list(range(1, 23))


async def test_a_writer_that_lost_its_lock_is_fenced(database, engine):
    log = MemoryLog()
    await log.append([draft(cordoned("n1"))])
    async with persisting(log, database) as progress:
        await committed(progress, 1)
    async with engine.connect() as connection:
        now_at = await load_position(connection)
        before = Position(now_at.log_epoch, Seq(0), None)
        with pytest.raises(Conflict, match="taken over"):
            await write_batch(connection, Batch(before, now_at, [], [], b""))
        assert await load_position(connection) == now_at


async def test_a_log_that_was_made_anew_is_never_mixed_in(database, engine):
    log = MemoryLog()
    await log.append([draft(cordoned(f"n{number}")) for number in range(5)])
    async with persisting(log, database) as progress:
        await committed(progress, 5)
    before = await rows_of(engine)
    complaint = "another event at position 1"
    for count in (3, 9):
        other = MemoryLog()
        await other.append([draft(cordoned(f"m{number}")) for number in range(count)])
        async with persisting(other, database) as progress:
            await until(lambda: progress.problem is not None)
            assert complaint in progress.problem
            assert "Restore the NATS folder" in progress.problem
            assert progress.refusal is not None
            assert not progress.is_active
        assert await rows_of(engine) == before
        with pytest.raises(Corrupt, match=complaint):
            await check_start(other, database)
    await check_start(log, database)
    async with persisting(log, database) as progress:
        await committed(progress, 5)
        assert progress.refusal is None


async def test_a_log_that_lost_events_gets_them_back_and_says_so(database, engine):
    log = MemoryLog()
    await grow(log, 8, 700)
    last = await log.last_seq()
    async with persisting(log, database) as progress:
        await committed(progress, last)
    for kept in (0, 1, last - 1):
        shorter = MemoryLog()
        await shorter.restore(log._stored[:kept]) if kept else None
        await check_start(shorter, database)
        assert shorter._stored[:last] == log._stored
        said = decode(shorter._stored[last].payload, Seq(last + 1)).event
        assert said.topic == "tensorcast.log.restored"
        assert said.data == {"created": "in memory", "kept": kept, "restored": last}
        await check_start(shorter, database)
        assert await shorter.last_seq() == last + 1  # once
    async with persisting(shorter, database) as progress:
        await committed(progress, last + 1)


async def test_a_persister_at_work_puts_back_what_its_log_has_lost(database, engine):
    log, shorter = MemoryLog(), MemoryLog()
    await grow(log, 9, 40)
    last = await log.last_seq()
    async with persisting(log, database) as progress:
        await committed(progress, last)
    async with persisting(shorter, database) as progress:
        await committed(progress, last + 1)
    assert shorter._stored[:last] == log._stored


async def test_a_changed_or_missing_row_is_refused_with_its_place(database, engine):
    log = MemoryLog()
    await grow(log, 10, 60)
    last = await log.last_seq()
    async with persisting(log, database) as progress:
        await committed(progress, last)
    damages = (
        ("UPDATE events SET payload = 'x' WHERE seq = 1", "another event at position 1 "),
        ("DELETE FROM events WHERE seq = 31", "Postgres lacks event 31:"),
        (f"DELETE FROM events WHERE seq >= {last}", "Postgres lacks event 31:"),
        ("DELETE FROM events WHERE seq < 3", "Postgres lacks event 1:"),
    )
    async with engine.begin() as connection:
        await connection.execute(text("ALTER TABLE events DISABLE TRIGGER events_stay"))
    for damage, complaint in damages:
        async with engine.begin() as connection:
            await connection.execute(text(damage))
        with pytest.raises(Corrupt, match=complaint):
            await check_start(log, database)
        async with persisting(log, database) as progress:
            await until(lambda: progress.refusal is not None)
            assert complaint in str(progress.refusal)


async def test_a_lost_tail_of_rows_is_told(database, engine):
    log = MemoryLog()
    await grow(log, 11, 30)
    last = await log.last_seq()
    async with persisting(log, database) as progress:
        await committed(progress, last)
    async with engine.begin() as connection:
        await connection.execute(text("ALTER TABLE events DISABLE TRIGGER events_stay"))
        await connection.execute(text(f"DELETE FROM events WHERE seq >= {last - 1}"))
    with pytest.raises(Corrupt, match=f"Postgres lacks event {last - 1}:"):
        await check_start(log, database)


async def test_another_event_at_a_position_is_never_dropped_in_silence(database, engine):
    """Also when the position was set back by hand."""
    log, other = MemoryLog(), MemoryLog()
    await log.append([draft(cordoned("n1"))])
    async with persisting(log, database) as progress:
        await committed(progress, 1)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE cursors SET seq = 0, event_id = NULL"))
    await other.append([draft(cordoned("m1"))])
    async with persisting(other, database) as progress:
        await until(lambda: progress.problem is not None)
        assert "another event at position 1" in progress.problem
    async with persisting(log, database) as progress:
        await committed(progress, 1)
    assert len(await rows_of(engine)) == 1


async def test_an_event_that_cannot_be_read_stops_nothing(database, engine):
    log = MemoryLog()
    await log.append([draft(cordoned("n1"))])
    nasty = [
        b"\xff\0 no json",
        b"{}",
        b'{"id":"x","type":"node.cordoned","v":1,"at":"0001-01-01T00:00:00+09:00","actor":"'
        + b"a" * 5000
        + b'","data":{"node":"\\u0000","more":1e999}}',
        b'{"id":"x","type":"new.thing","v":99999999999999999999,"at":"2030-01-01T00:00:00Z",'
        b'"actor":"\\u0000","cause":"c","trace":"\\u0000","data":{"a":"\\u0000"}}',
    ]
    for payload in nasty:
        log._stored.append(Stored(Seq(len(log._stored) + 1), "tc.default.log.node.n1", payload))
    await log.append([draft(cordoned("n2"))])
    async with persisting(log, database) as progress:
        await committed(progress, 6)
    assert [payload for *_, payload in await rows_of(engine)] == [
        one.payload for one in log._stored
    ]
    found = await queries.find_events(engine, AuditQuery())
    assert [one.type for one in found][:3] == ["node.cordoned", "unreadable", "unreadable"]
    assert [one.type for one in found][-1] == "node.cordoned"
    unreadable = await queries.find_events(engine, AuditQuery(type="unreadable"))
    assert bytes(unreadable[0].data) == b'{"bytes":"/wAgbm8ganNvbg=="}'


async def test_events_stay(database, engine):
    log = MemoryLog()
    await log.append([draft(cordoned("n1"))])
    async with persisting(log, database) as progress:
        await committed(progress, 1)
    for statement in (
        "UPDATE events SET actor = 'nobody'",
        "DELETE FROM events",
        "TRUNCATE events",
    ):
        async with engine.connect() as connection:
            with pytest.raises(DBAPIError, match="never changed"):
                await connection.execute(text(statement))
    assert len(await rows_of(engine)) == 1


async def test_events_stay_even_for_the_owner_of_the_server(postgres_server, database, engine):
    log = MemoryLog()
    await log.append([draft(cordoned("n1"))])
    async with persisting(log, database) as progress:
        await committed(progress, 1)
    admin = await asyncpg.connect(database.replace("tensorcast:secret@", "postgres:admin@"))
    await admin.execute("SET session_replication_role = replica")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await admin.execute("DELETE FROM events")
    await admin.close()


# ---- queries -------------------------------------------------------------------------------


@pytest.fixture
async def history(database):
    """A log of a few hundred events that Postgres has, decoded."""
    log = MemoryLog()
    await grow(log, 11, 400)
    async with persisting(log, database) as progress:
        await committed(progress, await log.last_seq())
    return [decode(one.payload, one.seq) for one in await read_all(log)]


def by_hand(history, **conditions):
    return [one.seq for one in history if all(check(one) for check in conditions.values())]


async def test_events_are_found_by_what_they_are(engine, history):
    async def seqs(**conditions) -> list[int]:
        found = await queries.find_events(engine, AuditQuery(**conditions))
        return [one.seq for one in found]

    assert await seqs() == [one.seq for one in history]
    ada = by_hand(history, actor=lambda one: one.actor == "user:ada@desk")
    assert await seqs(actor="user:ada@desk") == await seqs(actor="user:*") == ada
    assert await seqs(actor="user:a_a@desk") == await seqs(actor="user:a_*") == []
    keys = by_hand(history, type=lambda one: one.type.startswith("key."))
    assert await seqs(type="key.*") == keys
    assert await seqs(since=Seq(100), limit=5) == [101, 102, 103, 104, 105]
    assert await seqs(newest=True, limit=3) == [one.seq for one in history][-3:]
    assert await seqs(newest=True, limit=3, type="key.*") == keys[-3:]
    cause = next(one for one in history if one.cause is not None).cause
    caused = by_hand(history, cause=lambda one: one.cause == cause)
    assert await seqs(cause=cause) == caused
    middle = history[200].at
    before = by_hand(history, at=lambda one: one.at <= middle)
    assert await seqs(time_to=middle) == before
    assert await seqs(time_from=middle + timedelta(microseconds=1)) == [
        one.seq for one in history if one.seq not in before
    ]


async def test_an_event_is_answered_as_it_was_written(engine, history):
    found = await queries.find_events(engine, AuditQuery(limit=50))
    for one, recorded in zip(found, history, strict=False):
        assert (one.id, one.type, one.v, one.at) == (
            recorded.id,
            recorded.type,
            recorded.v,
            recorded.at,
        )
        assert (one.actor, one.cause) == (recorded.actor, recorded.cause)
        assert decode_event(one.type, one.v, one.data) == recorded.event
    assert await queries.find_event(engine, history[7].id) == found[7]
    assert await queries.find_event(engine, "nonsense") is None


async def test_the_history_of_an_artifact_includes_all_that_concerns_it(engine, history):
    """Its own events, its replicas, operations and leases, the engines that began to serve
    it, and each key that came or left."""
    artifact = artifact_id("b")
    operations = {
        one.event.operation
        for one in history
        if one.type == "operation.issued" and one.event.work.artifact == artifact
    }
    leases = {
        one.event.lease
        for one in history
        if one.type == "lease.acquired" and one.event.artifact == artifact
    }

    def concerns(one) -> bool:
        kind, aggregate_id = aggregate_of(one.event)
        if kind is AggregateKind.KEY:
            return artifact in (getattr(one.event, "artifact", None), one.event.previous)
        if kind is AggregateKind.ENGINE:
            return getattr(one.event, "artifact", None) == artifact
        return (
            aggregate_id == artifact
            or aggregate_id.startswith(f"{artifact}:")
            or aggregate_id in operations | leases
        )

    expected = [one.seq for one in history if concerns(one)]
    assert {aggregate_of(history[seq - 1].event)[0] for seq in expected} == set(AggregateKind) - {
        AggregateKind.NODE,
        AggregateKind.SIGNAL,
        AggregateKind.POLICY,
        AggregateKind.PLAN,
        AggregateKind.NAMESPACE,
    }
    about = About(AggregateKind.ARTIFACT, artifact)
    for query, what in ((AuditQuery(), about), (AuditQuery(artifact=artifact), None)):
        found = await queries.find_events(engine, query, about=what)
        assert [one.seq for one in found] == expected


async def test_events_are_found_by_key_operation_and_node(engine, history):
    for kind in (AggregateKind.KEY, AggregateKind.OPERATION, AggregateKind.LEASE):
        named = (aggregate_of(one.event) for one in history)
        aggregate_id = next(name for found, name in named if found is kind)
        found = await queries.find_events(engine, AuditQuery(), about=About(kind, aggregate_id))
        assert found
        assert [one.seq for one in found] == [
            one.seq for one in history if aggregate_of(one.event) == (kind, aggregate_id)
        ]
    found = await queries.find_events(engine, AuditQuery(node="n1"))
    kinds = {one.type.split(".")[0] for one in found}
    assert kinds == {"node", "replica", "operation", "lease", "engine"}


async def test_positions(engine, history):
    last = history[-1].seq
    assert await queries.committed_seq(engine) == last
    assert await queries.wait_committed(engine, last, 1) == last
    with pytest.raises(Timeout, match="not in Postgres"):
        await queries.wait_committed(engine, Seq(last + 1), 0.05)
    assert await queries.seq_at(engine, history[0].at - timedelta(seconds=1)) == 0
    assert await queries.seq_at(engine, now() + timedelta(days=1)) == last
    moment = history[123].at
    assert await queries.seq_at(engine, moment) == max(by_hand(history, a=lambda o: o.at <= moment))
    assert await queries.seq_at(engine, moment.replace(tzinfo=None)) >= 124


async def test_a_writer_whose_clock_is_late_does_not_hide_others(database, engine):
    log = MemoryLog()
    start = now()
    ticks = [0, 10, 5, 20, 3600, 3595]
    await log.append(
        [
            draft(cordoned(f"n{t}"), at=start + timedelta(seconds=tick))
            for t, tick in enumerate(ticks)
        ]
    )
    async with persisting(log, database) as progress:
        await committed(progress, 6)
    at = [await queries.seq_at(engine, start + timedelta(seconds=s)) for s in (7, 10, 3597, 3600)]
    assert at == [3, 3, 6, 6]


async def test_states_are_found(database, engine, history):
    view = await queries.view_at(engine, history[-1].seq)
    for name in READ_MODELS:
        states = await queries.find_states(engine, name)
        assert [one.version for one in states] == sorted(
            (one.version for one in states), reverse=True
        )
    replicas = await queries.find_states(engine, AggregateKind.REPLICA, node="n1", status="ready")
    assert {one.id for one in replicas} == {
        one.id for one in view.replicas.values() if (one.node, one.status) == ("n1", "ready")
    }
    assert await queries.find_states(engine, AggregateKind.NODE, artifact="x") == ()
    node = await queries.get_state(engine, AggregateKind.NODE, "n1")
    assert node == view.nodes["n1"]
    assert await queries.get_state(engine, AggregateKind.NODE, "n9") is None
    whole = artifact_id("a")
    assert await queries.find_ids(engine, AggregateKind.ARTIFACT, whole[:6]) == (whole,)
    assert await queries.find_ids(engine, AggregateKind.ARTIFACT, "%") == ()
    assert len(await queries.find_ids(engine, AggregateKind.OPERATION, "op-", limit=3)) == 3


async def test_reads_say_when_postgres_is_away(postgres_server, engine, history):
    assert await queries.committed_seq(engine) > 0
    postgres_server.kill()
    with pytest.raises(Unavailable, match="cannot be reached"):
        await queries.find_events(engine, AuditQuery())
    with pytest.raises(Unavailable):
        await queries.committed_seq(engine)
    postgres_server.start()
    assert await queries.committed_seq(engine) == history[-1].seq


async def test_reads_of_an_empty_database(engine):
    assert await queries.committed_seq(engine) == 0
    assert await queries.find_events(engine, AuditQuery()) == ()
    assert await queries.seq_at(engine, now()) == 0
    assert await queries.view_at(engine, Seq(0)) == ClusterView()
    async with engine.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(events)) == 0


async def test_a_database_that_was_not_migrated_is_reported(postgres_url):
    async with persisting(MemoryLog(), postgres_url) as progress:
        await until(lambda: progress.problem is not None)
        assert "cursors" in progress.problem
