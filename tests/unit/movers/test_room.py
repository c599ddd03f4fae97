"""Who waits for memory, and what is reported of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from room_bench import WAIT_S, bench, nothing_idle
from samples import MIB, N1
from tensorcast.movers.room import TELL_AGAIN_S, TELL_APART_S
from tensorcast.schema.errors import OutOfCapacity
from tensorcast.schema.ids import Overflow


async def test_room_is_found_without_a_word(tmp_path: Path):
    async with bench(tmp_path) as b:
        assert b.room.fits(64 * MIB)
        await b.find(64)
        assert not b.room.fits(2 * MIB)
        assert b.ear.needs == []


async def test_what_never_fits_is_told_at_once(tmp_path: Path):
    async with bench(tmp_path) as b:
        for ask in (b.room.find(65 * MIB, nothing_idle), asyncio.to_thread(b.room.fits, 65 * MIB)):
            with pytest.raises(OutOfCapacity, match="never fit") as caught:
                await ask
            assert not caught.value.retryable
        assert b.ear.needs == []


async def test_every_request_calls_for_room_when_it_needs_some(tmp_path: Path):
    """The second must not wait because the first, long satisfied, has called."""
    clock = asyncio.get_running_loop().time
    async with bench(tmp_path) as b:
        held = await b.find(60)
        began = clock()
        for count in (1, 2, 3):
            asking = asyncio.ensure_future(b.find(60))
            await b.ear.until(count)
            b.pool.release(held.segment)
            held = await asking
        assert b.ear.needs == [56, 56, 56]
        assert clock() - began < TELL_AGAIN_S / 2


async def test_a_burst_leads_to_few_reports_that_count_all_who_wait(tmp_path: Path):
    async with bench(tmp_path) as b:
        held = await b.find(64)
        asking = [asyncio.ensure_future(b.find(2)) for _ in range(20)]
        # The first ones may call before the others come; then nobody is news any more.
        async with asyncio.timeout(WAIT_S):
            while b.ear.needs[-1:] != [40]:
                await b.ear.until(len(b.ear.needs) + 1)
        told = len(b.ear.needs)
        assert told <= 3
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(4 * TELL_APART_S):
                await b.ear.until(told + 1)
        b.pool.release(held.segment)
        await asyncio.gather(*asking)
        assert len(b.ear.needs) == told


async def test_who_takes_what_others_called_for_makes_them_call_anew(tmp_path: Path):
    async with bench(tmp_path) as b:
        first, second = await b.find(32), await b.find(32)
        waiting = asyncio.ensure_future(b.find(40))
        await b.ear.until(1)
        b.pool.release(first.segment)
        thief = await b.find(32)
        await b.ear.until(2)
        assert b.ear.needs == [40, 40]
        b.pool.release(thief.segment)
        b.pool.release(second.segment)
        await waiting


async def test_patience_ends(tmp_path: Path):
    async with bench(tmp_path, wait_s=0.1) as b:
        await b.find(64)
        with pytest.raises(OutOfCapacity) as caught:
            await b.find(2)
        assert caught.value.node == N1
        assert caught.value.retryable
        assert b.ear.needs == [2]


async def test_a_node_that_rejects_does_not_wait(tmp_path: Path):
    async with bench(tmp_path, wait_s=60.0, overflow=Overflow.REJECT) as b:
        held = await b.find(60)
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(OutOfCapacity, match="No room") as caught:
                await b.find(6)
        assert caught.value.retryable
        assert b.ear.needs == []
        b.pool.release(held.segment)
        await b.find(6)
