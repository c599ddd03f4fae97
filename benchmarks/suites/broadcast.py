"""Many sinks, many sources, and what breaks: hosts as network namespaces with links of 1 Gbit/s.

`broadcast.py` beside this folder does the measuring (root only); here its lines become samples.
Seconds are those from the event that asks for the replicas to the last one that is ready, so the
control plane is in them. The ratio is to one transfer, or to one source, of the same round.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from harness.catalog import Sizes
from harness.results import Entrant, NotRun, Sample, SuiteResult

PROGRAM = Path(__file__).resolve().parent.parent / "broadcast.py"
NAME = "tensorcast"
MIB = 1 << 20
ROUNDS_MAX = 3
RUN_S_MAX = 600


def run(sizes: Sizes, *, rounds: int, seed: int, say: Callable[[str], None]) -> SuiteResult:
    """Runs it; on a machine that cannot, says why."""
    result = SuiteResult(
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        seed=seed,
        rounds=min(rounds, ROUNDS_MAX),
        works={},
        entrants=[Entrant(name=NAME, kind="ours", over="tcp", version=version("tensorcast-taas"))],
    )
    say("broadcast: network namespaces, 1 Gbit/s each")
    mib = 16 if sizes.is_quick else 256
    command = [sys.executable, str(PROGRAM), "--mib", str(mib), "--rounds", str(result.rounds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX)
    except subprocess.TimeoutExpired:
        result.not_run.append(NotRun(contender=NAME, why=f"it took more than {RUN_S_MAX} s"))
        return result
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    take_in(result, lines, mib)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it failed"])[-1]
        result.not_run.append(NotRun(contender=NAME, why=reason[:300]))
    return result


def take_in(result: SuiteResult, lines: Iterable[dict], mib: int) -> None:
    """What it printed of transfers of this size, as works and samples."""
    found = list(lines)
    one = {
        line["what"]: line["all_s"]
        for line in found
        if line.get("receivers") == 1 or line.get("sources") == 1
    }
    for line in found:
        match line:
            case {"what": "broadcast", "receivers": count, "all_s": times}:
                work = f"{count} receivers" if count > 1 else "1 receiver"
                result.works[work] = f"{mib} MiB from one host to {count}"
                add(result, work, mib * MIB * count, times, one.get("broadcast", times))
            case {"what": "stripe", "sources": count, "all_s": times}:
                work = f"{count} sources" if count > 1 else "1 source"
                result.works[work] = f"{mib} MiB from {count} to one host that is not limited"
                add(result, work, mib * MIB, times, one.get("stripe", times))
            case {"what": "faults", "fault": work, "seconds": seconds, "received": received}:
                size = line.get("mib", mib)
                result.works[work] = (
                    f"{work} in the middle of {size} MiB: whole and bit-exact; {received} times "
                    "its bytes came in all"
                )
                add(result, work, size * MIB, [seconds], [])


def add(
    result: SuiteResult, work: str, size: int, times: Sequence[float], ones: Sequence[float]
) -> None:
    """A sample for each round."""
    for turn, seconds in enumerate(times):
        facts = {"ratio": seconds / ones[turn]} if turn < len(ones) else {}
        result.samples.append(
            Sample(
                contender=NAME,
                work=work,
                turn=turn + 1,
                seconds=seconds,
                bytes=size,
                cpu_s=0.0,
                others_cpu_s=0.0,
                load=round(os.getloadavg()[0], 2),
                facts=facts,
            )
        )
