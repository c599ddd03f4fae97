"""`PYTHONPATH=benchmarks python -m events [--rounds N] [--only WHAT...]`: prints one JSON object a
line. Servers of its own, with fsync; ours and the raw loop in turns."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from events import measures
from events.rig import Rig, running

WHAT = ("throughput", "latency", "registrations", "moves", "resolves")


def report(line: measures.Line) -> None:
    """One line of the result."""
    print(json.dumps({**line, "load": round(os.getloadavg()[0], 1)}), flush=True)


async def both(rig: Rig, arguments: argparse.Namespace) -> None:
    """Ours against the raw loop, in turns; the first round warms up."""
    for turn in range(arguments.rounds + 1):
        order = (measures.OURS, measures.RAW) if turn % 2 else (measures.RAW, measures.OURS)
        for name in order:
            lines = []
            if "throughput" in arguments.only:
                lines.append(await measures.throughput(rig, name, turn, arguments.events))
            if "latency" in arguments.only:
                lines.append(await measures.latency(rig, name, turn, 1000, arguments.seconds))
            for line in lines if turn else ():
                report({**line, "turn": turn})
        if turn and "registrations" in arguments.only:
            report({**await measures.registrations(rig, turn, arguments.calls), "turn": turn})
        if turn and "moves" in arguments.only:
            report({**await measures.moves(rig, turn, arguments.calls), "turn": turn})
        if turn and "resolves" in arguments.only:
            report({**await measures.resolves(rig, turn, 10_000), "turn": turn})


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--calls", type=int, default=4000)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--only", nargs="+", default=WHAT)
    arguments = parser.parse_args()
    async with running() as rig:
        await both(rig, arguments)


if __name__ == "__main__":
    asyncio.run(main())
