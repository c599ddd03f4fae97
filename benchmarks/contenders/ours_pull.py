"""Our TCP transport alone, as a mover drives it: a server that lends a memfd, and a channel that
pulls all chunks of an artifact into the target. No control plane, no log, no client."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from importlib.metadata import version

from contenders.ends import Ends, start_other, timed
from tensorcast.movers.core.digests import chunk_digest
from tensorcast.movers.core.layout import Layout
from tensorcast.movers.core.sources import Source
from tensorcast.movers.core.transfer import (
    Target,
    TransferStatus,
    advance,
    begin,
)
from tensorcast.movers.main import SWITCH_S
from tensorcast.movers.transports.base import Lending
from tensorcast.movers.transports.tcp.client import ClientLimits, TcpTransport
from tensorcast.movers.transports.tcp.server import TcpServer
from tensorcast.schema.chunks import ChunkSet, choose_chunk_bytes, count_chunks
from tensorcast.schema.ids import ArtifactId, NodeId
from tensorcast.schema.tensors import Manifest, lay_out

HERE, THERE = NodeId("here"), NodeId("there")


def make_manifest(memory: memoryview, places: list[tuple[int, int]]) -> Manifest:
    """The manifest of the source cut into these tensors, which lie in it without gaps."""
    index, size = lay_out((f"t{n}", "U8", (each,)) for n, (_, each) in enumerate(places))
    if size != len(memory):
        raise ValueError(f"the tensors need {size} bytes, the memory has {len(memory)}")
    chunk = choose_chunk_bytes(size)
    parts = (memory[n * chunk : (n + 1) * chunk] for n in range(count_chunks(size, chunk)))
    return Manifest(
        index=index,
        size_bytes=size,
        chunk_bytes=chunk,
        digests=b"".join(chunk_digest(part) for part in parts),
    )


class Server:
    """The node that has the artifact."""

    def start(self, options):
        sys.setswitchinterval(SWITCH_S)  # as a mover does
        self.ends = Ends(options)
        size = len(self.ends.source)
        chunk = choose_chunk_bytes(size)
        self.lending = Lending(
            fd=self.ends.source_fd,
            layout=Layout.whole(size),
            chunk_bytes=chunk,
            chunks=lambda: ChunkSet.full(count_chunks(size, chunk)),
        )
        self.server = TcpServer("127.0.0.1:0", self, "bench", THERE)
        return {"address": self.server.address}

    @contextlib.contextmanager
    def lend(self, artifact):
        yield self.lending

    def close(self):
        self.server.close()


class Puller:
    """The node that wants it."""

    def start(self, options):
        sys.setswitchinterval(SWITCH_S)  # as a mover does
        self.ends = Ends(options)
        self.server, facts = start_other("contenders.ours_pull:Server", options)
        self.address = facts["address"]
        self.manifests = {
            work: make_manifest(self.ends.source[: self.ends.size(work)], self.ends.places(work))
            for work in self.ends.works
        }
        limits = ClientLimits() if options["verify"] else ClientLimits(verify=False)
        self.runner = asyncio.Runner()
        self.transport = TcpTransport("bench", HERE, limits)
        self.region = self.transport.register(self.ends.target)
        self.channel = self.runner.run(self.transport.connect(THERE, self.address))
        return {"version": version("tensorcast-taas")}

    def run(self, work, turn):
        return timed(lambda: self.runner.run(self.pull(self.manifests[work])))

    async def pull(self, manifest):
        everything = ChunkSet.full(manifest.chunks_total)
        target = Target(artifact=ArtifactId("b" * 40), node=HERE, epoch=1)
        source = Source(node=THERE, chunks=everything)
        turn = begin(target, manifest, everything, [source], at_s=time.monotonic())
        self.channel.post(turn.pulls, self.region)
        while turn.status is TransferStatus.RUNNING:
            completions = await self.channel.completions()
            pulls, now_s = [], time.monotonic()
            for completion in completions:
                turn = advance(turn.transfer, completion, now_s)
                pulls += turn.pulls
            self.channel.post(pulls, self.region)
        if turn.status is not TransferStatus.READY:
            raise RuntimeError(f"the pull ended: {turn.fault}")

    def close(self):
        self.server.close()
