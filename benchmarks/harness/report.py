"""Results as Markdown: the goals first, then every contender in every work, then the absent."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from harness.catalog import Suite
from harness.goals import Goal, Measure, Verdict, count_met, judge, noise_of
from harness.results import Results, SuiteResult, Summary, summaries

BEGIN, END = "<!-- results -->", "<!-- end of results -->"
PICTURE = "![Every contender in every work that has a goal](benchmarks/results.svg)"
MARKS = {True: "met", False: "**missed**", None: "not run"}


def choose(suite: Suite, only: Sequence[str] | None, *, is_without_peers: bool) -> Suite:
    """The suite with fewer contenders."""
    kept = [
        contender
        for contender in suite.contenders
        if not (is_without_peers and contender.kind == "peer")
        and (not only or any(is_meant(contender.name, text) for text in only))
    ]
    return dataclasses.replace(
        suite,
        contenders=tuple(kept),
        unlisted=() if only or is_without_peers else suite.unlisted,
    )


def is_meant(name: str, text: str) -> bool:
    """Whether a name has this text in it; after "=", whether it is this text."""
    return name == text[1:] if text.startswith("=") else text in name


def render(results: Results, goals: Sequence[Goal]) -> str:
    """The whole report."""
    parts = [describe_run(results)]
    if not results.is_quick:
        verdicts = [judge(goal, results) for goal in goals]
        parts += ["\n".join(goal_table(verdicts)), summary_line(verdicts)]
    for name, suite in results.suites.items():
        parts += [f"### {name}", *suite_parts(suite, is_quick=results.is_quick)]
    return "\n\n".join(part for part in parts if part) + "\n"


def insert(page: str, text: str) -> str:
    """The page of the documentation with this report in its place."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{PICTURE}\n\n{text}{END}{after}"


def describe_run(results: Results) -> str:
    """Date, machine, and how noisy it was."""
    dates = sorted({suite.date for suite in results.suites.values()})
    rounds = sorted({suite.rounds for suite in results.suites.values()})
    machine = "; ".join(f"{name}: {value}" for name, value in results.machine.items() if value)
    quick = (
        " This was a quick run in small sizes: its numbers say nothing."
        if (results.is_quick)
        else ""
    )
    return (
        f"{', '.join(dates)}; {machine}. {' or '.join(map(str, rounds))} rounds. While something "
        f"was timed, other processes used {noise_of(results):.2f} cores (median).{quick}"
    )


def goal_table(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """A line for each goal."""
    yield "| work | goal | ours | reference | ratio (rounds) | |"
    yield "|---|---|---|---|---|---|"
    for verdict in verdicts:
        goal = verdict.goal
        reference = (
            f"{number(verdict.reference)} ({verdict.reference_name})" if verdict.reference else ""
        )
        ours = "" if verdict.value is None else f"{number(verdict.value)} {unit(goal)}".strip()
        cells = (goal.text, describe_bound(goal), ours, reference, ratio(verdict), mark(verdict))
        yield f"| {' | '.join(cells)} |"


def describe_bound(goal: Goal) -> str:
    """The bound in words."""
    if not goal.references:
        return f"at most {number(goal.bound)} {unit(goal)}".strip()
    word = "at least" if goal.measure is Measure.RATE else "at most"
    ahead = ", ahead of every peer" if goal.ahead_over else ""
    return f"{word} {goal.bound:g} of it{ahead}"


def unit(goal: Goal) -> str:
    """What its numbers are."""
    return goal.unit if goal.measure is Measure.FACT else goal.measure.value


def ratio(verdict: Verdict) -> str:
    """The ratio of the medians and its smallest and largest of the rounds; without a reference the
    spread of the value."""
    spread = verdict.spread
    shown = f" ({number(spread[0])}-{number(spread[1])})" if spread else ""
    return f"{number(verdict.ratio)}{shown}" if verdict.ratio is not None else shown.strip()


def mark(verdict: Verdict) -> str:
    """Whether it is met, and which peers are in the way."""
    behind = f" (behind {', '.join(verdict.behind)})" if verdict.behind else ""
    return f"{MARKS[verdict.is_met]}{behind}"


def summary_line(verdicts: Sequence[Verdict]) -> str:
    """The count."""
    met, missed, absent = count_met(list(verdicts))
    return f"{met} of {len(verdicts)} goals are met, {missed} are missed, {absent} were not run."


def suite_parts(suite: SuiteResult, *, is_quick: bool = False) -> Iterator[str]:
    """A table for each work, and the list of who did not run. The names of works tell the sizes of
    the goals, so a quick run shows only what was really done."""
    found = summaries(suite)
    for work, text in suite.works.items():
        rows = [summary for (_, its), summary in found.items() if its == work]
        if rows:
            heading = f"**{text}**" if is_quick else f"**{work}**: {text}"
            yield "\n".join(work_table(heading, rows, suite))
    if suite.not_run:
        yield "\n".join(
            f"* not run: {absent.contender}{', ' + absent.work if absent.work else ''}: "
            f"{absent.why}"
            for absent in suite.not_run
        )


def work_table(heading: str, rows: Sequence[Summary], suite: SuiteResult) -> Iterator[str]:
    """Contenders of one work, the fastest first."""
    entrants = {entrant.name: entrant for entrant in suite.entrants}
    is_in_blocks = any(row.p50_us is not None for row in rows)
    facts = sorted({name for row in rows for name in row.facts})
    heads = ["contender", "over", "GB/s (min-max)", "ms", "CPU s/GiB"]
    heads += ["p50 µs", "p99 µs"] if is_in_blocks else []
    heads += [name.replace("_", " ") for name in facts]
    yield heading
    yield ""
    yield f"| {' | '.join(heads)} | version |"
    yield "|---" * (len(heads) + 1) + "|"
    for row in sorted(rows, key=lambda row: -row.rate):
        entrant = entrants[row.contender]
        name = f"**{row.contender}**" if entrant.kind == "ours" else row.contender
        cells = [
            name,
            entrant.over,
            f"{row.rate:.2f} ({row.low:.2f}-{row.high:.2f})",
            number(row.seconds * 1e3),
            f"{row.cpu:.2f}" if row.cpu else "",
        ]
        cells += [number(row.p50_us), number(row.p99_us)] if is_in_blocks else []
        cells += [number(row.facts.get(fact)) for fact in facts]
        yield f"| {' | '.join(cells)} | {entrant.version} |"


def number(value: float | None) -> str:
    """Three digits; "" for nothing."""
    if value is None:
        return ""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f}"
