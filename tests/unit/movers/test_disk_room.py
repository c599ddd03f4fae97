"""The disk's budget: never exceeded, waited for, and asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from samples import MIB, N1, artifact_id, manifest
from tensorcast.log.follower import Follower
from tensorcast.log.memory import MemoryLog
from tensorcast.movers.core.file_plan import file_bytes
from tensorcast.movers.disk_room import DiskRoom
from tensorcast.movers.journal import Journal
from tensorcast.movers.memory.pool import Pool
from tensorcast.movers.reports import Life, Reporter
from tensorcast.movers.residents import Residents
from tensorcast.movers.tiers.disk import DiskTier
from tensorcast.schema.commands import Command, ReportPressure
from tensorcast.schema.errors import OutOfCapacity
from tensorcast.schema.ids import Epoch, EventId, Tier
from worlds import World

CAPACITY = 10 * MIB
WAIT_S = 2.0
A, B = artifact_id("a"), artifact_id("b")
FOUR = file_bytes(manifest(4))


class Budget:
    """The same at any time."""

    def capacity(self, used_bytes: int) -> int:
        return CAPACITY

    def most(self) -> int:
        return CAPACITY


class Ear(Reporter):
    """Hears the reports."""

    def __init__(self, journal: Journal, life: Life) -> None:
        super().__init__(journal, life)
        self.heard: list[ReportPressure] = []
        self.has_heard = asyncio.Event()

    async def report(self, commands: Sequence[Command], cause: EventId | None) -> EventId:
        for command in commands:
            assert isinstance(command, ReportPressure)
            self.heard.append(command)
        self.has_heard.set()
        return EventId("event")


class Bench:
    def __init__(self, folder: Path, world: World, wait_s: float) -> None:
        life = Life(N1)
        life.epoch = Epoch(1)
        follower = Follower(MemoryLog())
        follower.view = world.view
        self.pool = Pool(2 * MIB)
        self.journal = Journal(folder / "journal.db")
        self.ear = Ear(self.journal, life)
        self.residents = Residents(N1, self.pool, self.journal, DiskTier(folder / "disk"))
        self.room = DiskRoom(Budget(), self.residents, self.ear, follower, life, wait_s=wait_s)


@asynccontextmanager
async def bench(
    folder: Path, world: World | None = None, wait_s: float = WAIT_S
) -> AsyncIterator[Bench]:
    bench = Bench(folder, world or World(), wait_s)
    try:
        yield bench
    finally:
        bench.journal.close()
        bench.pool.close()


def two_copies(requested: bool = False) -> World:
    """Artifact a is on the disks of two nodes."""
    world = World()
    world.node("n1")
    world.node("n2")
    world.artifact("a", "n1", "n2", tier=Tier.DISK)
    if requested:
        world.request(A, "n1", tier=Tier.DISK)
    return world


async def test_what_is_reserved_counts(tmp_path: Path):
    async with bench(tmp_path) as b:
        async with b.room.reserve(4 * MIB), b.room.reserve(6 * MIB):
            assert b.room.used_bytes == CAPACITY
        assert b.room.used_bytes == 0
        b.residents.set_on_disk(A, manifest(4))
        b.residents.set_partial(B, MIB)
        assert b.room.used_bytes == FOUR + MIB
        assert b.ear.heard == []


async def test_what_has_a_copy_is_asked_to_go(tmp_path: Path):
    async with bench(tmp_path, two_copies()) as b:
        b.residents.set_on_disk(A, manifest(4))

        async def write() -> None:
            async with b.room.reserve(8 * MIB):
                assert b.room.used_bytes <= CAPACITY

        writing = asyncio.ensure_future(write())
        await b.ear.has_heard.wait()
        (said,) = b.ear.heard
        assert (said.tier, said.needed_bytes) == (Tier.DISK, FOUR - 2 * MIB)
        assert said.candidates == (f"{A}:n1:disk",)
        b.residents.set_on_disk(A, None)
        await asyncio.wait_for(writing, WAIT_S)


@pytest.mark.parametrize("world", [World(), two_copies(requested=True)])
async def test_it_is_refused_when_nothing_may_go(tmp_path: Path, world: World):
    async with bench(tmp_path, world) as b:
        b.residents.set_on_disk(A, manifest(4))
        with pytest.raises(OutOfCapacity, match="last copy") as caught:
            async with b.room.reserve(8 * MIB):
                pass
        assert caught.value.retryable
        assert b.ear.heard == []
        assert b.room.used_bytes == FOUR


async def test_patience_ends(tmp_path: Path):
    async with bench(tmp_path, two_copies(), wait_s=0.1) as b:
        b.residents.set_on_disk(A, manifest(4))
        with pytest.raises(OutOfCapacity):
            async with b.room.reserve(8 * MIB):
                pass


async def test_what_never_fits_is_no_matter_of_time(tmp_path: Path):
    async with bench(tmp_path) as b:
        with pytest.raises(OutOfCapacity) as caught:
            async with b.room.reserve(11 * MIB):
                pass
        assert not caught.value.retryable
