"""Goals as values, and whether results meet them. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from enum import StrEnum

from harness.results import Results, SuiteResult, Summary, summaries


class Measure(StrEnum):
    """What a goal looks at. Of rates more is better, of everything else less."""

    RATE = "GB/s"
    MILLISECONDS = "ms"
    BLOCK = "µs a block"
    FACT = "of the facts"


@dataclass(frozen=True)
class Goal:
    """One line of the table. With `references` the bound is for the ratio to the best of them (of
    rates at least, of times at most), without it is for our own value, at most. `ahead_over`: every
    peer over these ways must be behind in rate, in CPU and (where there is one) in p50."""

    suite: str
    work: str
    text: str
    ours: str
    bound: float
    measure: Measure = Measure.RATE
    references: tuple[str, ...] = ()
    ahead_over: tuple[str, ...] = ()
    fact: str = ""
    unit: str = ""
    aspects: tuple[str, ...] = ("rate", "cpu")


@dataclass(frozen=True)
class Verdict:
    """A goal and what came of it; `is_met` is None when something was not run. `spread` is that of
    the ratio from round to round (or of the value). `behind` names peers that were better, and in
    what."""

    goal: Goal
    value: float | None = None
    reference: float | None = None
    reference_name: str = ""
    ratio: float | None = None
    spread: tuple[float, float] | None = None
    is_met: bool | None = None
    behind: tuple[str, ...] = field(default=())


def judge(goal: Goal, results: Results) -> Verdict:
    """What results say of a goal."""
    suite = results.suites.get(goal.suite)
    if suite is None:
        return Verdict(goal)
    found = summaries(suite)
    ours = found.get((goal.ours, goal.work))
    value = value_of(goal, ours)
    if ours is None or value is None:
        return Verdict(goal)
    behind = find_better(goal, ours, suite, found)
    if not goal.references:
        spread = spread_of([value_of_sample(goal, s) for s in samples_of(suite, ours)])
        return Verdict(goal, value, spread=spread, is_met=value <= goal.bound, behind=behind)
    known = [s for name in goal.references if (s := found.get((name, goal.work)))]
    if not known:
        return Verdict(goal, value)
    is_rate = goal.measure is Measure.RATE
    best = (max if is_rate else min)(known, key=lambda s: value_of(goal, s) or 0.0)
    reference = value_of(goal, best) or 0.0
    ratio = value / reference
    is_met = (ratio >= goal.bound if is_rate else ratio <= goal.bound) and not behind
    return Verdict(
        goal,
        value,
        reference,
        best.contender,
        ratio,
        spread_of(ratios(goal, suite, ours, best)),
        is_met,
        behind,
    )


def value_of(goal: Goal, summary: Summary | None) -> float | None:
    """The number that a goal looks at."""
    if summary is None:
        return None
    match goal.measure:
        case Measure.RATE:
            return summary.rate
        case Measure.MILLISECONDS:
            return summary.seconds * 1e3
        case Measure.BLOCK:
            return summary.p50_us
        case Measure.FACT:
            return summary.facts.get(goal.fact)


def value_of_sample(goal: Goal, sample) -> float:
    """The same of one round."""
    match goal.measure:
        case Measure.RATE:
            return sample.bytes / sample.seconds / 1e9
        case Measure.MILLISECONDS:
            return sample.seconds * 1e3
        case Measure.BLOCK:
            return sample.p50_us or 0.0
        case Measure.FACT:
            return sample.facts.get(goal.fact, 0.0)


def samples_of(suite: SuiteResult, summary: Summary):
    """The rounds behind a summary."""
    return [s for s in suite.samples if (s.contender, s.work) == (summary.contender, summary.work)]


def ratios(goal: Goal, suite: SuiteResult, ours: Summary, other: Summary) -> list[float]:
    """Ours against the other, round by round."""
    theirs = {s.turn: value_of_sample(goal, s) for s in samples_of(suite, other)}
    return [
        value_of_sample(goal, s) / theirs[s.turn]
        for s in samples_of(suite, ours)
        if theirs.get(s.turn)
    ]


def spread_of(values: list[float]) -> tuple[float, float] | None:
    """The smallest and the largest."""
    return (min(values), max(values)) if values else None


def find_better(
    goal: Goal, ours: Summary, suite: SuiteResult, found: dict[tuple[str, str], Summary]
) -> tuple[str, ...]:
    """The peers that ours is not ahead of, and in what."""
    peers = {e.name for e in suite.entrants if e.kind == "peer" and e.over in goal.ahead_over}
    better = []
    for (name, work), peer in found.items():
        if name not in peers or work != goal.work:
            continue
        better += [f"{name} in {aspect}" for aspect in lost_aspects(ours, peer, goal.aspects)]
    return tuple(better)


def lost_aspects(ours: Summary, peer: Summary, aspects: tuple[str, ...]) -> list[str]:
    """Where the peer is better."""
    lost = {
        "rate": peer.rate > ours.rate,
        "cpu": peer.cpu < ours.cpu,
        "p50": ours.p50_us is not None and peer.p50_us is not None and peer.p50_us < ours.p50_us,
    }
    return [aspect for aspect in aspects if lost[aspect]]


def count_met(verdicts: list[Verdict]) -> tuple[int, int, int]:
    """How many are met, missed and not run."""
    met = [verdict.is_met for verdict in verdicts]
    return met.count(True), met.count(False), met.count(None)


def noise_of(results: Results) -> float:
    """How many cores other processes used while something was timed (the median)."""
    found = [
        s.others_cpu_s / s.seconds
        for suite in results.suites.values()
        for s in suite.samples
        if s.seconds > 0.05
    ]
    return statistics.median(found) if found else 0.0
