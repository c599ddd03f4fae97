"""Whole transfers over real sockets: the pure machine, segments, servers in other processes."""

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading

import pytest

from conformance.contents import MIB, Shelf, make_content, manifest_of, plain_index
from conformance.transport import ARTIFACT
from tensorcast.movers.core.sources import Limits, Source
from tensorcast.movers.core.transfer import (
    Completed,
    Target,
    TransferStatus,
    advance,
    begin,
)
from tensorcast.movers.memory.memfd import create_segment, round_up
from tensorcast.movers.transports.tcp.client import TcpTransport
from tensorcast.movers.transports.tcp.server import TcpServer
from tensorcast.schema.chunks import ChunkSet

SERVER = """
import os, sys
from conformance.contents import Shelf, manifest_of, plain_index
from conformance.transport import ARTIFACT
from tensorcast.movers.transports.tcp.server import TcpServer
with open(sys.argv[2], "rb") as file:
    content = file.read()
shelf = Shelf()
shelf.put(ARTIFACT, manifest_of(plain_index(len(content)), content), content)
server = TcpServer("127.0.0.1:0", shelf, "c1", sys.argv[1])
print(server.address, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def serving(node, path, root):
    """A server of one node in a process of its own: (process, address)."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, node, str(path)],
        env={**os.environ, "PYTHONPATH": str(root / "tests")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process, process.stdout.readline().strip()
        process.kill()


class Node:
    """A node that fills a segment and serves what it has meanwhile."""

    def __init__(self, name, manifest):
        self.name = name
        self.manifest = manifest
        self.segment = create_segment(f"segment-{name}", round_up(manifest.size_bytes))
        self.shelf = Shelf()
        self.shelf.fds[ARTIFACT] = self.segment.fd
        self.shelf.memory[ARTIFACT] = self.segment.memory
        self.shelf.manifests[ARTIFACT] = manifest
        self.shelf.chunks[ARTIFACT] = ChunkSet()
        self.server = TcpServer("127.0.0.1:0", self.shelf, "c1", name)
        self.by_peer = {}

    async def pull(self, sources, addresses, on_completion=lambda done: None):
        """Runs a transfer to its end; returns the last turn."""
        transport = TcpTransport("c1", self.name)
        region = transport.register(self.segment.memory)
        channels = {n: await transport.connect(n, a) for n, a in addresses.items()}
        target = Target(artifact=ARTIFACT, node=self.name, epoch=1)
        missing = ChunkSet.full(self.manifest.chunks_total)
        ended = asyncio.Queue()

        async def listen(channel):
            while completions := await channel.completions():
                for completion in completions:
                    ended.put_nowait(completion)

        async with asyncio.TaskGroup() as tasks:
            for channel in channels.values():
                tasks.create_task(listen(channel))
            turn = begin(target, self.manifest, missing, sources, Limits(probe_wait_s=0.2))
            while turn.status is TransferStatus.RUNNING:
                for pull in turn.pulls:
                    channels[pull.peer].post([pull], region)
                completion = await ended.get()
                if isinstance(completion, Completed):
                    size = completion.pull.source_range.size
                    self.by_peer[completion.pull.peer] = (
                        self.by_peer.get(completion.pull.peer, 0) + size
                    )
                turn = advance(turn.transfer, completion)
                self.shelf.chunks[ARTIFACT] = missing - turn.transfer.missing
                on_completion(completion)
            await transport.aclose()
        region.close()
        return turn

    def close(self):
        self.server.close()
        self.segment.close()


def make(tmp_path, size):
    content = bytes(make_content(plain_index(size), size))
    path = tmp_path / "content"
    path.write_bytes(content)
    return content, manifest_of(plain_index(size), content), path


def ready(node, manifest):
    return Source(node=node, chunks=ChunkSet.full(manifest.chunks_total))


@pytest.mark.slow
async def test_256_mib_arrive_exactly(tmp_path, request):
    size = 256 * MIB + 12345
    content, manifest, path = make(tmp_path, size)
    node = Node("n3", manifest)
    with serving("n1", path, request.config.rootpath) as (_, address):
        turn = await node.pull([ready("n1", manifest)], {"n1": address})
    assert turn.status is TransferStatus.READY
    assert turn.transfer.bytes_moved == size
    assert node.segment.memory[:size] == content
    node.close()


@pytest.mark.slow
async def test_two_sources_share_the_work_and_one_may_be_killed(tmp_path, request):
    size = 128 * MIB
    content, manifest, path = make(tmp_path, size)
    root = request.config.rootpath
    node = Node("n3", manifest)
    with serving("n1", path, root) as (process, first), serving("n2", path, root) as (_, second):
        seen = []

        def kill_after_a_while(completion):
            seen.append(completion)
            if len(seen) == 6:
                os.kill(process.pid, signal.SIGKILL)

        turn = await node.pull(
            [ready("n1", manifest), ready("n2", manifest)],
            {"n1": first, "n2": second},
            kill_after_a_while,
        )
    assert turn.status is TransferStatus.READY
    assert {node for node, _ in turn.transfer.lost} == {"n1"}
    assert set(node.by_peer) == {"n1", "n2"}
    assert node.segment.memory[:size] == content
    node.close()


@pytest.mark.slow
async def test_a_chain_of_filling_replicas_moves_at_once(tmp_path, request):
    """Each node pulls from the one before it, all from the beginning on; no log tells them."""
    size = 64 * MIB
    content, manifest, path = make(tmp_path, size)
    nodes = [Node(f"m{n}", manifest) for n in range(3)]
    with serving("n1", path, request.config.rootpath) as (_, address):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(nodes[0].pull([ready("n1", manifest)], {"n1": address}))
            for before, node in itertools.pairwise(nodes):
                source = Source(node=before.name, chunks=ChunkSet(), is_filling=True)
                addresses = {before.name: before.server.address}
                tasks.create_task(node.pull([source], addresses))
    for node in nodes:
        assert node.segment.memory[:size] == content
        await asyncio.to_thread(node.close)
    assert not [t for t in threading.enumerate() if t.name.startswith("tcp-")]
