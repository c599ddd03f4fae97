"""The lines of a run as Markdown: what came of each goal, with its rounds beside it. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Line = dict[str, object]
BEGIN, END = "<!-- events -->", "<!-- end of events -->"
OURS, RAW = "tensorcast", "raw loop"


@dataclass(frozen=True)
class Goal:
    """One row: a field of the lines of one measurement, and its bound. `is_ratio`: the bound is for
    the ratio to the raw loop of the same run. `more`: more is better."""

    what: str
    field: str
    text: str
    bound: float
    unit: str
    more: bool
    is_ratio: bool = False


GOALS = (
    Goal("throughput", "rate", "publish to committed", 5000, "events/s", True),
    Goal("throughput", "rate", "the same, against the raw loop", 0.7, "events/s", True, True),
    Goal("latency", "p50_ms", "at 1,000 events/s, p50, against it", 1.5, "ms", False, True),
    Goal("latency", "p99_ms", "at 1,000 events/s, p99, against it", 2.0, "ms", False, True),
    Goal("registrations", "rate", "artifact and replica registered, 64 in flight", 1000,
         "registrations/s", True),
    Goal("moves", "rate", "keys moved through the API, 64 in flight", 500, "moves/s", True),
    Goal("resolves", "p99_us", "a key resolved in a process's own view, p99", 100, "µs", False),
    Goal("rebuild", "rate", "read models made anew", 30_000, "events/s", True),
    Goal("rebuild beside", "rate", "the same beside the live ones, and swapped", 30_000,
         "events/s", True),
)  # fmt: skip


def render(lines: Sequence[Line], machine: str) -> str:
    """A paragraph on the machine and the table of goals."""
    return "\n".join([machine, "", *_table(lines)]) + "\n"


def _table(lines: Sequence[Line]) -> Iterator[str]:
    yield "| work | goal | ours (rounds) | raw loop (rounds) | ratio | |"
    yield "|---|---|---|---|---|---|"
    for goal in GOALS:
        ours, raw = (values(lines, goal, name) for name in (OURS, RAW))
        if not ours:
            yield f"| {goal.text} | {_bound(goal)} | | | | not run |"
            continue
        ratio = statistics.median(ours) / statistics.median(raw) if raw else None
        mark = "met" if is_met(goal, statistics.median(ours), ratio) else "**missed**"
        shown = f"{ratio:.2f}" if ratio is not None else ""
        cells = (_shown(ours, goal.unit), _shown(raw, goal.unit) if raw else "", shown, mark)
        yield f"| {goal.text} | {_bound(goal)} | {' | '.join(cells)} |"


def values(lines: Sequence[Line], goal: Goal, name: str) -> list[float]:
    """What was measured for a goal, round by round."""
    return [
        float(str(line[goal.field]))
        for line in lines
        if line["what"] == goal.what and line["contender"] == name
    ]


def is_met(goal: Goal, value: float, ratio: float | None) -> bool:
    """Whether the bound is kept; a ratio that is not there keeps none."""
    seen = ratio if goal.is_ratio else value
    if seen is None:
        return False
    return seen >= goal.bound if goal.more else seen <= goal.bound


def _bound(goal: Goal) -> str:
    word = "at least" if goal.more else "at most"
    return f"{word} {goal.bound:,g} {'of it' if goal.is_ratio else goal.unit}"


def _shown(found: Sequence[float], unit: str) -> str:
    spread = f" ({_number(min(found))}-{_number(max(found))})" if len(found) > 1 else ""
    return f"{_number(statistics.median(found))} {unit}{spread}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def insert(page: str, text: str) -> str:
    """The page of the documentation with this table in its place."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{text}{END}{after}"
