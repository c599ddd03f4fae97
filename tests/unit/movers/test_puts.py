"""A put whose append got no answer is registered exactly if the log has it; one without bytes only
if the node holds them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec import structs

from mover_nodes import Content
from put_bench import CONTENT, OWNER, SilentLog, bench, seal
from tensorcast.log.execute import execute
from tensorcast.log.memory import MemoryLog
from tensorcast.schema.commands import EvictReplica, RemoveArtifact, RemoveKey
from tensorcast.schema.errors import (
    Conflict,
    InvalidArgument,
    NotFound,
    OutOfCapacity,
    Unavailable,
)
from tensorcast.schema.ids import ArtifactId, Epoch, Key
from tensorcast.schema.socket import NO_SESSION, Prepare, Prospect, SealPut


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


async def test_one_put_too_many_waits_for_another_to_end(tmp_path: Path):
    async with bench(tmp_path, MemoryLog()) as b:
        opened = [await b.puts.open(1, OWNER) for _ in range(b.puts._puts_max)]
        waiting = asyncio.ensure_future(b.puts.open(1, OWNER))
        await asyncio.wait([waiting], timeout=0.05)
        assert not waiting.done()
        b.puts.abort(opened[0].session, OWNER)
        late = await asyncio.wait_for(waiting, 5)
        assert late.session > opened[-1].session
        b.puts.abandon(OWNER)
