"""Seeded runs of a whole cluster under faults. A seed that failed once stays here for ever."""

import functools
import itertools

import pytest

from samples import BEGIN, event_id
from simulation.cluster import SimulatedCluster
from simulation.invariants import check_history, explain, unmet_requests
from tensorcast.log import execute
from virtual_time import run_virtual

PAST_FAILURES: list[int] = []


@pytest.fixture(autouse=True)
def ids_by_seed(monkeypatch):
    """Ids and times of events follow from their order, so that a seed decides everything."""
    monkeypatch.setattr(execute, "new_event_id", functools.partial(_next_id, itertools.count(1)))
    monkeypatch.setattr(execute, "now", lambda: BEGIN)


async def _run(seed: int, *, steps: int, schedulers: int):
    cluster = SimulatedCluster(seed, schedulers=schedulers)
    try:
        await cluster.run(steps)
        return await cluster.history(), await cluster.view()
    finally:
        await cluster.stop()


def check(seed: int, *, steps: int, schedulers: int) -> int:
    history, view = run_virtual(_run(seed, steps=steps, schedulers=schedulers))
    check_history(history)
    for artifact, node, tier in unmet_requests(view):
        raise AssertionError(
            f"seed {seed}: {artifact} is not on {node} in {tier}:\n"
            + explain(view, history, artifact)
        )
    return len(history)


@pytest.mark.parametrize("seed", [*range(6), *PAST_FAILURES])
@pytest.mark.parametrize("schedulers", [1, 2])
def test_requests_are_met_and_claims_are_kept(seed, schedulers):
    assert check(seed, steps=40, schedulers=schedulers) > 40


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [*range(1000, 1008), *(pytest.param(n, marks=pytest.mark.long) for n in range(1008, 1040))],
)
def test_many_seeds(seed):
    check(seed, steps=60, schedulers=1 + seed % 3)


def test_a_seed_always_gives_the_same_run(monkeypatch):
    runs = []
    for _ in range(2):
        counter = itertools.count(1)
        monkeypatch.setattr(execute, "new_event_id", functools.partial(_next_id, counter))
        runs.append(run_virtual(_run(7, steps=15, schedulers=2))[0])
    assert runs[0] == runs[1]


def _next_id(counter):
    return event_id(next(counter))
