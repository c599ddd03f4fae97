"""One mover, its socket and its applications: puts, reads, and everything that goes wrong there."""

from __future__ import annotations

import asyncio
import getpass
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from mover_nodes import MIB, Application, Content, MoverNode, observing
from servers import NatsServer
from tensorcast.schema.errors import (
    Conflict,
    Corrupt,
    InvalidArgument,
    NotFound,
    OutOfCapacity,
    TensorCastError,
    Timeout,
)
from tensorcast.schema.ids import ArtifactId, Tier, replica_id
from tensorcast.schema.socket import AbortPut, Done, Get, Hello, encode_frame
from tensorcast.schema.work import Evict

READER = """
import mmap, socket, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import xxhash
from mover_nodes import Application
with Application(Path({path!r})) as application, application.get({key!r}) as reading:
    reading.mapping[0:4] = b"mine"  # private: nobody else sees it
    private = [line for line in open("/proc/self/smaps_rollup") if line.startswith("Private_Dirty")]
    print(xxhash.xxh3_64_hexdigest(reading.bytes()[4:]), private[0].split()[1])
"""


@pytest.fixture
def node(tmp_path: Path, nats_server: NatsServer) -> Iterator[MoverNode]:
    node = MoverNode("n1", tmp_path / "n1", nats_server.url)
    node.start()
    yield node
    node.close()


async def test_a_put_is_one_append_with_the_actor_of_the_application(
    node: MoverNode, nats_server: NatsServer
):
    content = Content([3 * MIB, 5, 0, 1000])
    with node.application("user:ada@desk") as application:
        sealed = application.put(content, key="m@1", labels={"step": "1"})
    assert not sealed.existed
    async with observing(nats_server.url) as observer:
        events = await observer.events()
    assert [event.type for event in events] == [
        "node.joined",
        "artifact.sealed",
        "replica.ready",
        "key.moved",
    ]
    assert {event.actor for event in events[1:]} == {f"user:{getpass.getuser()}@desk"}
    assert events[0].actor == "mover:n1"
    assert sealed.seq == events[-1].seq


def test_another_process_reads_it_without_copies(node: MoverNode):
    content = Content([16 * MIB])
    with node.application() as application:
        application.put(content, key="m@1")
        found = subprocess.run(
            [sys.executable, "-c", _reader(node, "m@1")],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        with application.get(content.id[:8]) as reading:
            assert reading.bytes() == content.bytes  # what the other one wrote stayed there
            assert reading.granted.manifest == content.manifest
    import xxhash

    assert found[0] == xxhash.xxh3_64_hexdigest(content.bytes[4:])


def _reader(node: MoverNode, key: str) -> str:
    tests = str(Path(__file__).parents[1])
    return READER.format(tests=tests, path=str(node.socket), key=key)


def test_a_reading_outlives_the_mover(node: MoverNode):
    content = Content([2 * MIB])
    with node.application() as application:
        application.put(content, key="m@1")
        reading = application.get("m@1")
    node.kill()
    assert reading.bytes() == content.bytes
    reading.close()


def test_the_same_content_again_is_no_second_replica(node: MoverNode):
    content = Content([2 * MIB])
    with node.application() as application:
        first = application.put(content, key="m@1")
        again = application.put(content, key="m@1")
        other_key = application.put(content, key="m@2")
        assert (again.existed, other_key.existed) == (True, True)
        assert again.artifact == first.artifact
        stats = application.stats()
    assert (stats.replicas, stats.segments - stats.segments_free) == (1, 1)


async def test_a_second_writer_of_a_key_loses_and_leaves_nothing(
    node: MoverNode, nats_server: NatsServer
):
    first, second = Content([MIB], seed=1), Content([MIB], seed=2)
    with node.application() as application:
        application.put(first, key="m")
        with pytest.raises(Conflict):
            application.put(second, key="m")
        with pytest.raises(NotFound):
            application.get(second.id)
        stats = application.stats()
        assert (stats.replicas, stats.used_bytes) == (1, 2 * MIB)
        application.put(second, key="m", expect=first.id)
        with application.get("m") as reading:
            assert reading.bytes() == second.bytes
        with pytest.raises(Conflict):
            application.put(Content([MIB], seed=3), key="m", expect=first.id)


def test_a_wrong_client_cannot_register_garbage(node: MoverNode):
    content = Content([3 * MIB])
    wrong_bytes = bytes([content.bytes[0] ^ 1]) + content.bytes[1:]
    with node.application() as application:
        before = application.stats().used_bytes
        opened, fd = application.open_put(len(wrong_bytes))
        application.write(fd, wrong_bytes)
        with pytest.raises(Corrupt, match="do not match"):
            application.seal(opened.session, content)
        with pytest.raises(InvalidArgument, match="There is no put"):
            application.seal(opened.session, content)
        for change in (
            {"artifact": ArtifactId("../../etc/passwd")},
            {"manifest": msgspec.structs.replace(content.manifest, chunk_bytes=1)},
            {"kind": "nonsense"},
            {"key": " "},
        ):
            opened, fd = application.open_put(len(content.bytes))
            application.write(fd, content.bytes)
            with pytest.raises((InvalidArgument, Corrupt)):
                application.seal(opened.session, content, **change)
        opened, fd = application.open_put(1)
        os.close(fd)
        with pytest.raises(TensorCastError):
            application.seal(opened.session, content)
        stats = application.stats()
    assert (stats.replicas, stats.used_bytes, stats.puts_open) == (0, before, 0)


def test_a_segment_that_is_still_mapped_cannot_be_sealed(node: MoverNode):
    content = Content([MIB])
    with node.application() as application:
        opened, fd = application.open_put(MIB)
        os.pwrite(fd, content.bytes, 0)
        with pytest.raises(InvalidArgument, match="still mapped"):
            application.seal(opened.session, content)
        os.close(fd)
        assert application.stats().used_bytes == 0


def test_puts_end_with_their_connection(node: MoverNode):
    with node.application() as watcher:
        with node.application() as application:
            _, first = application.open_put(MIB)
            opened, second = application.open_put(MIB)
            assert watcher.stats().puts_open == 2
            with pytest.raises(InvalidArgument):
                watcher.ask(AbortPut(session=opened.session))
            assert application.ask(AbortPut(session=opened.session))[0] == Done()
        node.wait_until(lambda: watcher.stats().puts_open == 0)
        os.close(first)
        os.close(second)
        stats = watcher.stats()
        assert (stats.used_bytes, stats.replicas) == (0, 0)


def test_an_empty_artifact(node: MoverNode):
    content = Content([0])
    with node.application() as application:
        application.put(content, key="empty")
        with application.get("empty") as reading:
            assert reading.bytes() == b""


def test_what_is_not_there(node: MoverNode):
    content = Content([MIB])
    with node.application() as application:
        for what in ("nothing", content.id, content.id[:8], "a"):
            with pytest.raises(NotFound):
                application.get(what)
        with pytest.raises(Timeout):
            application.get("m", after=10_000, timeout_s=0.2)


def test_a_bad_client_harms_nobody(node: MoverNode):
    content = Content([MIB])
    with node.application() as good:
        good.put(content, key="m")
        bad = Application(node.socket)
        bad.socket.sendall(b"\xff\xff\xff\xff")
        rude = Application(node.socket)
        rude.socket.sendall(encode_frame(Get(what="m"))[:-3])
        rude.close()
        nonsense = Application(node.socket)
        nonsense.socket.sendall(b"\0\0\0\x04nope")
        with pytest.raises(Corrupt):
            nonsense.receive()
        for sick in (bad, nonsense):
            with pytest.raises((ConnectionError, TensorCastError)):
                sick.receive()
            sick.close()
        with pytest.raises(InvalidArgument):
            Application(node.socket, actor="")
        for _ in range(50):
            Application(node.socket).close()
        with good.get("m") as reading:
            assert reading.bytes() == content.bytes
        good.ask(Hello(actor="user:ada@test", pid=1))
    assert node.is_running()


def test_more_than_the_memory_holds(node: MoverNode):
    with node.application() as application:
        with pytest.raises(OutOfCapacity, match="never fit"):
            application.open_put(257 * MIB)
        with pytest.raises(InvalidArgument):
            application.open_put(-1)
        with pytest.raises(InvalidArgument):
            application.open_put(1 << 60)
        assert application.stats().used_bytes == 0


@pytest.mark.slow
async def test_a_full_pool_reports_pressure_and_waits(node: MoverNode, nats_server: NatsServer):
    contents = [Content([60 * MIB], seed=n) for n in range(4)]
    async with observing(nats_server.url) as observer:
        with node.application() as application:
            for n, content in enumerate(contents):
                application.put(content, key=f"m{n}")
            reading = application.get("m0")
            began = time.monotonic()
            with pytest.raises(OutOfCapacity):  # in a thread: the observer must answer the server
                await asyncio.to_thread(application.open_put, 60 * MIB)
            assert 5 < time.monotonic() - began < 20
            pressed = [e for e in await observer.events() if e.type == "node.pressured"]
            assert pressed
            event = pressed[0].event
            # The one that is being read is no candidate; the others come coldest first.
            assert event.candidates == tuple(
                replica_id(contents[n].id, "n1", Tier.DRAM) for n in (1, 2, 3)
            )
            assert event.needed_bytes > 0
            await observer.issue("n1", Evict(artifact=contents[1].id, tier=Tier.DRAM))
            _, fd = application.open_put(60 * MIB)
            os.close(fd)
            reading.close()


async def test_eviction_never_takes_memory_from_a_reader(node: MoverNode, nats_server: NatsServer):
    content = Content([8 * MIB])
    async with observing(nats_server.url) as observer:
        with node.application() as application:
            application.put(content, key="m")
            reading = application.get("m")
            operation = await observer.issue("n1", Evict(artifact=content.id, tier=Tier.DRAM))
            await observer.succeeded(operation)
            stats = application.stats()
            assert (stats.replicas, stats.readers, stats.used_bytes) == (0, 1, 8 * MIB)
            other = Content([8 * MIB], seed=5)
            application.put(other, key="other")  # must not land in the reader's memory
            assert reading.bytes() == content.bytes
            reading.close()
            node.wait_until(lambda: application.stats().readers == 0)
            stats = application.stats()
            assert stats.used_bytes == 8 * MIB  # only the other one
        types = [event.type for event in await observer.events()]
        assert types.index("replica.evicting") < types.index("replica.gone")


async def test_nothing_leaks(node: MoverNode, nats_server: NatsServer):
    async with observing(nats_server.url) as observer:
        with node.application() as application:
            await _cycle(application, observer, 0)
            node.wait_until(lambda: application.stats().readers == 0)
            before, descriptors = application.stats(), node.descriptors()
            for n in range(1, 6):
                await _cycle(application, observer, n)
            node.wait_until(lambda: application.stats().readers == 0)
            after = application.stats()
        assert (after.used_bytes, after.replicas, after.puts_open) == (0, 0, 0)
        assert after.segments == before.segments
        assert node.descriptors() <= descriptors
    node.take_in()
    assert len(node.store) == after.segments


async def _cycle(application: Application, observer, n: int) -> None:
    """Put, read, abort and evict."""
    content = Content([2 * MIB], seed=n)
    application.put(content, key=f"m{n}")
    opened, fd = application.open_put(2 * MIB)
    os.close(fd)
    application.ask(AbortPut(session=opened.session))
    readings = [application.get(f"m{n}") for _ in range(5)]
    assert all(reading.bytes() == content.bytes for reading in readings)
    for reading in readings:
        reading.close()
    operation = await observer.issue("n1", Evict(artifact=content.id, tier=Tier.DRAM))
    await observer.succeeded(operation)
