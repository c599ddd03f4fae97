"""Replicas that are not where the log has them, and disks that are full or lose files."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mover_nodes import MIB, Application, Content, MoverNode, observing
from servers import NatsServer
from tensorcast.schema.aggregates.replica import ReplicaStatus
from tensorcast.schema.commands import CompleteReplica, RemoveArtifact
from tensorcast.schema.errors import OutOfCapacity, Unavailable
from tensorcast.schema.faults import FaultKind
from tensorcast.schema.ids import Tier, replica_id
from tensorcast.schema.work import Evict, Load, Persist, Verify

pytestmark = pytest.mark.slow


@pytest.fixture
def node(tmp_path: Path, nats_server: NatsServer) -> Iterator[MoverNode]:
    node = MoverNode("n1", tmp_path / "n1", nats_server.url)
    node.start()
    yield node
    node.close()


async def _happens(predicate, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not predicate():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def read(node: MoverNode, what: str) -> bytes:
    with node.application() as application, application.get(what) as reading:
        return reading.bytes()


async def test_no_replica_stays_in_the_log_that_is_not_there(
    node: MoverNode, nats_server: NatsServer
):
    removed, unreadable, damaged = (Content([2 * MIB], seed=n) for n in range(3))
    images = node.folder / "data" / "hibernate"
    async with observing(nats_server.url) as observer:
        with node.application() as application:
            for content in (removed, unreadable, damaged):
                application.put(content)
            assert application.stats().unsaved_bytes == 6 * MIB
        assert node.stop() == 0
        node.store.close()
        await observer.execute(RemoveArtifact(artifact=removed.id))
        image = images / f"{unreadable.id}.image"
        image.unlink()
        image.mkdir()
        (images / f"{damaged.id}.image").write_bytes(damaged.bytes[:MIB])
        node.start()
        view = await observer.until(
            lambda view: (
                view.replicas[replica_id(unreadable.id, "n1", Tier.DRAM)].status
                is ReplicaStatus.LOST
            )
        )
        view = await observer.until(
            lambda view: (
                view.replicas[replica_id(damaged.id, "n1", Tier.DRAM)].status
                is ReplicaStatus.FILLING
            )
        )
        assert view.replicas[replica_id(removed.id, "n1", Tier.DRAM)].status is ReplicaStatus.LOST
        await _happens(lambda: not (images / f"{removed.id}.image").exists())
        with node.application() as application:
            assert application.stats().replicas == 1


async def test_an_eviction_of_a_ghost_ends_it(node: MoverNode, nats_server: NatsServer):
    content = Content([MIB])
    async with observing(nats_server.url) as observer:
        with node.application() as application:
            application.put(content)
        await observer.succeeded(await observer.issue("n1", Persist(artifact=content.id)))
        for tier in Tier:
            await observer.succeeded(
                await observer.issue("n1", Evict(artifact=content.id, tier=tier))
            )
            replica = replica_id(content.id, "n1", tier)
            ghost = CompleteReplica(
                replica=replica, artifact=content.id, node="n1", tier=tier, epoch=1, chunks_total=1
            )
            await observer.execute(ghost)
            await observer.succeeded(
                await observer.issue("n1", Evict(artifact=content.id, tier=tier), f"again {tier}")
            )
            view = await observer.view()
            assert view.replicas[replica].status is ReplicaStatus.LOST


@pytest.mark.parametrize(
    ("harm", "event", "words"),
    [
        (lambda file: os.truncate(file, MIB), "replica.corrupted", "cannot be read"),
        (lambda file: file.unlink(), "replica.lost", "is gone"),
        (lambda file: _flip(file, -10), "replica.corrupted", "1 of 3 chunks .* chunk 2"),
    ],
    ids=["truncated", "deleted", "flipped"],
)
@pytest.mark.parametrize("work", [Verify, Load])
async def test_harm_to_a_disk_replica_is_reported(
    node: MoverNode, nats_server: NatsServer, harm, event, words, work
):
    content = Content([3 * MIB])
    async with observing(nats_server.url) as observer:
        with node.application() as application:
            application.put(content)
        await observer.succeeded(await observer.issue("n1", Persist(artifact=content.id)))
        await observer.succeeded(
            await observer.issue("n1", Evict(artifact=content.id, tier=Tier.DRAM))
        )
        harm(node.folder / "data" / "disk" / content.id / "model.safetensors")
        wanted = Load(artifact=content.id)
        if work is Verify:
            wanted = Verify(artifact=content.id, tier=Tier.DISK)
        ended = await observer.ended(await observer.issue("n1", wanted))
        assert ended.fault is not None
        assert ended.fault.kind is FaultKind.CORRUPT
        assert re.search(words, ended.fault.detail)
        assert event in [e.type for e in await observer.events()]
        view = await observer.view()
        found = view.replicas[replica_id(content.id, "n1", Tier.DISK)]
        assert found.status is not ReplicaStatus.READY


def _flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode:
        pytest.skip("needs the right to mount a small disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=False)


async def test_a_full_disk(small_disk: Path, nats_server: NatsServer):
    disk = small_disk
    node = MoverNode("n1", disk / "n1", nats_server.url)
    content = Content([24 * MIB])
    try:
        node.start()
        async with observing(nats_server.url) as observer:
            with node.application() as application:
                application.put(content, key="m")
            ended = await observer.ended(await observer.issue("n1", Persist(artifact=content.id)))
            assert ended.fault is not None
            assert ended.fault.kind is FaultKind.OUT_OF_CAPACITY
            assert "disk is full" in ended.fault.detail
            assert read(node, "m") == content.bytes
            with node.application() as application:
                stats = application.stats()
            assert stats.unsaved_bytes == content.manifest.size_bytes > stats.disk_free_bytes > 0
            kept = list((disk / "n1" / "data" / "disk").glob("*"))
            assert kept == []
            assert node.stop() == 0, (
                node.log_text()
            )  # it says in its log that this one could not be kept
            assert "is not kept" in node.log_text()
            assert any("is not kept" in status for status in node.statuses)
            told = [(e.type, e.event) for e in (await observer.events())[-2:]]
            assert [name for name, _ in told] == ["replica.lost", "node.left"]
            assert "disk is full" in told[0][1].detail
            node.store.close()
            node.start()
            with (
                node.application() as application,
                pytest.raises(Unavailable, match="no node that is up"),
            ):
                application.get("m")
    finally:
        node.close()


async def test_a_disk_without_a_byte_left_is_told_and_passes(
    small_disk: Path, nats_server: NatsServer, tmp_path: Path
):
    node = MoverNode("n1", small_disk / "n1", nats_server.url)
    giver = MoverNode("n2", tmp_path / "n2", nats_server.url)
    here, there = Content([MIB], seed=1), Content([MIB], seed=2)
    filler = small_disk / "filler"
    try:
        node.start()
        giver.start()
        with giver.application() as application:
            application.put(there, key="there")
        with node.application() as application:
            application.put(here, key="here")
            _fill(filler)
            begun = time.monotonic()
            with pytest.raises(OutOfCapacity, match=rf"The disk of node n1 is full.*{small_disk}"):
                _put_while_it_goes(application, filler)
            with pytest.raises(OutOfCapacity, match="The disk of node n1 is full"):
                application.get("there")
            assert time.monotonic() - begun < 60  # not the minutes of an answer that never comes
            assert "The disk of node n1 is full" in application.stats().trouble
            with application.get("here") as reading:
                assert reading.bytes() == here.bytes
            filler.unlink()
            await _happens(lambda: application.stats().trouble == "")
            application.put(Content([MIB], seed=99), key="after")
            with application.get("there") as reading:
                assert reading.bytes() == there.bytes
            await _happens(lambda: application.stats().journal_pending == 0)
    finally:
        node.close()
        giver.close()


def _put_while_it_goes(application: Application, filler: Path) -> None:
    """The first puts still fit into the journal."""
    for number in range(3, 40):
        application.put(Content([MIB], seed=number), key=f"more/{number}")
        _fill(filler)


def _fill(filler: Path) -> None:
    """To the last byte."""
    with filler.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
