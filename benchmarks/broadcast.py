"""Many sources and many sinks over a network of limited links, with real movers.

    python benchmarks/broadcast.py [--mib 256] [--rate 1gbit] [--rounds 3] [--only NAME]

Each mover runs in a network namespace with a card of its own (tests/netlab.py; root only). Measured
from the event that asks for the replicas to the last `replica.ready` in the log, so the control
plane is part of every number, and so of every ratio. Prints one JSON object a line:

* `broadcast`: to 1, 4 and 8 receivers in turns; `ratio` is against one transfer of the same round.
  `wire_s` is what the bytes alone need at the link's rate.
* `stripe`: into an unlimited host from 1 and from 3 sources; `ratio` is of their rates.
* `faults`: a relay killed, a source killed, a link cut for 5 s, 1 % loss and 20 ms delay (at a
  tenth of the size and rate): each completes and is verified; `tries` of its operations, and what
  its card `received` against the size.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import netlab
from lab_cluster import Cluster, cluster
from mover_nodes import MIB, Content

GOODPUT = 1448 / 1514
"""Bytes of content for each byte on an Ethernet wire."""


def report(what: str, **more: object) -> None:
    """One line of the result."""
    load = os.getloadavg()[0]
    print(json.dumps({"what": what, **more, "load": round(load, 1)}), flush=True)


def _seconds_on_wire(size_bytes: int, rate: str) -> float:
    bits = float(rate.removesuffix("gbit")) * 1e9
    return size_bytes * 8 / bits / GOODPUT


async def broadcast(mib: int, rate: str, rounds: int, counts: Sequence[int] = (4, 8)) -> None:
    """One transfer against a fan-out, in turns."""
    receivers = [f"r{n}" for n in range(1, max(counts) + 1)]
    async with cluster("s", *receivers, rate=rate) as made:
        content = Content([mib * MIB])
        made.start("s", *receivers, dram_bytes=(mib + 16) * MIB)
        made.put("s", content)
        await made.replicate(content, *receivers)  # memory that was never touched is slow
        await made.forget(content, *receivers)
        times: dict[int, list[float]] = {count: [] for count in (1, *counts)}
        for _ in range(rounds):
            for count, found in times.items():
                found.append(await made.replicate(content, *receivers[:count]))
                assert all(made.read(host, content) for host in receivers[:count])
                await made.forget(content, *receivers[:count])
        for count, found in times.items():
            ratios = [own / one for own, one in zip(found, times[1], strict=True)]
            report(
                "broadcast",
                receivers=count,
                mib=mib,
                seconds=round(statistics.median(found), 3),
                wire_s=round(_seconds_on_wire(mib * MIB, rate), 3),
                ratio=round(statistics.median(ratios), 3),
                all_s=[round(one, 3) for one in found],
            )


async def stripe(mib: int, rate: str, rounds: int) -> None:
    """One source against three, in turns, into a host that is not limited."""
    async with cluster("a", "b", "c", "sink", rate=rate) as made:
        made.lab.limit("sink", None)
        content = Content([mib * MIB])
        made.start("a", "b", "c", "sink", dram_bytes=(mib + 16) * MIB)
        made.put("a", content)
        one: list[float] = []
        three: list[float] = []
        for _ in range(rounds):
            one.append(await made.replicate(content, "sink"))
            await made.forget(content, "sink")
        await made.replicate(content, "b", "c")
        for _ in range(rounds):
            three.append(await made.replicate(content, "sink"))
            assert made.read("sink", content)
            await made.forget(content, "sink")
        for sources, found in ((1, one), (3, three)):
            report(
                "stripe",
                sources=sources,
                mib=mib,
                gb_per_s=round(mib * MIB / statistics.median(found) / 1e9, 3),
                ratio=round(statistics.median(one) / statistics.median(found), 2),
                all_s=[round(took, 3) for took in found],
            )


async def faults(mib: int, rate: str) -> None:
    """Each fault in the middle of a transfer that takes some seconds."""
    await _fault("relay killed", mib, rate, ("s", "r1", "r2", "r3"), _kill_relay)
    await _fault("source killed", mib, rate, ("s", "b", "r1"), _kill_source)
    await _fault("link cut for 5 s", mib, rate, ("s", "r1"), _cut_link)
    await _loss(max(8, mib // 10))


Harm = Callable[[Cluster, Content], Awaitable[tuple[str, ...]]]


async def _fault(what: str, mib: int, rate: str, hosts: tuple[str, ...], harm: Harm) -> None:
    async with cluster(*hosts, rate=rate) as made:
        content = Content([mib * MIB])
        made.start(*hosts, dram_bytes=(mib + 16) * MIB)
        made.put("s", content)
        targets = await harm(made, content)
        await _report_fault(made, what, content, targets)


async def _report_fault(
    made: Cluster, what: str, content: Content, targets: tuple[str, ...]
) -> None:
    """`received`: what the cards of the targets got, against the size (at most); what is over 1 was
    sent twice, or is protocol."""
    took = await made.took(content, *targets)
    assert all(made.read(host, content) for host in targets)
    tries = max([count for host in targets for count, _ in await made.tries(host)])
    received = max(made.lab.received_bytes(host) for host in targets)
    received /= content.manifest.size_bytes
    report("faults", fault=what, seconds=round(took, 3), tries=tries, received=round(received, 2))


async def _kill_relay(made: Cluster, content: Content) -> tuple[str, ...]:
    await made.request(content, "r1", "r2", "r3")
    await made.received("r2", content, 0.4)
    made.movers["r1"].kill()
    return ("r2", "r3")


async def _kill_source(made: Cluster, content: Content) -> tuple[str, ...]:
    await made.replicate(content, "b")
    await made.request(content, "r1")
    await made.received("r1", content, 0.4)
    made.movers["b"].kill()
    return ("r1",)


async def _cut_link(made: Cluster, content: Content) -> tuple[str, ...]:
    await made.request(content, "r1")
    await made.received("r1", content, 0.4)
    made.lab.cut("s")
    await asyncio.sleep(5.0)
    made.lab.mend("s")
    return ("r1",)


async def _loss(mib: int) -> None:
    async with cluster("s", "r1", rate="100mbit", far=("s",)) as made:
        made.lab.wires["s"].delay_ms = 20.0
        made.lab.wires["s"].loss_percent = 1.0
        content = Content([mib * MIB])
        made.start("s", "r1", dram_bytes=(mib + 16) * MIB)
        made.put("s", content)
        await made.request(content, "r1")
        await _report_fault(made, "1 % loss, 20 ms, 100 Mbit/s", content, ("r1",))


WORKS = ("broadcast", "stripe", "faults")


async def run(mib: int, rate: str, rounds: int, only: Sequence[str] = WORKS) -> None:
    """All measurements, or some. Prints them."""
    if "broadcast" in only:
        await broadcast(mib, rate, rounds)
    if "stripe" in only:
        await stripe(mib, rate, rounds)
    if "faults" in only:
        await faults(mib, rate)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rate", default="1gbit", help="of each link, in gbit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=WORKS, action="append")
    chosen = parser.parse_args()
    if (reason := netlab.missing()) is not None:
        print(f"Nothing is measured: {reason}.", file=sys.stderr)
        return 1
    asyncio.run(run(chosen.mib, chosen.rate, chosen.rounds, chosen.only or WORKS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
