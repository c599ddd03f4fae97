"""Who waits for memory, and what is reported of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from samples import MIB, N1
from tensorcast.log.follower import Follower
from tensorcast.log.memory import MemoryLog
from tensorcast.movers.journal import Journal
from tensorcast.movers.memory.handover import Lifelines
from tensorcast.movers.memory.pool import Lent, Pool
from tensorcast.movers.reports import Life, Reporter
from tensorcast.movers.residents import Residents
from tensorcast.movers.room import PASS_S, TELL_AGAIN_S, TELL_APART_S, WAITS_MAX, Room
from tensorcast.movers.tiers.disk import DiskTier
from tensorcast.schema.commands import Command, ReportPressure
from tensorcast.schema.errors import OutOfCapacity
from tensorcast.schema.ids import Epoch, EventId, Overflow

POOL = 64 * MIB
WAIT_S = 2.0


class Ear(Reporter):
    """Hears the reports."""

    def __init__(self, journal: Journal, life: Life) -> None:
        super().__init__(journal, life)
        self.needs: list[int] = []
        self.heard = asyncio.Event()

    async def report(self, commands: Sequence[Command], cause: EventId | None) -> EventId:
        for command in commands:
            assert isinstance(command, ReportPressure)
            self.needs.append(command.needed_bytes // MIB)
        self.heard.set()
        self.heard = asyncio.Event()
        return EventId("event")

    async def until(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(self.needs) < count:
                await self.heard.wait()


class Bench:
    def __init__(self, folder: Path, wait_s: float, overflow: Overflow) -> None:
        life = Life(N1)
        life.epoch = Epoch(1)
        self.pool = Pool(POOL)
        self.journal = Journal(folder / "journal.db")
        self.ear = Ear(self.journal, life)
        self.lifelines = Lifelines()
        self.room = Room(
            self.pool,
            Residents(N1, self.pool, self.journal, DiskTier(folder / "disk")),
            self.lifelines,
            self.ear,
            Follower(MemoryLog()),
            life,
            wait_s=wait_s,
            overflow=overflow,
        )

    async def find(self, mib: int) -> Lent:
        return await self.room.find(mib * MIB, _nothing_idle)


async def _nothing_idle() -> None:
    pass


@asynccontextmanager
async def bench(
    folder: Path, wait_s: float = WAIT_S, overflow: Overflow = Overflow.SPILL
) -> AsyncIterator[Bench]:
    bench = Bench(folder, wait_s, overflow)
    try:
        yield bench
    finally:
        bench.lifelines.close()
        bench.journal.close()
        bench.pool.close()


async def test_room_is_found_without_a_word(tmp_path: Path):
    async with bench(tmp_path) as b:
        assert b.room.fits(64 * MIB)
        await b.find(64)
        assert not b.room.fits(2 * MIB)
        assert b.ear.needs == []


async def test_what_never_fits_is_told_at_once(tmp_path: Path):
    async with bench(tmp_path) as b:
        for ask in (b.room.find(65 * MIB, _nothing_idle), asyncio.to_thread(b.room.fits, 65 * MIB)):
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


async def test_patience_lasts_as_long_as_memory_is_given_back(tmp_path: Path):
    wait_s = 0.2
    async with bench(tmp_path, wait_s=wait_s) as b:
        held = [await b.find(4) for _ in range(16)]
        began = asyncio.get_running_loop().time()
        asking = asyncio.ensure_future(b.find(64))
        for lent in held:
            await asyncio.sleep(wait_s / 4)
            b.pool.release(lent.segment)
        await asking
        passed = asyncio.get_running_loop().time() - began
        assert wait_s < passed < WAITS_MAX * wait_s


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
        before = served
        b.pool.release(large.segment)
        async with asyncio.timeout(20 * PASS_S):
            while served < before + 24:
                await asyncio.sleep(0.02)
        ending.set()
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
