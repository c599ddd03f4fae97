"""What was measured: samples, what they amount to, and the file that keeps them.

A file keeps the samples themselves; medians, ratios and pictures are made from them again and again
(`scripts/bench --report`).
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable
from pathlib import Path

import msgspec

FORMAT = 1
GIB = 1 << 30


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One timed turn. `cpu_s` is that of the contender's whole tree of processes, on both sides,
    until all it caused was over; `others_cpu_s` is what all other processes used meanwhile: noise.
    `facts` are more numbers of the run (memory, for example)."""

    contender: str
    work: str
    turn: int
    seconds: float
    bytes: int
    cpu_s: float
    others_cpu_s: float
    load: float
    p50_us: float | None = None
    p99_us: float | None = None
    facts: dict[str, float] = {}


class Entrant(msgspec.Struct, frozen=True, kw_only=True):
    """A contender as it ran: `kind` is ours, reference or peer; `over` is tcp, memory or disk."""

    name: str
    kind: str
    over: str
    version: str = ""
    note: str = ""


class NotRun(msgspec.Struct, frozen=True, kw_only=True):
    """A contender (or one work of it) without samples, and why."""

    contender: str
    why: str
    work: str | None = None


class SuiteResult(msgspec.Struct, kw_only=True):
    """One suite. `works` tells what each of them is, in words."""

    date: str
    seed: int
    rounds: int
    works: dict[str, str]
    entrants: list[Entrant] = []
    not_run: list[NotRun] = []
    samples: list[Sample] = []


class Results(msgspec.Struct, kw_only=True):
    """Everything of one file."""

    format: int = FORMAT
    machine: dict[str, str] = {}
    is_quick: bool = False
    suites: dict[str, SuiteResult] = {}


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One contender in one work over all rounds. Rates in GB/s (10^9 bytes), CPU in seconds per
    GiB; `low` and `high` are the slowest and the fastest round, `quartiles` the middle half."""

    contender: str
    work: str
    rounds: int
    seconds: float
    rate: float
    low: float
    high: float
    quartiles: tuple[float, float]
    cpu: float
    p50_us: float | None
    p99_us: float | None
    noise: float
    facts: dict[str, float]


def summarize(samples: Iterable[Sample]) -> Summary:
    """What samples of one contender in one work amount to; there must be one at least."""
    found = list(samples)
    rates = sorted(sample.bytes / sample.seconds / 1e9 for sample in found)
    names = {name for sample in found for name in sample.facts}
    return Summary(
        contender=found[0].contender,
        work=found[0].work,
        rounds=len(found),
        seconds=statistics.median(sample.seconds for sample in found),
        rate=statistics.median(rates),
        low=rates[0],
        high=rates[-1],
        quartiles=quartiles(rates),
        cpu=statistics.median(sample.cpu_s * GIB / sample.bytes for sample in found),
        p50_us=median_of(sample.p50_us for sample in found),
        p99_us=median_of(sample.p99_us for sample in found),
        noise=statistics.median(
            sample.others_cpu_s / sample.seconds if sample.seconds else 0.0 for sample in found
        ),
        facts={
            name: statistics.median(s.facts[name] for s in found if name in s.facts)
            for name in sorted(names)
        },
    )


def quartiles(ordered: list[float]) -> tuple[float, float]:
    """The bounds of the middle half."""
    if len(ordered) < 2:
        return ordered[0], ordered[0]
    low, _, high = statistics.quantiles(ordered, n=4, method="inclusive")
    return low, high


def median_of(values: Iterable[float | None]) -> float | None:
    """The median of what is there; None when nothing is."""
    found = [value for value in values if value is not None]
    return statistics.median(found) if found else None


def summaries(suite: SuiteResult) -> dict[tuple[str, str], Summary]:
    """By contender and work."""
    grouped: dict[tuple[str, str], list[Sample]] = {}
    for sample in suite.samples:
        grouped.setdefault((sample.contender, sample.work), []).append(sample)
    return {key: summarize(group) for key, group in grouped.items()}


def load(path: Path) -> Results:
    """The results of a file. Raises FileNotFoundError and msgspec.ValidationError."""
    return msgspec.json.decode(path.read_bytes(), type=Results)


def save(results: Results, path: Path) -> None:
    """Writes them; the file is the old one or the new one, whatever happens."""
    text = msgspec.json.format(msgspec.json.encode(results), indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.new")
    draft.write_bytes(text + b"\n")
    os.replace(draft, path)


def merge(*parts: Results) -> Results:
    """The suites of all parts; of a suite that several have, the last one's."""
    merged = Results()
    for part in parts:
        merged.machine = part.machine or merged.machine
        merged.is_quick = merged.is_quick or part.is_quick
        merged.suites |= part.suites
    return merged
