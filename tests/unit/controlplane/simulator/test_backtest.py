"""A log decided anew: with its own policies exactly as it was, with others as they would have."""

import msgspec
import pytest

from tensorcast.controlplane.core.catalog import CATALOG, Forced
from tensorcast.controlplane.simulator.backtest import compare, rerun, review
from tensorcast.controlplane.simulator.measures import measure
from tensorcast.controlplane.simulator.workload import Load, Scenario
from tensorcast.controlplane.simulator.world import World
from tensorcast.schema.cluster import ClusterView, project
from tensorcast.schema.events import OperationIssued

LOAD = Load(nodes=6, artifacts=40, hour_s=90.0, gets=4.0, puts=0.5, requests=0.3, crashes=60.0)


@pytest.fixture(scope="module")
def log():
    world = World(3)
    scenario = Scenario(world, LOAD)
    scenario.prepare()
    scenario.run()
    return tuple(world.log)


def test_its_own_policies_decide_exactly_what_is_in_the_log(log):
    found = review(ClusterView(), log, CATALOG)
    assert found.is_exact, (found.strange, found.missing)
    assert found.carried_out == sum(
        one.actor.startswith("policy:") for one in log if is_decided(one)
    )
    assert found.decided == found.carried_out + found.overtaken > 20


def is_decided(one):
    return one.actor.startswith("policy:") and one.actor != "policy:retry"


def test_a_log_that_somebody_else_decided_is_told(log):
    place = next(i for i, one in enumerate(log) if one.actor == "policy:replicate")
    other = msgspec.structs.replace(
        log[place],
        event=msgspec.structs.replace(log[place].event, policy="other"),
    )
    assert isinstance(other.event, OperationIssued)
    found = review(ClusterView(), [*log[:place], other, *log[place + 1 :]], CATALOG)
    assert not found.is_exact


def test_part_of_a_log(log):
    view = ClusterView()
    for recorded in log[:150]:
        view = project(view, recorded)
    found = review(view, log[150:], CATALOG)
    assert found.missing == ()


def test_the_same_hour_again_needs_about_the_same(log):
    recorded, again = measure(ClusterView(), log), rerun(ClusterView(), log, CATALOG)
    assert again.operations > 0
    assert 0.5 < again.bytes_moved / recorded.bytes_moved < 1.5


def test_another_policy_would_have_saved_waits(log):
    spread = Forced(CATALOG, CATALOG.find("spread"), {"readers": 1, "kinds": []})
    found = compare(ClusterView(), log, CATALOG, spread)
    assert found.review.is_exact
    assert found.instead.hits > found.as_it_was.hits
    assert found.instead.bytes_moved > found.as_it_was.bytes_moved
