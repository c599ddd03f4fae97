from __future__ import annotations

import xml.etree.ElementTree
from pathlib import Path

from bench_samples import sample, suite
from harness.catalog import Contender, Suite
from harness.goals import Goal
from harness.picture import draw
from harness.report import choose, insert, number, render
from harness.results import NotRun, Results, load
from suites.goals import GOALS

DOCS = Path(__file__).resolve().parents[3] / "docs"

GOAL = Goal("s", "w", "fast enough", "us", 0.8, references=("raw",), ahead_over=("tcp",))


def results(**more: object) -> Results:
    found = suite(
        sample("us", seconds=1.0, p50_us=3.0),
        sample("raw", seconds=0.9),
        sample("p<er", seconds=0.5, facts={"own_mib": 12.0}),
        us="ours",
        raw="reference",
        **{"p<er": "peer"},
    )
    found.not_run.append(NotRun(contender="gone", why="it has no driver"))
    return Results(machine={"cores": "2", "processor": "X & Y"}, suites={"s": found}, **more)


def test_the_report_tells_all() -> None:
    text = render(results(), [GOAL])
    assert "cores: 2" in text
    assert "| fast enough | at least 0.8 of it, ahead of every peer | 1.07 GB/s |" in text
    assert "**missed** (behind p<er in rate)" in text
    assert "0 of 1 goals are met, 1 are missed, 0 were not run." in text
    assert "* not run: gone: it has no driver" in text
    rows = [line for line in text.splitlines() if "(" in line and "| tcp |" in line]
    assert [row.split("|")[1].strip() for row in rows] == ["p<er", "raw", "**us**"]


def test_a_quick_run_is_not_judged() -> None:
    text = render(results(is_quick=True), [GOAL])
    assert "its numbers say nothing" in text
    assert "fast enough" not in text


def test_the_picture_is_a_drawing_of_every_contender() -> None:
    root = xml.etree.ElementTree.fromstring(draw(results(), [GOAL]))
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"us", "raw", "p<er", "the work"} <= set(words)
    bars = root.findall("{http://www.w3.org/2000/svg}rect")
    assert len(bars) == 1 + 3 + 3  # the paper, the three colours, the bars


def test_what_no_goal_looks_at_is_not_drawn() -> None:
    assert "the work" not in draw(results(), [])


def test_contenders_are_chosen_by_name_and_kind() -> None:
    def make(name: str, kind: str) -> Contender:
        return Contender(name, kind, "tcp", "m:C")

    contenders = (make("us", "ours"), make("us too", "ours"), make("them", "peer"))
    whole = Suite("s", "", (), contenders, 1, 1, unlisted=(("x", "y"),))

    def names(**more: object) -> list[str]:
        known = {"only": None, "is_without_peers": False}
        return [one.name for one in choose(whole, **{**known, **more}).contenders]

    assert names() == ["us", "us too", "them"]
    assert names(is_without_peers=True) == ["us", "us too"]
    assert names(only=["us"]) == ["us", "us too"]
    assert names(only=["=us", "the"]) == ["us", "them"]
    assert choose(whole, None, is_without_peers=False).unlisted


def test_the_documentation_shows_the_results_that_are_committed() -> None:
    page = (DOCS / "benchmarks.md").read_text()
    assert insert(insert(page, "old\n"), "new\n") == insert(page, "new\n")
    recorded = DOCS / "benchmarks" / "results.json"
    if recorded.exists():
        assert insert(page, render(load(recorded), GOALS)) == page, "Run scripts/bench --report."


def test_numbers_have_three_digits() -> None:
    assert [number(v) for v in (None, 0.1234, 12.34, 123.4)] == ["", "0.12", "12.3", "123"]
