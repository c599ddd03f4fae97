"""How fast the log is. Servers of its own, with fsync; ours and the raw loop in turns.

scripts/bench events                         everything: a table, and a line of JSON each
scripts/bench events --only latency moves    some of it
scripts/bench events --out mine.jsonl        keeps the lines (adds to them)
scripts/bench events --report mine.jsonl     the table again, of one file or several
scripts/bench events --report FILE... --docs and into docs/benchmarks.md
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from events import measures, rebuild, table
from events.rig import Rig, running
from harness import machine

DOCS = Path(__file__).resolve().parents[2] / "docs"
WHAT = ("throughput", "latency", "registrations", "moves", "resolves", "rebuild")


class Report:
    """The lines so far; each is told at once, and kept in a file if there is one."""

    def __init__(self, out: Path | None) -> None:
        self.lines: list[measures.Line] = []
        self._out = out

    def __call__(self, line: measures.Line) -> None:
        line = {**line, "date": str(datetime.now(UTC).date()), "load": round(os.getloadavg()[0], 1)}
        self.lines.append(line)
        print(json.dumps(line), file=sys.stderr, flush=True)
        if self._out is not None:
            with self._out.open("a") as out:
                out.write(json.dumps(line) + "\n")


async def both(rig: Rig, arguments: argparse.Namespace, report: Report) -> None:
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


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench events",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--events", type=int, default=20_000, help="of a throughput round")
    parser.add_argument("--seconds", type=float, default=5, help="of a latency round")
    parser.add_argument("--calls", type=int, default=4000, help="registrations and moves, each")
    parser.add_argument("--history", type=int, default=1_000_000, help="events of the rebuild")
    parser.add_argument("--only", nargs="+", default=WHAT, choices=WHAT)
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--report", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--docs", action="store_true", help="record it in docs/benchmarks.md")
    return parser.parse_args()


async def measure(arguments: argparse.Namespace) -> list[measures.Line]:
    """All that was asked for."""
    report = Report(arguments.out)
    async with running() as rig:
        if set(arguments.only) - {"rebuild"}:
            await both(rig, arguments, report)
        if "rebuild" in arguments.only:
            for line in await rebuild.measure(rig, arguments.history):
                report({**line, "turn": 1})
    return report.lines


def record(lines: list[measures.Line], text: str) -> None:
    """Writes the lines and the table where the documentation shows them."""
    kept = "".join(json.dumps(line) + "\n" for line in lines)
    (DOCS / "benchmarks" / "events.jsonl").write_text(kept)
    page = DOCS / "benchmarks.md"
    page.write_text(table.insert(page.read_text(), text))


def main() -> None:
    arguments = parse_arguments()
    if arguments.report:
        texts = [line for name in arguments.report for line in name.read_text().splitlines()]
        lines = [json.loads(text) for text in texts]
    else:
        lines = asyncio.run(measure(arguments))
    text = table.render(lines, about(lines))
    print(text)
    if arguments.docs:
        record(lines, text)


def about(lines: list[measures.Line]) -> str:
    """When and where, in a sentence."""
    facts = "; ".join(f"{name}: {value}" for name, value in machine.describe().items() if value)
    days = ", ".join(sorted({str(line["date"]) for line in lines}))
    loads = [float(str(line["load"])) for line in lines]
    return f"{days}; {facts}. Load average {min(loads):g} to {max(loads):g}, our own included."


if __name__ == "__main__":
    main()
