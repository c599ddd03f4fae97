"""What is said of full tiers, and of room to spare."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from samples import MIB, N1, artifact_id, manifest
from tensorcast.log.follower import Follower
from tensorcast.log.memory import MemoryLog
from tensorcast.movers.core.eviction import Watermarks
from tensorcast.movers.disk_room import DiskRoom
from tensorcast.movers.journal import Journal
from tensorcast.movers.levels import Levels
from tensorcast.movers.memory.handover import Lifelines
from tensorcast.movers.memory.pool import Pool
from tensorcast.movers.reports import Life, Reporter
from tensorcast.movers.residents import Phase, Residents
from tensorcast.movers.room import Room
from tensorcast.movers.tiers.disk import DiskTier
from tensorcast.movers.uses import Uses
from tensorcast.schema.commands import Command, ReportPressure, ReportRelief
from tensorcast.schema.ids import Epoch, EventId, Overflow, Tier
from worlds import World

POOL = 20 * MIB
DISK = 40 * MIB


class Budget:
    """The same at any time."""

    def capacity(self, used_bytes: int) -> int:
        return DISK

    def most(self) -> int:
        return DISK


class Ear(Reporter):
    """Hears the reports."""

    def __init__(self, journal: Journal, life: Life) -> None:
        super().__init__(journal, life)
        self.heard: list[Command] = []

    async def report(self, commands: Sequence[Command], cause: EventId | None) -> EventId:
        self.heard += commands
        return EventId("event")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 2.0
        return self.now


class Bench:
    """A node whose artifacts have copies on another."""

    def __init__(self, folder: Path, overflow: Overflow) -> None:
        life = Life(N1)
        life.epoch = Epoch(1)
        self.world = World()
        self.world.node("n1")
        self.world.node("n2")
        follower = Follower(MemoryLog())
        self.follower = follower
        self.pool = Pool(POOL)
        self.journal = Journal(folder / "journal.db")
        self.lifelines = Lifelines()
        self.ear = Ear(self.journal, life)
        self.residents = Residents(N1, self.pool, self.journal, DiskTier(folder / "disk"))
        self.residents.uses = Uses(Clock())
        room = Room(self.pool, self.residents, self.lifelines, self.ear, follower, life, wait_s=1.0)
        disk_room = DiskRoom(Budget(), self.residents, self.ear, follower, life, wait_s=1.0)
        marks = Watermarks(high=0.9, low=0.5)
        self.levels = Levels(
            self.pool,
            room,
            disk_room,
            self.residents,
            self.ear,
            life,
            dram=marks,
            disk=marks,
            overflow=overflow,
        )

    async def hold(self, name: str, mib: int) -> None:
        """A ready resident."""
        id_ = artifact_id(name)
        if id_ in self.world.view.artifacts:
            self.world.ready(id_, "n1")
        else:
            self.world.artifact(name, "n1", "n2")
        self.follower.view = self.world.view
        lent = self.pool.allocate(mib * MIB)
        await self.residents.add(self.world.view.artifacts[id_], lent.segment, Phase.READY)

    def store(self, name: str, mib: int) -> None:
        """A disk replica."""
        id_ = self.world.artifact(name, "n2", tier=Tier.DISK)
        self.follower.view = self.world.view
        self.residents.set_on_disk(id_, manifest(mib))


@asynccontextmanager
async def bench(folder: Path, overflow: Overflow = Overflow.SPILL) -> AsyncIterator[Bench]:
    bench = Bench(folder, overflow)
    try:
        yield bench
    finally:
        bench.lifelines.close()
        bench.journal.close()
        bench.pool.close()


async def test_nothing_is_said_below_the_mark(tmp_path: Path):
    async with bench(tmp_path) as b:
        await b.hold("a", 18)
        b.store("b", 16)
        await b.levels.look()
        assert b.ear.heard == []


async def test_a_full_memory_is_told_once_and_the_hottest_is_spared(tmp_path: Path):
    async with bench(tmp_path) as b:
        await b.hold("a", 10)
        await b.hold("b", 10)
        await b.levels.look()
        await b.levels.look()
        (said,) = b.ear.heard
        assert isinstance(said, ReportPressure)
        assert (said.tier, said.needed_bytes) == (Tier.DRAM, 10 * MIB)
        assert said.candidates == (b.world.replica(artifact_id("a"), "n1"),)


async def test_one_large_artifact_is_left_alone(tmp_path: Path):
    async with bench(tmp_path) as b:
        await b.hold("a", 20)
        await b.levels.look()
        assert b.ear.heard == []


async def test_a_node_that_rejects_keeps_its_memory_full(tmp_path: Path):
    async with bench(tmp_path, Overflow.REJECT) as b:
        await b.hold("a", 10)
        await b.hold("b", 10)
        await b.levels.look()
        assert b.ear.heard == []


async def test_a_full_disk_is_told(tmp_path: Path):
    async with bench(tmp_path, Overflow.REJECT) as b:
        b.store("a", 30)
        b.store("b", 9)
        await b.levels.look()
        (said,) = b.ear.heard
        assert isinstance(said, ReportPressure)
        assert said.tier is Tier.DISK
        assert len(said.candidates) == 2


async def test_what_is_popular_on_the_disk_is_offered_when_there_is_room(tmp_path: Path):
    async with bench(tmp_path) as b:
        b.store("a", 4)
        b.store("b", 4)
        b.store("c", 12)  # more than there is room for
        for name in "aaaccc":
            b.residents.uses.note(artifact_id(name))
        await b.levels.look()
        (said,) = b.ear.heard
        assert isinstance(said, ReportRelief)
        assert (said.tier, said.free_bytes) == (Tier.DRAM, 10 * MIB)
        assert said.candidates == (b.world.replica(artifact_id("a"), "n1", Tier.DISK),)
        await b.levels.look()
        assert len(b.ear.heard) == 1


async def test_what_is_in_memory_is_not_offered(tmp_path: Path):
    async with bench(tmp_path) as b:
        b.store("a", 4)
        for _ in range(3):
            b.residents.uses.note(artifact_id("a"))
        await b.hold("a", 4)
        await b.levels.look()
        assert b.ear.heard == []


async def test_what_is_gone_is_forgotten(tmp_path: Path):
    async with bench(tmp_path) as b:
        b.store("a", 4)
        for _ in range(3):
            b.residents.uses.note(artifact_id("a"))
        b.residents.set_on_disk(artifact_id("a"), None)
        b.levels.forget()
        assert b.residents.uses.popular([artifact_id("a")]) == ()
