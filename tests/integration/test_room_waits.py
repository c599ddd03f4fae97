"""Who waits for memory how long, in real time: nobody starves, and nobody waits in vain."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from room_bench import WAIT_S, bench
from tensorcast.movers.room import PASS_S


async def test_patience_lasts_as_long_as_memory_is_given_back(tmp_path: Path):
    """In all it takes twice as long as anybody waits for nothing."""
    wait_s = 0.8
    async with bench(tmp_path, wait_s=wait_s) as b:
        held = [await b.find(4) for _ in range(16)]
        asking = asyncio.ensure_future(b.find(64))
        for lent in held:
            await asyncio.sleep(wait_s / 8)
            b.pool.release(lent.segment)
        await asking


async def test_many_small_requests_do_not_starve_a_large_one(tmp_path: Path):
    async with bench(tmp_path, wait_s=30.0) as b:
        ending = asyncio.Event()
        served = 0

        async def come_and_go() -> None:
            nonlocal served
            while not ending.is_set():
                lent = await b.find(8)
                await asyncio.sleep(0.02)
                b.pool.release(lent.segment)
                served += 1

        small = [asyncio.ensure_future(come_and_go()) for _ in range(12)]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(20 * PASS_S):
            large = await b.find(60)
        assert served
        ending.set()
        b.pool.release(large.segment)
        await asyncio.gather(*small)


async def test_who_cannot_be_served_holds_nobody_up(tmp_path: Path):
    """What readers map does not come free, so nobody waits for the sake of it."""
    async with bench(tmp_path, wait_s=30.0) as b:
        read = await b.find(32)
        reader = read.segment.open_read_only()
        b.pool.release(read.segment)
        hopeless = asyncio.ensure_future(b.find(40))
        await asyncio.sleep(2 * PASS_S)
        async with asyncio.timeout(WAIT_S):
            await b.find(16)
        assert not hopeless.done()
        os.close(reader)
        async with asyncio.timeout(WAIT_S):
            await hopeless
