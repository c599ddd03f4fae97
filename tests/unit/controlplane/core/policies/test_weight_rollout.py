import pytest

from rollout_worlds import NAME, NEW, OLD, RolloutWorld
from tensorcast.controlplane.core.guard import Guard, Limits
from tensorcast.controlplane.core.policies.weight_rollout import (
    WeightRollout,
    WeightRolloutParameters,
)
from tensorcast.schema.aggregates.plan import PlanStatus
from tensorcast.schema.commands import MoveKey
from tensorcast.schema.ids import Key
from tensorcast.schema.plan_commands import SubmitPlan
from tensorcast.schema.plans import MapStep, all_steps


def react(world, **parameters):
    policy = WeightRollout(WeightRolloutParameters(**parameters))
    commands = policy.react(world.view, world.events[-1])
    assert Guard().judge(policy.name, Limits(), commands, world.events[-1]) is None
    assert commands == policy.react(world.view, world.events[-1]), "it remembers nothing"
    return commands


def publish(world, number, name=NAME):
    artifact = world.put(f"{name}{number}", "n1")
    world.execute(MoveKey(key=Key(f"{name}@{number}"), artifact=artifact))
    return artifact


def run(world, command):
    world.execute(command, actor="policy:weight-rollout")
    return world.finish(command.plan)


def test_a_version_is_rolled_out_to_who_serves_the_name():
    world = RolloutWorld(3)
    artifact = publish(world, 3)
    (command,) = react(world)
    assert isinstance(command, SubmitPlan)
    assert command.spec.labels == {"rollout": NAME, "version": "policy@3", "previous": "policy@1"}
    steps = {step.id: step for step in all_steps(command.spec.steps)}
    assert steps["stage"].items == ("e1", "e2", "e3")
    assert run(world, command).status is PlanStatus.SUCCEEDED
    assert world.view.keys[Key(NAME)].artifact == artifact
    assert react(world) == (), "nothing is left to do"


def test_one_at_a_time_and_the_newest_next():
    world = RolloutWorld(2)
    publish(world, 3)
    (first,) = react(world)
    world.execute(first)
    publish(world, 4)
    assert react(world) == ()
    newest = publish(world, 5)
    assert react(world) == ()
    assert world.finish(first.plan).status is PlanStatus.SUCCEEDED
    (every,) = react(world, skip=False)
    assert every.spec.labels["version"] == "policy@4"
    (second,) = react(world)
    assert second.spec.labels["version"] == "policy@5"
    run(world, second)
    assert {engine.serves for engine in world.engines.values()} == {newest}
    assert react(world) == ()


def test_a_version_that_failed_is_not_tried_again():
    world = RolloutWorld(2, lambda engine, verb, number: "refused" if number == 0 else "done")
    publish(world, 3)
    (first,) = react(world)
    assert run(world, first).status is PlanStatus.FAILED
    assert react(world) == ()
    publish(world, 4)
    (second,) = react(world)
    assert second.spec.labels["version"] == "policy@4"


@pytest.mark.parametrize(
    ("parameters", "ids"),
    [
        ({}, {"change"}),
        ({"strategy": "rolling", "at_once": 2}, {"change"}),
        ({"strategy": "canary"}, {"canary", "rest"}),
        ({"strategy": "canary", "canaries": 3}, {"change"}),
    ],
)
def test_strategies(parameters, ids):
    world = RolloutWorld(3)
    publish(world, 3)
    (command,) = react(world, **parameters)
    maps = {step.id: step for step in all_steps(command.spec.steps) if isinstance(step, MapStep)}
    assert ids <= set(maps)
    limit = 2 if "at_once" in parameters else 1
    if parameters:
        assert maps[max(ids)].concurrency_max == limit


def test_what_does_not_concern_it():
    world = RolloutWorld(2)
    world.execute(MoveKey(key=Key(NAME), artifact=NEW, expect=OLD))
    assert react(world) == ()
    publish(world, 3)
    assert react(world, names=("other*",)) == ()
    publish(world, 1, name="fresh")
    (command,) = react(world)
    assert "stage" not in {step.id for step in command.spec.steps}, "nobody serves it yet"
    world.execute(MoveKey(key=Key("notes@1"), artifact=OLD))
    assert len(react(world)) == 1
