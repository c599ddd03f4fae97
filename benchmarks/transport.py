"""How fast a mover pulls over loopback TCP, every chunk checked, against a bare socket loop.

    python benchmarks/transport.py [--mib 1024] [--rounds 5] [--streams 2]

Both move the same bytes from a memfd of another process into a memfd here, in turns, so that a
busy machine slows both. `pull` is the whole transport: protocol, scheduling of runs, completions,
an XXH3-64 digest for each chunk. `bare` is `sendfile` to `recv_into` and nothing else. Prints one
JSON object a line: GB/s (median, smallest, largest) and CPU seconds per GiB of both sides.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import socket
import statistics
import threading
import time

from tensorcast.movers.core.digests import chunk_digest
from tensorcast.movers.core.layout import Layout
from tensorcast.movers.core.sources import Source
from tensorcast.movers.core.transfer import Target, TransferStatus, advance, begin
from tensorcast.movers.memory.memfd import create_segment
from tensorcast.movers.transports.base import Lending
from tensorcast.movers.transports.tcp.client import TcpTransport
from tensorcast.movers.transports.tcp.dialing import ClientLimits
from tensorcast.movers.transports.tcp.server import TcpServer
from tensorcast.schema.chunks import ChunkSet, choose_chunk_bytes, count_chunks
from tensorcast.schema.ids import ArtifactId, NodeId
from tensorcast.schema.tensors import Manifest, TensorSpec

MIB = 1 << 20
ARTIFACT = ArtifactId("b" * 40)
HERE, THERE = NodeId("here"), NodeId("there")


def make_manifest(memory, size):
    chunk = choose_chunk_bytes(size)
    parts = (memory[n * chunk : (n + 1) * chunk] for n in range(count_chunks(size, chunk)))
    return Manifest(
        index=(TensorSpec(name="t", dtype="U8", shape=(size,), offset=0),),
        size_bytes=size,
        chunk_bytes=chunk,
        digests=b"".join(chunk_digest(part) for part in parts),
    )


def serve(pipe, size, streams):
    """The other node: a TcpServer, and a bare loop that sends when it is told to."""
    segment = create_segment("source", size)
    noise = os.urandom(MIB)
    for at in range(0, size, MIB):
        segment.memory[at : at + MIB] = noise[at // MIB % MIB :] + noise[: at // MIB % MIB]
    manifest = make_manifest(segment.memory, size)
    all_chunks = ChunkSet.full(manifest.chunks_total)

    class Shelf:
        @contextlib.contextmanager
        def lend(self, artifact):
            layout = Layout.whole(size)
            chunk = manifest.chunk_bytes
            yield Lending(
                fd=segment.fd, layout=layout, chunk_bytes=chunk, chunks=lambda: all_chunks
            )

    server = TcpServer("127.0.0.1:0", Shelf(), "bench", THERE)
    listening = socket.create_server(("127.0.0.1", 0))
    pipe.send((server.address, listening.getsockname()[1], manifest))
    while (word := pipe.recv()) != "end":
        if word == "bare":
            connected = [listening.accept()[0] for _ in range(streams)]
            in_threads(send_part, connected, segment.fd, size)
        pipe.send(time.process_time())
    server.close()


def in_threads(work, connected, target, size):
    """Runs `work` on each connection with its share of the bytes."""
    count = len(connected)
    cuts = [n * size // count for n in range(count + 1)]
    threads = [
        threading.Thread(target=work, args=(connected[n], target, cuts[n], cuts[n + 1]))
        for n in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in connected:
        each.close()


def send_part(connected, fd, at, end):
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
    while at < end:
        at += os.sendfile(connected.fileno(), fd, at, min(end - at, 4 * MIB))


def receive_part(connected, memory, at, end):
    while at < end:
        at += connected.recv_into(memory[at : min(end, at + MIB // 2)])


async def pull(transport, address, manifest, memory):
    """One whole transfer with the mover's own parts."""
    region = transport.register(memory)
    channel = await transport.connect(THERE, address)
    everything = ChunkSet.full(manifest.chunks_total)
    target = Target(artifact=ARTIFACT, node=HERE, epoch=1)
    turn = begin(target, manifest, everything, [Source(node=THERE, chunks=everything)])
    channel.post(turn.pulls, region)
    while turn.status is TransferStatus.RUNNING:
        for completion in await channel.completions():
            turn = advance(turn.transfer, completion)
            channel.post(turn.pulls, region)
    await channel.aclose()
    region.close()
    assert turn.status is TransferStatus.READY, turn.fault


def measure(pipe, name, size, work):
    """(GB/s, CPU seconds per GiB) of one round."""
    pipe.send("cpu")
    before = pipe.recv() + time.process_time()
    pipe.send(name)
    begun = time.perf_counter()
    work()
    took = time.perf_counter() - begun
    after = pipe.recv() + time.process_time()
    return size / took / 1e9, (after - before) * (1 << 30) / size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=2)
    options = parser.parse_args()
    size = options.mib * MIB
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    other = context.Process(target=serve, args=(theirs, size, options.streams), daemon=True)
    other.start()
    address, bare_port, manifest = pipe.recv()
    segment = create_segment("target", size)
    transport = TcpTransport("bench", HERE, ClientLimits(streams=options.streams))

    def bare():
        connected = [
            socket.create_connection(("127.0.0.1", bare_port)) for _ in range(options.streams)
        ]
        in_threads(receive_part, connected, segment.memory, size)

    works = {
        "pull": lambda: asyncio.run(pull(transport, address, manifest, segment.memory)),
        "bare": bare,
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for number in range(options.rounds + 1):
        for name, work in works.items():
            result = measure(pipe, name, size, work)
            if number:  # the first round pays for fresh pages
                found[name].append(result)
    for name, results in found.items():
        rates, costs = zip(*results, strict=True)
        print(
            json.dumps(
                {
                    "what": name,
                    "mib": options.mib,
                    "streams": options.streams,
                    "gb_per_s": round(statistics.median(rates), 2),
                    "min": round(min(rates), 2),
                    "max": round(max(rates), 2),
                    "cpu_s_per_gib": round(statistics.median(costs), 2),
                }
            )
        )
    pipe.send("end")
    other.join()
    segment.close()


if __name__ == "__main__":
    main()
