from __future__ import annotations

import pytest

from bench_samples import sample, suite
from harness.catalog import FULL, QUICK
from harness.goals import Goal, Measure, count_met, judge
from harness.results import Results, SuiteResult
from suites import kv, large, load, p2p, share
from suites.goals import GOALS


def results(found: SuiteResult) -> Results:
    return Results(suites={"s": found})


def goal(bound: float, **more: object) -> Goal:
    known = {"suite": "s", "work": "w", "text": "a goal", "ours": "us", "bound": bound}
    return Goal(**{**known, **more})


RACE = suite(
    sample("us", seconds=1.0, cpu_s=0.3),
    sample("us", turn=2, seconds=2.0, cpu_s=0.3),
    sample("us", turn=3, seconds=1.2, cpu_s=0.3),
    *[sample("raw", turn=turn, seconds=1.1, cpu_s=0.1) for turn in (1, 2, 3)],
    *[sample("slow raw", turn=turn, seconds=9.0) for turn in (1, 2, 3)],
    *[sample("peer", turn=turn, seconds=1.3, cpu_s=0.2) for turn in (1, 2, 3)],
    us="ours",
    raw="reference",
    peer="peer",
)


def test_a_rate_is_held_against_the_best_reference() -> None:
    found = judge(goal(0.9, references=("slow raw", "raw", "absent")), results(RACE))
    assert (found.reference_name, found.is_met) == ("raw", True)
    assert found.ratio == pytest.approx(1.1 / 1.2)
    assert found.spread == pytest.approx((1.1 / 2.0, 1.1 / 1.0))
    assert judge(goal(0.95, references=("raw",)), results(RACE)).is_met is False


def test_of_times_less_is_better() -> None:
    slow = goal(1.1, references=("raw", "slow raw"), measure=Measure.MILLISECONDS)
    found = judge(slow, results(RACE))
    assert (found.reference_name, found.is_met) == ("raw", True)
    assert found.ratio == pytest.approx(1.2 / 1.1)


def test_a_value_alone_has_a_bound() -> None:
    assert judge(goal(1200, measure=Measure.MILLISECONDS), results(RACE)).is_met
    assert not judge(goal(1100, measure=Measure.MILLISECONDS), results(RACE)).is_met


def test_a_peer_that_is_better_in_anything_is_in_the_way() -> None:
    found = judge(goal(0.5, references=("raw",), ahead_over=("tcp",)), results(RACE))
    assert (found.is_met, found.behind) == (False, ("peer in cpu",))
    elsewhere = goal(0.5, references=("raw",), ahead_over=("memory",))
    assert judge(elsewhere, results(RACE)).is_met
    assert judge(
        goal(0.5, references=("raw",), ahead_over=("tcp",), aspects=("rate",)), results(RACE)
    ).is_met


def test_facts_and_latencies() -> None:
    found = suite(sample("us", p50_us=12.0, facts={"own_mib": 3.0}), us="ours")
    assert judge(goal(15, measure=Measure.BLOCK), results(found)).value == 12.0
    assert judge(goal(2, measure=Measure.FACT, fact="own_mib"), results(found)).is_met is False


@pytest.mark.parametrize(
    "found", [Results(), results(suite()), results(suite(sample("us"), us="ours"))]
)
def test_what_was_not_run_is_neither_met_nor_missed(found: Results) -> None:
    verdict = judge(goal(1.0, references=("raw",)), found)
    assert verdict.is_met is None
    assert count_met([verdict]) == (0, 0, 1)


@pytest.mark.parametrize("module", [p2p, kv, share, large, load])
def test_goals_name_what_the_suites_have(module) -> None:
    made = module.make(FULL)
    assert module.make(QUICK).works
    names = {contender.name: contender for contender in made.contenders}
    works = {work.name for work in made.works}
    for each in (goal for goal in GOALS if goal.suite == made.name):
        assert each.work in works or made.unlisted
        assert names[each.ours].kind == "ours"
        assert all(names[name].kind == "reference" for name in each.references)
    assert len(names) == len(made.contenders)
    assert all(set(contender.works) <= works or made.unlisted for contender in made.contenders)
