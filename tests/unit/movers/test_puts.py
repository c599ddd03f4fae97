"""A put whose append got no answer is registered exactly if the log has it; one without bytes only
if the node holds them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from msgspec import structs

from mover_nodes import Content
from samples import N1
from tensorcast.log.execute import execute
from tensorcast.log.follower import Follower
from tensorcast.log.memory import MemoryLog
from tensorcast.movers.journal import Journal
from tensorcast.movers.memory.handover import Lifelines
from tensorcast.movers.memory.pool import Pool
from tensorcast.movers.pending import Pending
from tensorcast.movers.puts import Put, Puts
from tensorcast.movers.reports import Life, Reporter
from tensorcast.movers.residents import Residents
from tensorcast.movers.room import Room
from tensorcast.movers.sealing import Sealing
from tensorcast.movers.tiers.disk import DiskTier
from tensorcast.schema.commands import EvictReplica, RemoveArtifact, RemoveKey
from tensorcast.schema.envelope import Draft
from tensorcast.schema.errors import (
    Conflict,
    InvalidArgument,
    NotFound,
    OutOfCapacity,
    Unavailable,
)
from tensorcast.schema.ids import ArtifactId, Epoch, Key, Seq
from tensorcast.schema.socket import NO_SESSION, Prepare, Prospect, SealPut

CONTENT = Content([1 << 20, 7])
OWNER = object()


class SilentLog(MemoryLog):
    """Takes an append, or loses it, and does not say which."""

    loses = False
    is_silent = True

    async def append(self, drafts: Sequence[Draft]) -> tuple[Seq, ...]:
        if not self.loses:
            await super().append(drafts)
        raise Unavailable("no answer")

    async def last_seq(self) -> Seq:
        if self.is_silent:
            raise Unavailable("no answer")
        return await super().last_seq()


class Bench:
    def __init__(self, folder: Path, log: MemoryLog) -> None:
        life = Life(N1)
        life.epoch = Epoch(1)
        self.log = log
        self.follower = Follower(log)
        self.pool = Pool(64 << 20)
        self.journal = Journal(folder / "journal.db")
        self.residents = Residents(N1, self.pool, self.journal, DiskTier(folder / "disk"))
        lifelines, reporter = Lifelines(), Reporter(self.journal, life)
        room = Room(self.pool, self.residents, lifelines, reporter, self.follower, life, wait_s=0.0)
        self.sealing = Sealing(self.residents, self.pool, self.journal, log, self.follower, life)
        self.pending = Pending(self.sealing, self.pool, self.journal, folder / "accepted")
        self.puts = Puts(
            room,
            _nothing_idle,
            self.pool,
            self.sealing,
            self.pending,
            self.follower,
            life,
            puts_max=2,
        )
        lifelines.close()

    async def write(self) -> Put:
        put = await self.puts.open(CONTENT.manifest.size_bytes, OWNER)
        os.pwrite(put.segment.fd, CONTENT.bytes, 0)
        return put


async def _nothing_idle() -> None:
    pass


@asynccontextmanager
async def bench(folder: Path, log: MemoryLog) -> AsyncIterator[Bench]:
    bench = Bench(folder, log)
    following = asyncio.ensure_future(bench.follower.run())
    try:
        yield bench
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError, Unavailable):
            await following
        await bench.puts.finished()
        bench.journal.close()
        bench.pool.close()


def seal(put: Put) -> SealPut:
    return SealPut(
        session=put.session,
        artifact=CONTENT.id,
        kind="weights",
        manifest=CONTENT.manifest,
        key=Key("m"),
    )


async def test_an_answer_means_it_is_there(tmp_path: Path):
    async with bench(tmp_path, MemoryLog()) as b:
        put = await b.write()
        sealed = await b.puts.seal(seal(put), OWNER, "user:ada@test")
        assert sealed.seq == 3
        assert b.residents.find_ready(CONTENT.id) is not None
        assert b.journal.segments == {sealed.replica: put.segment.name}


async def test_no_answer_but_it_happened(tmp_path: Path):
    log = SilentLog()
    async with bench(tmp_path, log) as b:
        put = await b.write()
        with pytest.raises(Unavailable):
            await b.puts.seal(seal(put), OWNER, "user:ada@test")
        log.is_silent = False
        async with asyncio.timeout(10):
            await b.residents.wait_until(lambda: b.residents.find_ready(CONTENT.id) is not None)
        assert list(b.journal.segments.values()) == [put.segment.name]


async def test_no_answer_and_it_did_not_happen(tmp_path: Path):
    log = SilentLog()
    log.loses = True
    async with bench(tmp_path, log) as b:
        with pytest.raises(Unavailable):
            await b.puts.seal(seal(await b.write()), OWNER, "user:ada@test")
        assert b.pool.stats().used_bytes > 0  # nobody knows yet
        log.is_silent = False
        await asyncio.wait(b.sealing._doubts, timeout=10)
        assert b.pool.stats().used_bytes == 0
        assert b.residents.find(CONTENT.id) is None
        assert b.journal.segments == {}


def bare(content: Content, key: str = "m", expect: ArtifactId | None = None) -> SealPut:
    """A put without bytes."""
    return SealPut(
        session=NO_SESSION,
        artifact=content.id,
        kind="weights",
        manifest=content.manifest,
        key=Key(key),
        expect=expect,
    )


async def test_what_awaits_a_put(tmp_path: Path):
    async with bench(tmp_path, MemoryLog()) as b:
        assert b.puts.foresee(Prepare(size_bytes=1)) == Prospect(key_artifact=None, fits=True)
        await b.puts.seal(seal(await b.write()), OWNER, "user:ada@test")
        ask = Prepare(size_bytes=64 << 20, key=Key("m"))
        assert b.puts.foresee(ask) == Prospect(key_artifact=CONTENT.id, fits=False)
        await execute(b.log, b.follower, [RemoveKey(key=Key("m"))], actor="user:ada@test")
        assert b.puts.foresee(ask).key_artifact is None
        with pytest.raises(OutOfCapacity, match="never fit"):
            b.puts.foresee(Prepare(size_bytes=65 << 20))
        with pytest.raises(InvalidArgument):
            b.puts.foresee(Prepare(size_bytes=-1))


async def test_a_put_without_bytes_of_what_is_here_sets_names_only(tmp_path: Path):
    async with bench(tmp_path, MemoryLog()) as b:
        await b.puts.seal(seal(await b.write()), OWNER, "user:ada@test")
        used = b.pool.stats().used_bytes
        again = await b.puts.seal(bare(CONTENT), OWNER, "user:ada@test")
        assert (again.existed, again.seq) == (True, 3)
        other = await b.puts.seal(bare(CONTENT, "m2"), OWNER, "user:ada@test")
        assert (other.existed, other.seq) == (True, 4)
        assert b.follower.view.keys[Key("m2")].artifact == CONTENT.id
        assert b.pool.stats().used_bytes == used


async def test_a_put_without_bytes_of_what_is_not_here_changes_nothing(tmp_path: Path):
    stranger = Content([7], seed=9)
    async with bench(tmp_path, MemoryLog()) as b:
        await b.puts.seal(seal(await b.write()), OWNER, "user:ada@test")
        with pytest.raises(NotFound, match="does not hold"):
            await b.puts.seal(bare(stranger, "free"), OWNER, "user:ada@test")
        with pytest.raises(NotFound):
            await b.puts.seal(bare(stranger, "m", CONTENT.id), OWNER, "user:ada@test")
        for wrong in (bare(stranger), bare(CONTENT, "free", stranger.id)):
            with pytest.raises(Conflict):
                await b.puts.seal(wrong, OWNER, "user:ada@test")
        forged = structs.replace(bare(CONTENT, "free"), manifest=stranger.manifest)
        with pytest.raises(NotFound):
            await b.puts.seal(forged, OWNER, "user:ada@test")
        assert await b.log.last_seq() == 3


async def test_what_is_removed_or_leaving_is_not_held(tmp_path: Path):
    async with bench(tmp_path, MemoryLog()) as b:
        sealed = await b.puts.seal(seal(await b.write()), OWNER, "user:ada@test")
        leaving = EvictReplica(replica=sealed.replica, epoch=Epoch(1), reason="pressure")
        for command in (leaving, RemoveArtifact(artifact=CONTENT.id)):
            await execute(b.log, b.follower, [command], actor="user:ada@test")
            with pytest.raises(NotFound):
                await b.puts.seal(bare(CONTENT), OWNER, "user:ada@test")
