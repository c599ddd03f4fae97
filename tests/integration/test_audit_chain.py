"""Whatever is done to the record behind TensorCast's back is found, and named."""

from __future__ import annotations

import asyncio
import functools
import shutil
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import text

from conformance.log import cordoned, draft
from samples import artifact_id, manifest
from stores import committed, database, engine, persisting, until
from tensorcast.client.proofs import Anchor, prove
from tensorcast.controlplane.services.progress import ChainHead, Progress
from tensorcast.controlplane.services.signer import HeadFile, run_signer
from tensorcast.controlplane.services.verifiers import Verifiers
from tensorcast.controlplane.store import extent
from tensorcast.controlplane.store.engine import make_engine
from tensorcast.controlplane.store.migrate import HEAD, migrate, run
from tensorcast.controlplane.store.verification import verify_span
from tensorcast.log.memory import MemoryLog
from tensorcast.log.port import Stored
from tensorcast.schema.api_audit import Extent, HashQuery, RowsQuery, VerifySpan, unpack
from tensorcast.schema.events import ArtifactSealed
from tensorcast.schema.heads import public_key_of
from tensorcast.schema.ids import Seq

__all__ = ["database", "engine"]  # fixtures
EVENTS = 60


class MemoryHeads:
    """Heads as they would lie in NATS."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    async def append(self, head: bytes) -> None:
        self.kept.append(head.decode())


class Rig:
    """A record in Postgres, asked as the API would ask it."""

    def __init__(self, connection, folder, kept=()) -> None:
        self.connection = connection
        self.file = HeadFile(folder)
        self.kept = list(kept)
        self.key = public_key_of(self.file.load_key())

    async def extent(self):
        lives = await extent.read_lives(self.connection)
        return Extent(cluster="default", lives=lives, key=self.key)

    async def verify_span(self, log_epoch, first, last):
        span = VerifySpan(log_epoch=log_epoch, first=Seq(first), last=Seq(last))
        return await verify_span(self.connection, span)

    async def hashes(self, log_epoch, seqs):
        query = HashQuery(log_epoch=log_epoch, seqs=tuple(seqs))
        return await extent.read_hashes(self.connection, query)

    async def heads(self, source):
        return self.file.read(0, 1000) if source == "file" else self.kept

    async def tamper(self, *statements: str) -> None:
        """As a superuser who takes the triggers away first; undone when the test wants that."""
        for table in ("events", "chain"):
            await self.connection.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER USER"))
        # So that a row may go anywhere.
        elsewhere = "CREATE TABLE IF NOT EXISTS events_elsewhere PARTITION OF events DEFAULT"
        for statement in (elsewhere, *statements):
            await self.connection.execute(text(statement))

    async def undo(self) -> None:
        await self.connection.rollback()


async def write_record(url: str, folder: Path) -> list[str]:
    """`EVENTS` events with two signed heads, the last one of the last event; the heads in NATS."""
    file, stream, log = HeadFile(folder), MemoryHeads(), MemoryLog()
    async with persisting(log, url) as progress:
        for number, half in enumerate((range(EVENTS // 2), range(EVENTS // 2, EVENTS)), 1):
            await log.append([draft(cordoned(f"n{number}")) for number in half])
            await committed(progress, half[-1] + 1)
            signing = run_signer("default", file, stream, progress, sign_s=0.01)
            async with at_work(signing):
                await until(lambda number=number: len(stream.kept) == number)
    return stream.kept


@asynccontextmanager
async def at_work(coroutine):
    """Runs it until the block ends."""
    task = asyncio.create_task(coroutine)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(scope="module")
def written(_shared_postgres, tmp_path_factory):
    """A record that tests only change for themselves."""
    if _shared_postgres.pid is None:
        _shared_postgres.start()
    url, folder = _shared_postgres.create_database(), tmp_path_factory.mktemp("audit")
    asyncio.run(migrate(url))
    return url, folder, asyncio.run(write_record(url, folder))


@asynccontextmanager
async def opened(url, folder, kept):
    engine = make_engine(url, name="test")
    async with engine.connect() as connection:
        yield Rig(connection, folder, kept)
    await engine.dispose()


@pytest.fixture
async def rig(written, tmp_path):
    """The record, in a transaction that is rolled back."""
    url, folder, kept = written
    copied = shutil.copytree(folder, tmp_path / "audit")
    async with opened(url, copied, kept) as rig:
        yield rig


@pytest.fixture
async def own_rig(database, tmp_path):
    """A record of its own, for tests that others would see."""
    kept = await write_record(database, tmp_path / "audit")
    async with opened(database, tmp_path / "audit", kept) as rig:
        yield rig


async def bad_of(rig, **options) -> tuple[int, str]:
    info = await prove(rig, **options)
    assert not info.ok
    assert info.first_bad is not None
    return info.first_bad.seq, info.first_bad.reason


async def test_an_untouched_record_is_right(rig):
    info = await prove(rig)
    assert (info.ok, info.events, info.first_bad, info.anchors) == (True, EVENTS, None, 2)
    part = await prove(rig, first=11, last=40)
    assert (part.ok, part.events, part.anchors) == (True, 30, 1)
    assert len(info.head) == 64
    assert info.head == (await rig.hashes(1, [Seq(EVENTS)]))[0]


ALTERATIONS = (
    "UPDATE events SET payload = replace(payload::text, 'x', 'x')::bytea || ' ' WHERE seq = 17",
    "UPDATE events SET subject = 'tc.default.log.node.evil' WHERE seq = 17",
    "UPDATE events SET actor = 'user:mallory@desk' WHERE seq = 17",
    "UPDATE events SET at = at + interval '1 second' WHERE seq = 17",
    "UPDATE events SET type = 'node.drained' WHERE seq = 17",
    "UPDATE events SET cause = event_id WHERE seq = 17",
    "UPDATE events SET event_id = gen_random_uuid() WHERE seq = 17",
    """UPDATE events SET data = data || '{"node": "n1"}' WHERE seq = 17""",
    "DELETE FROM events WHERE seq = 17",
    "UPDATE events SET seq = 1000 WHERE seq = 17",
    "UPDATE events SET log_epoch = 2 WHERE seq = 17",
)
SWAP = (
    "UPDATE events SET seq = 1000 WHERE seq = 17",
    "UPDATE events SET seq = 17 WHERE seq = 18",
    "UPDATE events SET seq = 18 WHERE seq = 1000",
)


async def test_an_event_that_was_altered_removed_or_moved_is_named(rig):
    for statements in (*((one,) for one in ALTERATIONS), SWAP):
        await rig.tamper(*statements)
        seq, reason = await bad_of(rig)
        assert seq == 17, (statements, reason)
        await rig.undo()
    assert (await prove(rig)).ok


COPY = "INSERT INTO events SELECT {}, {}, {} FROM events WHERE seq = 60"
REST = (
    "event_id, subject, aggregate_kind, aggregate_id, type, v, at, actor, cause, trace, artifact,"
    " node, data, payload"
)


async def test_an_event_that_was_added_is_named(rig):
    for epoch, seq in ((1, 61), (1, 0), (1, -5), (2, 1), (0, 1)):
        await rig.tamper(COPY.format(epoch, seq, REST))
        found, reason = await bad_of(rig)
        assert found in (seq, seq - 1), (epoch, seq, reason)
        assert "hash is missing" in reason
        await rig.undo()


async def test_a_tail_that_was_cut_off_is_named(rig):
    await rig.tamper("DELETE FROM events WHERE seq > 50")
    assert await bad_of(rig) == (51, "it is missing")
    await rig.tamper(
        "DELETE FROM chain WHERE last_seq > 30",
        "DELETE FROM events WHERE seq > 30",
        "UPDATE cursors SET seq = 30",
    )
    seq, reason = await bad_of(rig)
    assert seq == 31
    assert reason.startswith("it is missing: the log went to event 60 at 2")


async def test_a_record_that_was_made_away_with_is_named(rig):
    await rig.tamper("DELETE FROM chain", "DELETE FROM events", "UPDATE cursors SET seq = 0")
    seq, reason = await bad_of(rig)
    assert seq == 1
    assert "went to event 60" in reason


async def test_a_record_that_was_written_anew_as_a_whole_is_found(own_rig, engine, database):
    """With hashes that follow from each other: only the heads show it."""
    await own_rig.tamper("DELETE FROM chain", "DELETE FROM events", "UPDATE cursors SET seq = 0")
    await own_rig.connection.commit()
    forged = MemoryLog()
    await forged.append([draft(cordoned(f"m{number}")) for number in range(EVENTS)])
    async with persisting(forged, database) as progress:
        await committed(progress, EVENTS)
    assert (await prove(own_rig, anchors=())).ok  # the chain alone cannot know
    seq, reason = await bad_of(own_rig)
    assert seq == 1
    assert reason.startswith("events 1 to 30 are not those signed at ")


async def test_a_chain_that_was_altered_is_named(rig):
    await rig.tamper("UPDATE chain SET hashes = set_byte(hashes, 0, get_byte(hashes, 0) # 1)")
    seq, _ = await bad_of(rig)
    assert seq == 1
    await rig.tamper("DELETE FROM chain")
    assert await bad_of(rig) == (1, "its hash is missing")


async def test_an_anchor_that_was_altered_is_named(rig):
    first, second = rig.file.path.read_text().splitlines()
    forged = second.replace(f'"seq":{EVENTS}', '"seq":40')
    assert forged != second
    rig.file.path.write_text(f"{first}\n{forged}\n")
    seq, reason = await bad_of(rig)
    assert seq == 40
    assert "was altered" in reason
    rig.file.path.write_text(f"{first}\nnothing\n")
    assert await bad_of(rig) == (0, "entry 2 of the signed heads (file) is none")


async def test_a_wrong_key_is_told(rig, tmp_path):
    other = public_key_of(HeadFile(tmp_path / "other").load_key())
    seq, reason = await bad_of(rig, keys=[other])
    assert seq == EVENTS // 2
    assert "another key" in reason
    assert (await prove(rig, keys=[other, rig.key])).ok


async def test_anchors_of_another_cluster_are_told(rig):
    kept = [Anchor("mine", text.replace('"default"', '"other"')) for text in rig.kept]
    seq, reason = await bad_of(rig, anchors=kept)
    assert (seq, "cluster 'other'" in reason) == (EVENTS // 2, True)


async def test_heads_that_were_signed_outlive_a_crash_in_the_middle_of_a_line(rig):
    with rig.file.path.open("a") as file:
        file.write('{"cluster":"defa')
    assert len(rig.file.read(0, 10)) == 2
    rig.file.append(b"{}")
    assert rig.file.path.read_text().splitlines()[2:] == ["{}"]


async def test_strange_events_are_no_forgeries(engine, database, tmp_path):
    """Columns that are made fit for SQL agree with bytes that are not."""
    log = MemoryLog()
    at = b'"at":"2030-01-01T00:00:00Z"'
    for payload in (
        b"\xff\0 no json",
        b"{}",
        b'{"id":"x","type":"node.cordoned","v":1,"at":"0001-01-01T00:00:00+09:00","actor":"'
        + b"a" * 5000
        + b'","data":{"node":"\\u0000","more":1e999}}',
        b'{"id":"x","type":"new.thing","v":99999999999999999999,' + at + b',"actor":"\\u0000",'
        b'"cause":"c","trace":"\\u0000","data":{"a":"\\u0000"}}',
        b'{"id":"y","type":"new.thing","v":1,' + at + b',"actor":"","data":'
        b'{"a":1e300,"b":123456789012345678901234567890,"c":[1.0,true,null,"\\ud800"],"d":1.10}}',
        b'{"id":"z","type":"new.thing","v":1,' + at + b',"actor":"","data":[1e300,0.1,-0.0,1E5]}',
    ):
        log._stored.append(Stored(Seq(len(log._stored) + 1), "tc.default.log.node.n1", payload))
    long_name = "k" * 900
    log._stored.append(Stored(Seq(7), f"tc.default.log.key.{long_name}", b"no json either"))
    async with persisting(log, database) as progress:
        await committed(progress, 7)
    async with engine.connect() as connection:
        info = await prove(Rig(connection, tmp_path / "audit"))
    assert info.first_bad is None
    assert (info.ok, info.events) == (True, 7)


async def test_the_chain_of_an_older_database_is_made_when_it_is_migrated(
    own_rig, engine, database
):
    """The migration hashes in SQL what Python hashes, and verifiers are processes."""
    before = await prove(own_rig)
    await own_rig.undo()
    for target in ("0007", HEAD):
        async with engine.begin() as connection:
            await connection.run_sync(functools.partial(run, target=target))
    assert await prove(own_rig) == before
    verifiers = Verifiers(database)
    span = VerifySpan(log_epoch=1, first=Seq(1), last=Seq(EVENTS))
    assert (await verifiers.verify(span)).head == before.head
    assert (await verifiers.verify(span)).events == EVENTS
    verifiers.close()


async def test_a_migration_makes_a_long_chain_in_rows_of_256(own_rig, engine):
    copies = (
        f"INSERT INTO events SELECT 1, seq + 60 * n, {REST} FROM events, generate_series(1, 9) AS n"
    )
    await own_rig.tamper(copies)
    await own_rig.connection.commit()
    for target in ("0007", HEAD):
        async with engine.begin() as connection:
            await connection.run_sync(functools.partial(run, target=target))
    info = await prove(own_rig, anchors=())
    assert (info.ok, info.events) == (True, 600)
    rows = await own_rig.connection.scalar(text("SELECT count(*) FROM chain"))
    assert rows == 3


async def test_a_signer_that_is_started_again_goes_on_after_its_last_head(rig):
    stream, progress = MemoryHeads(), Progress()
    progress.is_active = True
    progress.head = ChainHead(1, Seq(EVENTS), bytes(32))
    async with at_work(run_signer("default", rig.file, stream, progress, sign_s=0.01)):
        await asyncio.sleep(0.1)
        assert stream.kept == []
        progress.head = ChainHead(1, Seq(EVENTS + 1), bytes(32))
        await until(lambda: stream.kept)
    assert len(rig.file.read(0, 100)) == 3


async def test_the_last_head_is_signed_at_the_end(tmp_path):
    stream, progress = MemoryHeads(), Progress()
    progress.is_active = True
    async with at_work(run_signer("default", HeadFile(tmp_path), stream, progress)):
        await asyncio.sleep(0.01)
        progress.head = ChainHead(1, Seq(3), bytes(32))
        assert stream.kept == []
    assert len(stream.kept) == len(HeadFile(tmp_path).read(0, 10)) == 1
    assert (tmp_path / "heads.key").stat().st_mode & 0o777 == 0o600


async def test_the_largest_event_is_copied_too(database, engine):
    """In JSON its bytes would be more than a message carries."""
    log = MemoryLog()
    sealed = ArtifactSealed(
        artifact=artifact_id("a"),
        kind="weights",
        manifest=manifest(),
        labels={"long": "0123456789abcdef" * (390 << 10)},
    )
    await log.append([draft(sealed)])
    async with persisting(log, database) as progress:
        await committed(progress, 1)
    query = RowsQuery(log_epoch=1, after=Seq(0), last=Seq(1))
    async with engine.connect() as connection:
        page = await extent.read_rows(connection, query)
    assert len(msgspec.json.encode(page)) < 8 << 20
    assert [unpack(one.packed) for one in page.events] == [log._stored[0].payload]
