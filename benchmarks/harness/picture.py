"""Results as one SVG: for each work that a goal looks at, a bar for every contender with the spread
of its rounds, and the CPU that it cost. Plain shapes and text, without a library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from harness.goals import Goal
from harness.results import Results, SuiteResult, Summary, summaries

WIDTH = 980
LABEL = 232
BARS = 470
ROW = 19
PANEL_GAP = 26
COLORS = {"ours": "#d9480f", "reference": "#868e96", "peer": "#4c6ef5"}
WORDS = {"ours": "tensorcast", "reference": "raw loop or iperf3", "peer": "peer"}


def draw(results: Results, goals: Sequence[Goal]) -> str:
    """The picture."""
    parts, y = [], 64.0
    for name, suite in results.suites.items():
        found = summaries(suite)
        for work in wanted_works(name, suite, goals):
            rows = [summary for (_, its), summary in found.items() if its == work]
            if len(rows) > 1:
                parts += panel(y, suite, work, rows)
                y += ROW * (len(rows) + 1) + PANEL_GAP
    return "\n".join([*head(results, y), *parts, "</svg>"]) + "\n"


def wanted_works(name: str, suite: SuiteResult, goals: Sequence[Goal]) -> list[str]:
    """The works of a suite that some goal looks at, in the order of the suite."""
    wanted = {goal.work for goal in goals if goal.suite == name}
    return [work for work in suite.works if work in wanted]


def head(results: Results, height: float) -> Iterator[str]:
    """The frame, the title and what the colours mean."""
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'width="{WIDTH}" height="{height:.0f}" font-family="sans-serif" font-size="12">'
    )
    yield f'<rect width="{WIDTH}" height="{height:.0f}" fill="#ffffff"/>'
    dates = sorted({suite.date for suite in results.suites.values()})
    machine = results.machine
    about = f"{machine.get('cores', '?')} cores, {machine.get('processor', '')}"
    yield text(16, 24, f"TensorCast benchmarks, {', '.join(dates)}, {about}", "font-size='15'")
    x = 16.0
    for kind, color in COLORS.items():
        yield f'<rect x="{x:.0f}" y="36" width="12" height="12" fill="{color}"/>'
        yield text(x + 17, 46, WORDS[kind])
        x += 30 + 7.2 * len(WORDS[kind])
    yield text(x + 10, 46, "bar: median; line: slowest to fastest round", "fill='#868e96'")


def panel(y: float, suite: SuiteResult, work: str, rows: Sequence[Summary]) -> Iterator[str]:
    """One work: a title and a row for each contender."""
    kinds = {entrant.name: entrant.kind for entrant in suite.entrants}
    longest = max(row.high for row in rows)
    yield text(16, y + 12, suite.works[work], "font-weight='bold'")
    yield text(LABEL + BARS + 8, y + 12, "GB/s", "fill='#868e96'")
    yield text(LABEL + BARS + 110, y + 12, "CPU s/GiB", "fill='#868e96'")
    for number, row in enumerate(sorted(rows, key=lambda row: -row.rate), 1):
        yield from bar(y + number * ROW, row, COLORS[kinds[row.contender]], longest)


def bar(y: float, row: Summary, color: str, longest: float) -> Iterator[str]:
    """One contender."""
    scale = BARS / longest
    middle = y + ROW / 2
    yield text(LABEL - 8, middle + 4, row.contender, "text-anchor='end'")
    yield (
        f'<rect x="{LABEL}" y="{y + 3:.1f}" width="{max(1.0, row.rate * scale):.1f}" '
        f'height="{ROW - 6}" fill="{color}"/>'
    )
    yield (
        f'<line x1="{LABEL + row.low * scale:.1f}" x2="{LABEL + row.high * scale:.1f}" '
        f'y1="{middle:.1f}" y2="{middle:.1f}" stroke="#212529" stroke-width="1.5"/>'
    )
    yield text(LABEL + BARS + 8, middle + 4, f"{row.rate:.2f}")
    if row.cpu:
        yield text(LABEL + BARS + 110, middle + 4, f"{row.cpu:.2f}")


def text(x: float, y: float, words: str, more: str = "") -> str:
    """Some words."""
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(words)}</text>'
