"""Whole movers over RDMA: what moved, what took its place, and what the record of it says."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mover_nodes import MIB, Content, MoverNode, observing
from rdma_ends import add_device, cut_link, resources, run
from servers import NatsServer
from tensorcast.schema.ids import NodeId, Tier
from tensorcast.schema.work import Evict, Materialize

pytestmark = pytest.mark.rdma


@pytest.fixture
def nodes(tmp_path: Path, nats_server: NatsServer) -> Iterator[list[MoverNode]]:
    nodes = [
        MoverNode(f"n{n + 1}", tmp_path / f"n{n + 1}", nats_server.url, TENSORCAST_RDMA=device)
        for n, device in enumerate(("rxe0", "rxe1"))
    ]
    for node in nodes:
        node.start()
    yield nodes
    for node in nodes:
        node.close()


def put(node: MoverNode, content: Content, key: str = "m") -> None:
    with node.application() as application:
        application.put(content, key=key)


def read(node: MoverNode, what: str = "m") -> bytes:
    with node.application("user:bob@test") as application, application.get(what) as reading:
        return reading.bytes()


def received_bytes() -> int:
    return int(Path("/sys/class/net/v1/statistics/rx_bytes").read_text())


async def test_bytes_move_over_rdma_and_an_old_life_lends_nothing(
    nodes: list[MoverNode], nats_server: NatsServer
):
    idle = resources()
    content = Content([20 * MIB, 7, 3 * MIB])
    size = content.manifest.size_bytes
    async with observing(nats_server.url) as observer:
        await asyncio.to_thread(put, nodes[0], content)
        view = await observer.view()
        assert view.nodes[NodeId("n1")].transports == ("rdma", "tcp")
        done = await observer.succeeded(
            await observer.issue("n2", Materialize(artifact=content.id))
        )
        assert done.transports == {"rdma": size}
        assert done.detours == ()
        assert await asyncio.to_thread(read, nodes[1]) == content.bytes
        await observer.succeeded(
            await observer.issue("n2", Evict(artifact=content.id, tier=Tier.DRAM))
        )
        assert resources()["qp"] == idle["qp"], "nothing is left of a transfer but registrations"
        nodes[0].kill()
        nodes[0].start()
        again = Materialize(artifact=content.id)
        done = await observer.succeeded(await observer.issue("n2", again, "again"))
        assert done.transports == {"rdma": size}
        assert await asyncio.to_thread(read, nodes[1]) == content.bytes
    for node in nodes:
        assert node.stop() == 0
    left = resources()
    assert (left["qp"], left["mr"], left["pd"]) == (2, 0, 2), "what the kernel itself has"


async def test_a_link_that_goes_down_in_the_middle_leaves_the_rest_to_tcp(
    nodes: list[MoverNode], nats_server: NatsServer
):
    content = Content([48 * MIB])
    size = content.manifest.size_bytes
    async with observing(nats_server.url) as observer:
        await asyncio.to_thread(put, nodes[0], content)
        before = received_bytes()
        operation = await observer.issue("n2", Materialize(artifact=content.id))
        await asyncio.to_thread(wait_until, lambda: received_bytes() - before > 8 * MIB)
        with cut_link():
            done = await observer.succeeded(operation)
        assert set(done.transports) == {"rdma", "tcp"}
        assert sum(done.transports.values()) == done.bytes_moved == size
        (detour,) = done.detours
        assert (detour.peer, detour.before, detour.after) == ("n1", "rdma", "tcp")
        assert "over RDMA" in detour.why
        assert await asyncio.to_thread(read, nodes[1]) == content.bytes


async def test_queue_pairs_that_fail_cost_a_chunk_each_and_leave_the_rest_to_tcp(
    nodes: list[MoverNode], nats_server: NatsServer, tmp_path: Path
):
    """The first one in the middle of 64 MiB is replaced by another, the second is the last."""
    reads = tmp_path / "reads"
    nodes[1].stop()
    folder = Path(__file__).parent / "saboteur"
    nodes[1].start(
        PYTHONPATH=str(folder),
        TENSORCAST_TEST_READS=str(reads),
        TENSORCAST_RDMA_MTU="1024",  # slower, so that there is a middle
    )
    content = Content([64 * MIB])
    size, chunk = content.manifest.size_bytes, content.manifest.chunk_bytes
    async with observing(nats_server.url) as observer:
        await asyncio.to_thread(put, nodes[0], content)
        before = received_bytes()
        operation = await observer.issue("n2", Materialize(artifact=content.id))
        for at in (12 * MIB, 28 * MIB):
            await asyncio.to_thread(wait_until, lambda at=at: received_bytes() - before > at)
            assert nodes[1].pid is not None
            os.kill(nodes[1].pid, signal.SIGUSR2)
        done = await observer.succeeded(operation)
        assert nodes[1].is_running(), nodes[1].log_text()
        assert set(done.transports) == {"rdma", "tcp"}
        assert sum(done.transports.values()) == done.bytes_moved == size
        assert min(done.transports.values()) > 4 * MIB
        (detour,) = done.detours
        assert (detour.peer, detour.before, detour.after) == ("n1", "rdma", "tcp")
        assert "WR_FLUSH_ERR" in detour.why
        assert await asyncio.to_thread(read, nodes[1]) == content.bytes
    read_by_rail = [int(line) for line in reads.read_text().split()]
    assert len(read_by_rail) == 2, "one was replaced, and the second was the last"
    repeated = sum(read_by_rail) - done.transports["rdma"]
    assert 0 <= repeated <= 2 * chunk


async def test_an_adapter_that_comes_up_later_is_used_without_a_restart(
    tmp_path: Path, nats_server: NatsServer
):
    """The node has none at first: it comes, and the others hear of it."""
    run("rdma link del rxe1")
    nodes = [
        MoverNode(name, tmp_path / name, nats_server.url, TENSORCAST_RDMA=device)
        for name, device in (("n1", "rxe0"), ("n2", "rxe1"))
    ]
    content, more = Content([4 * MIB]), Content([5 * MIB], seed=1)
    try:
        for node in nodes:
            node.start()
        async with observing(nats_server.url) as observer:
            for each in (content, more):
                await asyncio.to_thread(put, nodes[0], each, each.id[:8])
            assert (await observer.view()).nodes[NodeId("n2")].transports == ("tcp",)
            done = await observer.succeeded(
                await observer.issue("n2", Materialize(artifact=content.id))
            )
            assert set(done.transports) == {"tcp"}
            add_device("rxe1", "v1")
            await observer.until(
                lambda view: view.nodes[NodeId("n2")].transports == ("rdma", "tcp")
            )
            done = await observer.succeeded(
                await observer.issue("n2", Materialize(artifact=more.id))
            )
            assert set(done.transports) == {"rdma"}
            assert await asyncio.to_thread(read, nodes[1], more.id) == more.bytes
    finally:
        for node in nodes:
            node.close()
        if not Path("/sys/class/infiniband/rxe1").exists():
            add_device("rxe1", "v1")


def wait_until(predicate) -> None:
    deadline = time.monotonic() + 60
    while not predicate():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def tcctl(*arguments: str) -> str:
    command = [str(Path(sys.executable).parent / "tcctl"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_a_whole_cluster_replicates_over_rdma(tmp_path: Path, monkeypatch):
    import numpy
    from safetensors.numpy import save_file

    monkeypatch.setenv("HOME", str(tmp_path))
    home = ("--data-dir", str(tmp_path / "home"))
    rng = numpy.random.default_rng(1)
    save_file({"w": rng.random((4, MIB // 4), numpy.float32)}, tmp_path / "m.safetensors")
    tcctl("up", "--nodes", "3", "--dram", "128MiB", *home)
    try:
        tcctl("put", str(tmp_path / "m.safetensors"), "--key", "m")
        tcctl("replicate", "m", "--to", "all", "--wait")
        operations = json.loads(tcctl("-o", "json", "op", "ls"))
        moved = [one["transports"] for one in operations if one["kind"] == "materialize"]
        assert moved
        assert all(set(one) == {"rdma"} for one in moved)
    finally:
        tcctl("down", *home)
