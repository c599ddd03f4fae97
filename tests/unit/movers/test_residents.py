"""Segments stay in place as long as anybody uses them, and never longer."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from samples import N1, artifact_id, manifest
from tensorcast.movers.core.file_plan import file_bytes
from tensorcast.movers.core.layout import Layout
from tensorcast.movers.journal import Journal
from tensorcast.movers.locks import Locks
from tensorcast.movers.memory.pool import Pool
from tensorcast.movers.residents import DiskPull, Phase, Residents, Window
from tensorcast.movers.tiers.disk import DiskTier
from tensorcast.movers.transports.base import NotYet
from tensorcast.schema.aggregates.artifact import Artifact
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.errors import NotFound
from tensorcast.schema.ids import Tier, replica_id
from worlds import World


class Place:
    def __init__(self, folder: Path) -> None:
        self.pool = Pool(32 << 20)
        self.journal = Journal(folder / "journal.db")
        self.residents = Residents(N1, self.pool, self.journal, DiskTier(folder / "disk"))

    def segment(self):
        return self.pool.allocate(4 << 20).segment

    @property
    def used(self) -> int:
        return self.pool.stats().used_bytes


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.journal.close()
    place.pool.close()


def artifact(name: str = "a") -> Artifact:
    world = World()
    id_ = world.artifact(name)
    return world.view.artifacts[id_]


async def test_a_resident_is_known_to_the_journal_until_it_is_dropped(place: Place):
    segment = place.segment()
    resident = await place.residents.add(artifact(), segment, Phase.READY)
    assert place.journal.segments == {resident.replica: segment.name}
    assert place.residents.find_ready(resident.id) is resident
    assert not resident.missing.ranges
    await place.residents.drop(resident)
    await place.residents.drop(resident)
    assert (place.used, place.journal.segments) == (0, {})
    assert place.residents.find(resident.id) is None


async def test_what_is_borrowed_is_released_when_it_comes_back(place: Place):
    resident = await place.residents.add(artifact(), place.segment(), Phase.READY)
    with place.residents.lend(resident.id) as lending:
        assert lending.chunks() == ChunkSet.full(4)
        await place.residents.drop(resident)
        assert place.used == 4 << 20
        with pytest.raises(NotFound):
            place.residents.lend(resident.id)
    assert place.used == 0
    with pytest.raises(NotFound), place.residents.borrow(resident):
        pass


async def test_a_new_segment_takes_the_place_of_an_old_one(place: Place):
    old = await place.residents.add(artifact(), place.segment(), Phase.FILLING)
    with place.residents.borrow(old):
        new = await place.residents.add(artifact(), place.segment(), Phase.READY)
        assert place.residents.find_ready(old.id) is new
        await place.residents.drop(old)  # no longer the one that is meant
        assert place.residents.find(old.id) is new
        assert place.used == 8 << 20
    assert place.used == 4 << 20


async def test_chunks_that_arrive_are_lent_at_once(place: Place):
    resident = await place.residents.add(artifact(), place.segment(), Phase.FILLING)
    with place.residents.lend(resident.id) as lending:
        assert len(lending.chunks()) == 0
        place.residents.add_chunks(resident, ChunkSet.of([2]))
        assert list(lending.chunks()) == [2]
    assert list(resident.missing) == [0, 1, 3]
    place.residents.add_chunks(resident, resident.missing)
    place.residents.set_phase(resident, Phase.READY)
    place.residents.lose_chunks(resident, ChunkSet.of([1]))
    assert place.residents.find_ready(resident.id) is None
    assert list(resident.missing) == [1]


async def test_several_threads_may_add_chunks(place: Place):
    resident = await place.residents.add(artifact(), place.segment(), Phase.FILLING)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda n: resident.add(ChunkSet.of([n])), range(2000)))
    finally:
        sys.setswitchinterval(before)
    assert resident.chunks == ChunkSet.full(2000)


async def test_waiting_ends_with_the_change(place: Place):
    id_ = artifact_id("a")
    place.residents.expect(id_)
    assert place.residents.is_pending(id_)
    waiting = asyncio.ensure_future(
        place.residents.wait_until(lambda: not place.residents.is_pending(id_))
    )
    resident = await place.residents.add(artifact(), place.segment(), Phase.CHECKING)
    place.residents.expect_no_more(id_)
    await asyncio.sleep(0)
    assert not waiting.done()
    place.residents.set_phase(resident, Phase.READY)
    await asyncio.wait_for(waiting, 1)


def test_the_disk_counts_what_it_holds(place: Place):
    place.residents.set_on_disk(artifact_id("a"), manifest(4))
    assert place.residents.is_on_disk(artifact_id("a"))
    assert place.residents.disk_bytes() == file_bytes(manifest(4)) > 4 << 20
    assert place.residents.stored() == {artifact_id("a"): file_bytes(manifest(4))}
    place.residents.set_on_disk(artifact_id("a"), None)
    place.residents.set_on_disk(artifact_id("a"), None)
    assert place.residents.disk_bytes() == 0


def test_what_is_half_written_counts_too(place: Place):
    place.residents.set_partial(artifact_id("a"), 5)
    place.residents.set_partial(artifact_id("a"), 7)
    assert place.residents.disk_bytes() == place.residents.partial_bytes(artifact_id("a")) == 7
    assert place.residents.partial() == (artifact_id("a"),)
    assert place.residents.stored() == {}
    place.residents.set_partial(artifact_id("a"), None)
    assert place.residents.disk_bytes() == place.residents.partial_bytes(artifact_id("a")) == 0


async def test_a_stream_is_lent_as_far_as_it_is_there(place: Place):
    a, fd = artifact(), os.memfd_create("file")
    pulling = DiskPull(a, fd, Layout.whole(a.manifest.size_bytes))
    place.residents.begin_disk_pull(pulling)
    pulling.add(ChunkSet.of([2]))
    with place.residents.lend(a.id) as lending:
        place.residents.end_disk_pull(pulling)
        os.close(fd)
        assert list(lending.chunks()) == [2]
        assert os.fstat(lending.fd)
    with pytest.raises(NotFound), place.residents.lend(a.id):
        pass


def test_a_window_misses_only_its_own_chunks():
    window = Window(
        DiskPull(artifact(), -1, Layout.whole(0)), ChunkSet.of([1, 2]), memoryview(b""), 9
    )
    window.add(ChunkSet.of([2]))
    assert list(window.missing) == [1]
    assert window.base_bytes == 9


async def test_one_at_a_time_for_each_artifact():
    locks, order = Locks(), []

    async def work(name: str, what: str) -> None:
        async with locks.alone(artifact_id(what)):
            order.append(f"{name} in")
            await asyncio.sleep(0)
            order.append(f"{name} out")

    await asyncio.gather(work("a1", "a"), work("a2", "a"), work("b", "b"))
    assert order.index("a1 out") < order.index("a2 in")
    assert order.index("b in") < order.index("a1 out")
    assert locks.wanted(artifact_id("a")) == 0


async def test_what_is_read_back_is_not_yet_here(place: Place):
    a = artifact()
    place.residents.expect(a.id)
    with pytest.raises(NotYet), place.residents.lend(a.id):
        pass
    place.residents.expect_no_more(a.id)
    with pytest.raises(NotFound), place.residents.lend(a.id):
        pass


async def test_a_put_that_is_being_registered_is_arriving(place: Place):
    a, segment = artifact(), place.segment()
    replica = replica_id(a.id, N1, Tier.DRAM)
    assert not place.residents.is_arriving(a.id)
    await place.journal.keep_segment(replica, segment.name)
    assert place.residents.is_arriving(a.id)
    await place.residents.add(a, segment, Phase.READY)
    assert not place.residents.is_arriving(a.id)
