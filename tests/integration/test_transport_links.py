"""Pulls over links that lose and delay packets, or are cut for a while."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys

import pytest

from conformance.contents import MIB, make_content, manifest_of, plain_index
from conformance.transport import PEER, collect, make_pull
from links import THERE, Link
from tensorcast.movers.core.transfer import Completed
from tensorcast.movers.transports.tcp.client import TcpTransport

SERVER = """
import sys
from conformance.contents import Shelf, manifest_of, plain_index
from conformance.transport import ARTIFACT, PEER
from tensorcast.movers.transports.tcp.server import TcpServer
with open(sys.argv[1], "rb") as file:
    content = file.read()
shelf = Shelf()
shelf.put(ARTIFACT, manifest_of(plain_index(len(content)), content), content)
server = TcpServer("[::]:7070", shelf, "c1", PEER)
print(server.address, flush=True)
sys.stdin.read()
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"),
        reason="needs root, ip and tc",
    ),
]


@contextlib.contextmanager
def linked(**how):
    with contextlib.ExitStack() as opened:
        try:
            link = opened.enter_context(Link(**how))
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
        yield link


@contextlib.contextmanager
def serving(link, path, root):
    """The address of a server at the other end of the link."""
    with subprocess.Popen(
        link.inside(sys.executable, "-c", SERVER, str(path)),
        env={**os.environ, "PYTHONPATH": str(root / "tests")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline().strip() == "[::]:7070"
        yield f"{THERE}:7070"
        process.kill()


async def pull(address, manifest, memory, meanwhile=None):
    """Pulls everything in runs of eight chunks: (the ends, connections at the end)."""
    transport = TcpTransport("c1", "n2")
    region = transport.register(memoryview(memory))
    channel = await transport.connect(PEER, address)
    total = manifest.chunks_total
    pulls = [make_pull(manifest, n, min(n + 8, total)) for n in range(0, total, 8)]
    async with asyncio.TaskGroup() as tasks:
        channel.post(pulls, region)
        if meanwhile:
            tasks.create_task(meanwhile())
        ends = await collect(channel, len(pulls), timeout_s=60)
    connections = channel.connections
    await transport.aclose()
    region.close()
    return ends, connections


def make(tmp_path, size):
    content = bytes(make_content(plain_index(size), size))
    path = tmp_path / "content"
    path.write_bytes(content)
    return content, manifest_of(plain_index(size), content), path


async def test_losses_and_delay_do_not_stop_a_pull(tmp_path, request):
    content, manifest, path = make(tmp_path, 24 * MIB)
    memory = bytearray(len(content))
    with (
        linked(delay_s=0.01, loss=0.01) as link,
        serving(link, path, request.config.rootpath) as address,
    ):
        ends, connections = await pull(address, manifest, memory)
    assert all(isinstance(end, Completed) for end in ends)
    assert memory == content
    assert connections > 1, "more connections share the losses"


async def test_a_pull_outlives_a_cut_of_the_link(tmp_path, request):
    """For longer than one connection is waited for: no pull breaks, and it goes on at once."""
    content, manifest, path = make(tmp_path, 16 * MIB)
    memory = bytearray(len(content))
    with (
        linked(rate="100mbit") as link,
        serving(link, path, request.config.rootpath) as address,
    ):

        async def cut():
            await asyncio.sleep(0.4)
            link.cut()
            await asyncio.sleep(3)
            link.mend()

        ends, _ = await pull(address, manifest, memory, cut)
    assert all(isinstance(end, Completed) for end in ends)
    assert memory == content
