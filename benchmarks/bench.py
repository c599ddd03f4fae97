"""The benchmarks of TensorCast: our mover and every peer that runs on this machine, in turns.

    scripts/bench                          all suites, 5 rounds; prints a table, writes JSON
    scripts/bench p2p kv --rounds 9        some of them
    scripts/bench --quick --no-peers       a small run that proves that everything works
    scripts/bench --install [PEER...]      makes the environments of the peers (or of some)
    scripts/bench --report FILE...         the table and the picture again, from JSON files
    scripts/bench --report FILE... --docs  and into docs/benchmarks.md

Each suite is written as soon as it ends, so a run that was stopped is continued by naming the
suites that are missing, with the same --out.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import time
from pathlib import Path

from harness import machine, report, results
from harness.catalog import FULL, QUICK
from harness.install import Environments, known_peers
from harness.picture import draw
from harness.rounds import run_suite
from suites.goals import GOALS

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SUITES = ("p2p", "kv", "share", "large", "load", "broadcast")
QUICK_SUITES = SUITES[:-1]
SEED = 20261130
STARTED = time.monotonic()


def main() -> int:
    """The exit code is 0 also when goals are missed: the table tells."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # contenders end in good order
    arguments = parse_arguments()
    cache = Path(os.environ.get("TENSORCAST_BENCH_CACHE") or ROOT / ".cache" / "bench")
    environments = Environments(cache)
    if arguments.install is not None:
        return install(environments, arguments.install or known_peers())
    if arguments.report:
        show(results.merge(*(results.load(Path(name)) for name in arguments.report)), arguments)
        return 0
    return measure(arguments, environments)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}")
    parser.add_argument("--rounds", type=int, default=5, help="how many rounds are kept")
    parser.add_argument("--seed", type=int, default=SEED, help="of the order and of the bytes")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round")
    parser.add_argument("--no-peers", action="store_true", help="only ours and the raw loops")
    parser.add_argument(
        "--only",
        action="append",
        metavar="TEXT",
        help="contenders with TEXT in their name; =TEXT: named so",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the JSON goes")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="where an SVG goes")
    parser.add_argument("--table", type=Path, metavar="FILE", help="where the Markdown goes")
    parser.add_argument("--docs", action="store_true", help="record it in docs/benchmarks.md")
    parser.add_argument("--install", nargs="*", metavar="PEER", help="install peers and stop")
    parser.add_argument("--report", nargs="+", metavar="FILE", help="report on JSON files and stop")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.suites if name not in SUITES]
    unknown += [name for name in arguments.install or () if name not in known_peers()]
    if unknown:
        parser.error(f"there is no {unknown[0]!r} here")
    return arguments


def install(environments: Environments, names: list[str]) -> int:
    """Makes environments; 1 when one of them cannot be made."""
    failed = environments.install(names, say)
    return 1 if failed else 0


def measure(arguments: argparse.Namespace, environments: Environments) -> int:
    """Runs the suites one after another and reports on them."""
    out = arguments.out or environments.cache / "results" / "latest.json"
    found = results.load(out) if out.exists() and arguments.suites else results.Results()
    found.machine = machine.describe()
    found.is_quick = arguments.quick
    sizes = QUICK if arguments.quick else FULL
    rounds = 1 if arguments.quick else arguments.rounds
    for name in arguments.suites or (QUICK_SUITES if arguments.quick else SUITES):
        module = importlib.import_module(f"suites.{name}")
        if hasattr(module, "run"):
            found.suites[name] = module.run(sizes, rounds=rounds, seed=arguments.seed, say=say)
        else:
            chosen = report.choose(
                module.make(sizes), arguments.only, is_without_peers=arguments.no_peers
            )
            logs = environments.cache / "logs" / name
            found.suites[name] = run_suite(
                chosen, environments, rounds=rounds, seed=arguments.seed, logs=logs, say=say
            )
        results.save(found, out)
    show(found, arguments)
    say(f"written to {out}")
    return 0


def show(found: results.Results, arguments: argparse.Namespace) -> None:
    """Prints the table; writes it and the picture where that was asked for."""
    text = report.render(found, GOALS)
    print(text)
    if arguments.table:
        arguments.table.write_text(text)
    if arguments.picture:
        arguments.picture.write_text(draw(found, GOALS))
    if arguments.docs:
        record(found, text)


def record(found: results.Results, text: str) -> None:
    """Writes the results where the documentation shows them."""
    folder = DOCS / "benchmarks"
    results.save(found, folder / "results.json")
    (folder / "results.svg").write_text(draw(found, GOALS))
    page = DOCS / "benchmarks.md"
    page.write_text(report.insert(page.read_text(), text))


def say(text: str) -> None:
    """Progress, on standard error, with the seconds since the start."""
    print(f"bench: {time.monotonic() - STARTED:4.0f} s  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
