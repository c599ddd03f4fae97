"""A small cluster through minutes of load: the invariants hold, and a seed decides everything."""

import msgspec
import pytest

from tensorcast.controlplane.core.view import is_ready, ready_replicas
from tensorcast.controlplane.simulator.workload import Load, Scenario
from tensorcast.controlplane.simulator.world import World
from tensorcast.schema.aggregates.operation import OPEN
from tensorcast.schema.policy_events import PolicyEnabled

SMALL = Load(nodes=8, artifacts=60, hour_s=120.0, gets=5.0, puts=1.0, requests=0.3, crashes=90.0)


def run(seed, load=SMALL, policies=(), loss=0.0):
    world = World(seed, loss=loss)
    for name in policies:
        world.append(PolicyEnabled(policy=name), actor="user:ada")
    scenario = Scenario(world, load)
    scenario.prepare()
    return world, scenario.run()


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_or_left_open(seed):
    world, measures = run(seed, loss=0.05)
    assert measures.operations > 20
    assert measures.needs > measures.hits > 0
    assert not [one for one in world.view.operations.values() if one.status in OPEN]
    for artifact, found in world.view.artifacts.items():
        if ready_replicas(world.view, artifact):
            for node, tier in found.requests:
                if world.view.nodes[node].status.value == "up":
                    assert is_ready(world.view, artifact, node, tier), (artifact, node)


def test_a_seed_always_gives_the_same_run():
    first, again, other = (run(seed)[0].log for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_policies_that_are_enabled_act_in_it():
    calm = msgspec.structs.replace(SMALL, crashes=0.0, requests=0.0)
    _, without = run(1, calm)
    world, spread = run(1, calm, policies=("spread",))
    assert spread.hit_ratio > without.hit_ratio
    assert {one.actor for one in world.log} >= {"policy:spread", "policy:replicate"}
