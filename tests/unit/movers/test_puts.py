"""A put whose append got no answer: it is registered exactly if the log has it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from mover_nodes import Content
from samples import N1
from tensorcast.log.follower import Follower
from tensorcast.log.memory import MemoryLog
from tensorcast.movers.journal import Journal
from tensorcast.movers.memory.handover import Lifelines
from tensorcast.movers.memory.pool import Pool
from tensorcast.movers.puts import Put, Puts
from tensorcast.movers.reports import Life, Reporter
from tensorcast.movers.residents import Residents
from tensorcast.movers.room import Room
from tensorcast.movers.tiers.disk import DiskTier
from tensorcast.schema.envelope import Draft
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.ids import Epoch, Key, Seq
from tensorcast.schema.socket import SealPut

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
        self.puts = Puts(
            self.residents,
            room,
            _nothing_idle,
            self.pool,
            self.journal,
            log,
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
        await asyncio.wait(b.puts._doubts, timeout=10)
        assert b.pool.stats().used_bytes == 0
        assert b.residents.find(CONTENT.id) is None
        assert b.journal.segments == {}
