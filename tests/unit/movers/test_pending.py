"""A put that was accepted is sealed, whatever happens to the mover; its key waits for it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from msgspec import structs

from mover_nodes import Content
from put_bench import CONTENT, OWNER, Bench, SilentLog, bench, seal
from tensorcast.log.execute import execute
from tensorcast.log.memory import MemoryLog
from tensorcast.movers.puts import SEALED, Put
from tensorcast.movers.seals import AcceptedSeal
from tensorcast.schema.commands import RemoveArtifact
from tensorcast.schema.errors import Conflict, Corrupt, InvalidArgument, NotFound
from tensorcast.schema.ids import ArtifactId, Key
from tensorcast.schema.socket import PutSealed, SealPut

ADA, BOB = "user:ada@test", "user:bob@test"


def bare(put: Put, key: str | None = "m", expect: ArtifactId | None = None) -> SealPut:
    """A seal by one who does not know what the content is."""
    return SealPut(
        session=put.session,
        kind="weights",
        manifest=structs.replace(CONTENT.manifest, digests=b""),
        key=None if key is None else Key(key),
        expect=expect,
        wait=False,
    )


async def accept(b: Bench, key: str | None = "m") -> str:
    put = await b.write()
    return (await b.puts.accept(bare(put, key), OWNER, ADA)).ticket


def read(b: Bench, sealed: PutSealed) -> bytes:
    resident = b.residents.find_ready(sealed.artifact)
    assert resident is not None
    return bytes(resident.segment.memory[: CONTENT.manifest.size_bytes])


async def test_what_is_accepted_is_sealed(tmp_path: Path):
    async with bench(tmp_path, MemoryLog()) as b:
        ticket = await accept(b)
        assert list(b.journal.seals) == [ticket]
        sealed = await b.pending.wait(ticket)
        assert (sealed.artifact, sealed.existed, sealed.kind) == (CONTENT.id, False, "weights")
        assert read(b, sealed) == CONTENT.bytes
        assert b.follower.view.keys[Key("m")].artifact == CONTENT.id
        assert await b.pending.wait(ticket) == sealed
        assert (b.journal.seals, b.pending.total, b.puts.total) == ({}, 0, 0)


async def test_the_same_content_again_only_sets_the_key(tmp_path: Path):
    async with bench(tmp_path, MemoryLog()) as b:
        await b.pending.wait(await accept(b))
        used = b.pool.stats().used_bytes
        again = await b.pending.wait(await accept(b, "m2"))
        assert (again.artifact, again.existed) == (CONTENT.id, True)
        assert b.follower.view.keys[Key("m2")].artifact == CONTENT.id
        assert b.pool.stats().used_bytes == used


async def test_a_key_waits_for_its_put_and_for_no_other(tmp_path: Path):
    async with bench(tmp_path, MemoryLog()) as b:
        put = await b.write()
        writer = put.segment.open_writable()  # as long as it is open, nothing is sealed
        ticket = (await b.puts.accept(bare(put), OWNER, ADA)).ticket
        await b.pending.settle_key("other")
        await b.pending.settle_key(None)
        waiting = asyncio.ensure_future(b.pending.settle_key("m"))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert b.pending.is_awaited("m")
        os.close(writer)
        await waiting
        assert Key("m") in b.follower.view.keys
        assert (await b.pending.wait(ticket)).artifact == CONTENT.id
        assert not b.pending.is_awaited("m")


async def test_a_key_that_is_taken_is_told_at_once(tmp_path: Path):
    async with bench(tmp_path, MemoryLog()) as b:
        await b.pending.wait(await accept(b))
        other = Content([8])
        put = await b.puts.open(8, OWNER)
        os.pwrite(put.segment.fd, other.bytes, 0)
        with pytest.raises(Conflict):
            await b.puts.accept(structs.replace(bare(put), manifest=other.manifest), OWNER, ADA)
        answer = await b.puts.accept(bare(await b.write()), OWNER, ADA)  # the same content
        assert answer.ticket == SEALED
        assert answer.sealed is not None
        assert answer.sealed.existed


async def test_of_two_puts_of_a_key_the_first_wins(tmp_path: Path):
    other = Content([1 << 20, 7], seed=5)
    async with bench(tmp_path, MemoryLog()) as b:
        put = await b.write()
        writer = put.segment.open_writable()
        ticket = (await b.puts.accept(bare(put), OWNER, ADA)).ticket
        second = await b.puts.open(other.manifest.size_bytes, OWNER)
        os.pwrite(second.segment.fd, other.bytes, 0)
        late = asyncio.ensure_future(b.puts.accept(bare(second), OWNER, BOB))
        await asyncio.sleep(0)
        os.close(writer)
        with pytest.raises(Conflict):
            await late
        assert (await b.pending.wait(ticket)).artifact == CONTENT.id
        assert b.residents.find(other.id) is None


async def test_a_conflict_that_nobody_could_foresee_is_told_to_who_waits(tmp_path: Path):
    log = MemoryLog()
    async with bench(tmp_path, log) as b:
        put = await b.write()
        writer = put.segment.open_writable()
        ticket = (await b.puts.accept(bare(put), OWNER, ADA)).ticket
        async with bench(tmp_path / "other", log, 2) as elsewhere:  # another node, say
            other = Content([8], seed=3)
            rival = await elsewhere.puts.open(8, OWNER)
            os.pwrite(rival.segment.fd, other.bytes, 0)
            request = structs.replace(seal(rival), artifact=other.id, manifest=other.manifest)
            await elsewhere.puts.seal(request, OWNER, BOB)
        os.close(writer)
        with pytest.raises(Conflict):
            await b.pending.wait(ticket)
        with pytest.raises(Conflict):  # and to who asks again
            await b.pending.wait(ticket)
        assert b.residents.find(CONTENT.id) is None
        assert b.pool.stats().used_bytes == 0
        assert b.journal.segments == {}


async def test_what_can_never_be_sealed_is_not_accepted(tmp_path: Path):
    async with bench(tmp_path, MemoryLog()) as b:
        for change in ({"key": Key(" ")}, {"artifact": ArtifactId("x")}):
            put = await b.write()
            with pytest.raises(InvalidArgument):
                await b.puts.accept(structs.replace(bare(put), **change), OWNER, ADA)
        put = await b.write()
        strange = structs.replace(CONTENT.manifest, digests=b"", chunk_bytes=1)
        with pytest.raises(Corrupt):
            await b.puts.accept(structs.replace(bare(put), manifest=strange), OWNER, ADA)
        assert b.pool.stats().used_bytes == 0
        assert b.journal.seals == {}


async def test_a_wrong_belief_is_corrupt(tmp_path: Path):
    async with bench(tmp_path, MemoryLog()) as b:
        put = await b.write()
        wrong = structs.replace(bare(put), artifact=ArtifactId("0" * 40))
        ticket = (await b.puts.accept(wrong, OWNER, ADA)).ticket
        with pytest.raises(Corrupt):
            await b.pending.wait(ticket)
        assert b.pool.stats().used_bytes == 0


async def test_nothing_is_known_of_other_tickets(tmp_path: Path):
    async with bench(tmp_path, MemoryLog()) as b:
        with pytest.raises(NotFound, match="Nothing is known"):
            await b.pending.wait("0" * 32)


async def test_content_that_was_removed_comes_back(tmp_path: Path):
    log = MemoryLog()
    async with bench(tmp_path, log) as b:
        await b.pending.wait(await accept(b))
        put = await b.write()
        writer = put.segment.open_writable()
        ticket = (await b.puts.accept(bare(put, "m2"), OWNER, ADA)).ticket
        await execute(log, b.follower, [RemoveArtifact(artifact=CONTENT.id)], actor=BOB)
        resident = b.residents.find(CONTENT.id)
        assert resident is not None
        await b.residents.drop(resident)
        os.close(writer)
        sealed = await b.pending.wait(ticket)
        assert read(b, sealed) == CONTENT.bytes
        assert b.follower.view.keys[Key("m2")].artifact == CONTENT.id


async def test_the_next_life_finishes_what_was_accepted(tmp_path: Path):
    """The first life is killed: its journal and the kept descriptor are all that is left."""
    log = MemoryLog()
    first = Bench(tmp_path, log)
    put = await first.write()
    writer = put.segment.open_writable()
    ticket = (await first.puts.accept(bare(put), OWNER, ADA)).ticket
    name, kept = put.segment.name, os.dup(put.segment.fd)
    first.pending._works[ticket].task.cancel()
    await asyncio.wait([first.pending._works[ticket].task])
    first.journal.close()
    os.close(writer)
    async with bench(tmp_path, log, 2) as b:
        assert list(b.pending.wanted()) == [name]
        assert b.pending.adopt(name, kept)
        early = asyncio.ensure_future(b.pending.wait(ticket))
        await b.pending.reconcile()
        sealed = await early
        assert read(b, sealed) == CONTENT.bytes
        assert b.follower.view.keys[Key("m")].artifact == CONTENT.id
        assert await log.last_seq() == 3
    first.pool.close()


async def test_a_seal_that_only_its_note_is_missing_of_is_not_done_again(tmp_path: Path):
    log = MemoryLog()
    async with bench(tmp_path, log) as b:
        sealed = await b.pending.wait(await accept(b))
        resident = b.residents.find_ready(sealed.artifact)
        assert resident is not None
        request = bare(await b.write())
        forgotten = AcceptedSeal(
            ticket="t", segment=resident.segment.name, actor=ADA, request=request
        )
        await b.journal.keep_seal(forgotten)
        await b.pending.reconcile()
        found = await b.pending.wait("t")
        assert (found.artifact, found.replica) == (sealed.artifact, sealed.replica)
        assert await log.last_seq() == 3


async def test_a_stop_writes_what_the_log_does_not_take(tmp_path: Path):
    log = SilentLog()
    log.loses = True
    async with bench(tmp_path, log) as b:
        ticket = await accept(b)
    assert [path.name for path in (tmp_path / "accepted").iterdir()] == [f"{ticket}.image"]
    log.loses = log.is_silent = False
    working = MemoryLog()
    async with bench(tmp_path, working, 2) as b:
        await b.pending.reconcile()
        await b.pending.restore(lambda status: None)
        sealed = await b.pending.wait(ticket)
        assert read(b, sealed) == CONTENT.bytes
    assert list((tmp_path / "accepted").iterdir()) == []


async def test_bytes_that_are_gone_are_told(tmp_path: Path):
    log = MemoryLog()
    first = Bench(tmp_path, log)
    ticket = await accept(first)
    first.pending._works[ticket].task.cancel()
    first.journal.close()
    first.pool.close()  # the machine was switched off
    async with bench(tmp_path, log, 2) as b:
        await b.pending.reconcile()
        await b.pending.restore(lambda status: None)
        with pytest.raises(NotFound, match="lost with the memory"):
            await b.pending.wait(ticket)
        assert b.pool.stats().used_bytes == 0
