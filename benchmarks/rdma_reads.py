"""What a pull over RDMA reaches of bare READs of the same size, in the same process and run.

    python scripts/rdma_guest.py -- .venv/bin/python -P benchmarks/rdma_reads.py [--rails 1 4]
                                    [--pull-mib 16]

Both have the same number of READs of 1 MiB on their way, between the same two devices, into memory
that has been touched and registered beforehand, as segments of movers are. The pull asks, gets
a key, READs, checks each chunk against its digest and tells of it; the bare loop only READs. In
turns; medians. A pull is of 16 MiB, what a mover asks for of a source of such a pace (what it sends
in 30 ms); all are posted at once. Pulls go over one queue pair, and over several. All memory is
made once, for pages are dear in the guest. Prints lines for people and one of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
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
ROUNDS = 3
"""Of these the best one counts."""


def read_bare(pair, size: int) -> float:
    """Seconds of bare READs."""
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


class Puller:
    """A channel of so many rails, over which an artifact is pulled into the same memory."""

    def __init__(self, channel, region, manifest, chunks: int) -> None:
        self._channel = channel
        self._chunks = chunks
        self._region = region
        self._manifest = manifest

    async def pull(self) -> float:
        """Seconds of a pull."""
        total = self._manifest.chunks_total
        step = self._chunks
        began = time.perf_counter()
        pulls = [
            make_pull(self._manifest, first, min(first + step, total), number=first)
            for first in range(0, total, step)
        ]
        self._channel.post(pulls, self._region)
        ends = await collect(self._channel, len(pulls), timeout_s=120)
        assert all(isinstance(end, Completed) for end in ends)
        return time.perf_counter() - began


@contextlib.asynccontextmanager
async def pulling(address: str, target: memoryview, manifest, rails: int, chunks: int):
    with asking(queue_pairs=rails, reads_max=READS) as transport:
        transport.regions.mapped(target)
        region = transport.register(target)
        channel = await transport.connect(PEER, address)
        assert channel.rails == rails
        yield Puller(channel, region, manifest, chunks)
        await transport.aclose()
        region.close()


async def measure(
    size: int, rounds: int, rails: list[int], pull_mib: int
) -> dict[str, list[float]]:
    """Seconds of each: "bare", and by the number of rails."""
    shelf, content = Shelf(), make_content(plain_index(size), size)
    manifest = manifest_of(plain_index(size), content)
    shelf.put(ARTIFACT, manifest, content)
    target = memoryview(mmap.mmap(-1, size))
    target[:] = bytes(size)
    found: dict[str, list[float]] = {"bare": [], **{str(count): [] for count in rails}}
    async with contextlib.AsyncExitStack() as opened:
        pair = opened.enter_context(connected(size))
        server, lender = opened.enter_context(serving(shelf))
        lender.regions.mapped(shelf.memory[ARTIFACT])
        ways = {
            count: await opened.enter_async_context(
                pulling(server.address, target, manifest, count, pull_mib)
            )
            for count in rails
        }
        for turn in range(rounds + 1):
            bare = min(read_bare(pair, size) for _ in range(ROUNDS))
            took = {
                count: min([await way.pull() for _ in range(ROUNDS)]) for count, way in ways.items()
            }
            if turn:  # the first one touches everything
                found["bare"].append(bare)
                for count, seconds in took.items():
                    found[str(count)].append(seconds)
    assert target == content
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rails", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--pull-mib", type=int, default=16)
    arguments = parser.parse_args()
    found = asyncio.run(
        measure(arguments.mib * MIB, arguments.rounds, arguments.rails, arguments.pull_mib)
    )
    rates = {name: [arguments.mib / one for one in seconds] for name, seconds in found.items()}
    bare = statistics.median(rates.pop("bare"))
    ratios = {name: statistics.median(rate) / bare for name, rate in rates.items()}
    for name, rate in rates.items():
        print(
            f"{arguments.mib} MiB over {name} rails: bare READs {bare:.0f} MiB/s, "
            f"a pull {statistics.median(rate):.0f} MiB/s: {ratios[name]:.2f}"
        )
    print(json.dumps({"mib": arguments.mib, "bare": bare, "pulls": rates, "ratios": ratios}))


if __name__ == "__main__":
    main()
