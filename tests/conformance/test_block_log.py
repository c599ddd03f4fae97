"""Both KV logs keep the one contract; what only one of them can be made to do is below."""

from __future__ import annotations

import pytest

from block_samples import block_draft, cleared, keys, stored
from conformance.block_log import BLOCK_CHECKS, events_of, read_blocks
from tensorcast.log.blocks import JetStreamBlocks, limits
from tensorcast.log.jetstream import connect_log
from tensorcast.log.memory import MemoryBlocks
from tensorcast.schema.errors import InvalidArgument, Unavailable


@pytest.mark.parametrize("check", BLOCK_CHECKS, ids=lambda check: check.__name__)
async def test_kv_log_in_memory(check):
    await check(MemoryBlocks())


async def test_kv_log_on_jetstream(nats_server):
    for number, check in enumerate(BLOCK_CHECKS):
        log = await connect_log(nats_server.url, f"c{number}", name="test")
        try:
            await check(JetStreamBlocks(log.connection, f"c{number}"))
        finally:
            await log.aclose()


async def test_the_oldest_events_go_and_a_reader_goes_on_after_them(nats_server, monkeypatch):
    monkeypatch.setenv("TENSORCAST_KV_LOG_BYTES", str(16 << 20))
    log = await connect_log(nats_server.url, "c", name="test")
    blocks = JetStreamBlocks(log.connection, "c")
    await blocks.reach()
    large = stored(keys(16_000))
    for _ in range(10):
        last = await blocks.append([block_draft(large) for _ in range(6)])
    reach = await blocks.reach()
    assert 1 < reach.first < reach.last == last
    found = await read_blocks(blocks, last, after=3)
    assert [one.seq for one in found] == list(range(reach.first, last + 1))
    assert events_of(found[-1:]) == [large]
    await log.aclose()


async def test_a_reader_of_a_log_in_memory_skips_what_was_forgotten():
    log = MemoryBlocks()
    for _ in range(5):
        await log.append([block_draft(cleared())])
    log.forget(3)
    assert [one.seq for one in await read_blocks(log, 5)] == [4, 5]
    log.replace()
    assert (await log.reach()).last == 0
    log.away = True
    with pytest.raises(Unavailable):
        await log.reach()


async def test_nobody_may_delete_from_it(nats_server):
    log = await connect_log(nats_server.url, "c", name="test")
    await JetStreamBlocks(log.connection, "c").reach()
    with pytest.raises(Exception, match="purge not permitted"):
        await log.connection.api("STREAM.PURGE.TC_c_KV", {}, object)
    await log.aclose()


@pytest.mark.parametrize("text", ["-1", "1e9", "12", "many"])
def test_limits_that_make_no_sense_are_refused(text, monkeypatch):
    assert limits() == (512 << 20, 86_400)
    monkeypatch.setenv("TENSORCAST_KV_LOG_BYTES", text)
    with pytest.raises(InvalidArgument, match="KV_LOG_BYTES"):
        limits()
