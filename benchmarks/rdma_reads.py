"""What a pull over RDMA reaches of bare READs of the same size, in the same process and run.

    python scripts/rdma_guest.py -- .venv/bin/python -P benchmarks/rdma_reads.py [--mib 64]

Both have the same number of READs of 1 MiB on their way, between the same two devices, into memory
that has been touched and registered beforehand, as segments of movers are. The pull asks, gets
a key, READs, checks each chunk against its digest and tells of it; the bare loop only READs. In
turns; medians. Prints one line for people and one of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mmap
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from conformance.contents import MIB, Shelf, make_content, manifest_of, plain_index
from conformance.transport import ARTIFACT, PEER, collect, make_pull
from rdma_ends import asking, connected, serving
from tensorcast.movers.core.transfer import Completed

READS = 16
ROUNDS = 4
"""Of these the first one is not counted; the best of the others is."""


def read_bare(size: int) -> float:
    """Seconds of bare READs."""
    with connected(size) as pair:
        return min([read_round(pair, size) for _ in range(ROUNDS)][1:])


def read_round(pair, size: int) -> float:
    key, lkey = pair.source.region.rkey, pair.target.region.lkey
    began = time.perf_counter()
    todo, done, flying = 0, 0, 0
    while done < size:
        while todo < size and flying < READS:
            target = pair.target.address + todo, lkey
            pair.ours.post_read(todo, target, MIB, (pair.source.address + todo, key))
            todo, flying = todo + MIB, flying + 1
        for each in pair.ours.poll():
            assert each.status == 0
            done, flying = done + MIB, flying - 1
        if done < size:
            pair.ours.wait((), 1.0)
    return time.perf_counter() - began


async def pull(size: int, rails: int) -> float:
    """Seconds of a pull over a channel that is open."""
    shelf, content = Shelf(), make_content(plain_index(size), size)
    manifest = manifest_of(plain_index(size), content)
    shelf.put(ARTIFACT, manifest, content)
    target = memoryview(mmap.mmap(-1, size))
    target[:] = bytes(size)
    with (
        serving(shelf) as (server, lender),
        asking(queue_pairs=rails, reads_max=READS) as transport,
    ):
        lender.regions.mapped(shelf.memory[ARTIFACT])
        transport.regions.mapped(target)
        region = transport.register(target)
        channel = await transport.connect(PEER, server.address)
        step = manifest.chunks_total // 8
        took = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            starts = range(0, manifest.chunks_total, step)
            channel.post([make_pull(manifest, n, n + step, number=n) for n in starts], region)
            ends = await collect(channel, len(starts), timeout_s=120)
            took.append(time.perf_counter() - began)
            assert all(isinstance(end, Completed) for end in ends)
        await transport.aclose()
        region.close()
    assert target == content
    return min(took[1:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rails", type=int, default=1)
    arguments = parser.parse_args()
    size = arguments.mib * MIB
    bare, ours = [], []
    for _ in range(arguments.rounds):
        bare.append(arguments.mib / read_bare(size))
        ours.append(arguments.mib / asyncio.run(pull(size, arguments.rails)))
    ratio = statistics.median(ours) / statistics.median(bare)
    print(
        f"{arguments.mib} MiB: bare READs {statistics.median(bare):.0f} MiB/s, "
        f"a pull {statistics.median(ours):.0f} MiB/s: {ratio:.2f}"
    )
    print(json.dumps({"mib": arguments.mib, "bare": bare, "pull": ours, "ratio": ratio}))


if __name__ == "__main__":
    main()
