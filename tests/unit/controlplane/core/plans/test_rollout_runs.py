"""Roll-outs run by the real runner, with engines that fail, die and come back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plan_worlds import AWAY, MIB
from rollout_worlds import NAME, NEW, OLD, RolloutWorld
from tensorcast.controlplane.core.plans.forecast import forecast
from tensorcast.schema.aggregates.plan import PlanStatus
from tensorcast.schema.commands import EmitSignal
from tensorcast.schema.events import SignalEmitted
from tensorcast.schema.ids import Key
from tensorcast.schema.plan_events import StepFailed
from tensorcast.schema.plans import Check
from tensorcast.schema.rollouts import (
    AllAtOnce,
    Canary,
    Health,
    Rolling,
    RolloutLimits,
    plan_rollout,
)

LIMITS = RolloutLimits(stage_s=20, switch_s=10)
STRATEGIES = [AllAtOnce(), Rolling(at_once=2), Canary(count=1, soak_s=5, at_once=1)]


def begin(world, strategy=STRATEGIES[0], members=None, late=True):
    spec = plan_rollout(world.wanted, members or world.members, strategy, limits=LIMITS, late=late)
    return world.submit(spec)


def at_key(world, key=NAME):
    return world.view.keys[Key(key)].artifact


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_engines_change_and_then_the_keys_do(strategy):
    world = RolloutWorld(4, parts=3)
    done = world.finish(begin(world, strategy))
    assert done.status is PlanStatus.SUCCEEDED
    assert {engine.serves for engine in world.engines.values()} == {NEW}
    positions = [seq for seq, _ in world.moves()]
    assert len(positions) == 3
    assert positions == list(range(positions[0], positions[0] + 3))
    ends = [end for end in world.appends if end >= positions[0]]
    assert ends[0] > positions[-1], "they are one append, with the event of the step"
    for engine in world.engines.values():
        assert engine.calls == ["stage", "switch"]


def test_one_that_refuses_while_the_old_serve_stops_it_before_anything_changes():
    world = RolloutWorld(3, lambda engine, verb, _: "refused" if engine == "e2" else "done")
    done = world.finish(begin(world))
    assert done.status is PlanStatus.FAILED
    assert done.fault.detail.endswith("It does not fit.")
    assert {engine.serves for engine in world.engines.values()} == {OLD}
    assert all("switch" not in engine.calls for engine in world.engines.values())
    assert {engine.staged for engine in world.engines.values()} == {""}
    assert at_key(world) == OLD


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("mishap", ["refused", "dies", "dies after", "silent"])
def test_one_that_fails_at_the_change_has_all_go_back(strategy, mishap):
    def script(engine, verb, number):
        return mishap if engine == "e3" and number == 1 else "done"

    world = RolloutWorld(3, script)
    done = world.finish(begin(world, strategy))
    assert done.status is PlanStatus.FAILED
    assert at_key(world) == OLD
    assert {one.serves for one in world.engines.values() if one.is_alive} == {OLD}
    told = [one.event for one in world.events if isinstance(one.event, SignalEmitted)]
    assert [event.topic for event in told if event.topic.startswith("weights.")] == [
        "weights.rolled_back"
    ]


def test_a_canary_that_does_badly_is_halted_at_once_and_the_log_tells_why():
    bad = Check(field="loss", op="le", value=1.0)
    health = Health(topic="weights.health", where={"engine": "e1"}, checks=(bad,))
    world = RolloutWorld(3)
    plan = begin(world, Canary(count=1, soak_s=3600, health=(health,)))
    while world.step(plan, "switch/health-1") is None:
        assert world.look(plan) or world.work() or world.take_calls()
    assert [engine.serves for engine in world.engines.values()] == [NEW, OLD, OLD]
    for engine, loss in (("e1", 0.5), ("e2", 9.0), ("e1", 7.0)):
        world.execute(EmitSignal(topic="weights.health", data={"engine": engine, "loss": loss}))
    told = world.events[-1]
    began = world.now
    done = world.finish(plan)
    assert (done.status, world.now) == (PlanStatus.FAILED, began)
    assert {engine.serves for engine in world.engines.values()} == {OLD}
    back = ["stage", "switch", "unstage"]
    assert world.engines["e2"].calls == ["stage", *back], "it never changed"
    assert at_key(world) == OLD
    failed = next(one for one in world.events if isinstance(one.event, StepFailed))
    assert failed.event.step == "switch/health-1"
    assert failed.event.fault.detail == (
        f"Signal {told.seq} on weights.health says loss 7.0; it must be at most 1.0."
    )
    assert failed.cause == told.id
    assert "says loss 7.0" in done.fault.detail


def test_a_canary_that_dies_is_halted_because_of_that():
    world = RolloutWorld(3)
    plan = begin(world, Canary(count=1, soak_s=3600))
    while world.step(plan, "switch/soak") is None:
        assert world.look(plan) or world.work() or world.take_calls()
    world.kill("e1")
    lost = world.events[-1]
    done = world.finish(plan)
    failed = next(one for one in world.events if isinstance(one.event, StepFailed))
    assert (failed.cause, done.status) == (lost.id, PlanStatus.FAILED)
    assert (failed.event.fault.detail, at_key(world)) == ("Engine e1 is lost.", OLD)


def test_who_comes_meanwhile_is_brought_along():
    world = RolloutWorld(3)
    plan = begin(world)
    world.join("n9")
    while not world.engines["e1"].calls:
        assert world.look(plan) or world.work() or world.take_calls()
    world.start("e9", "n9")
    assert world.engines["e9"].serves == OLD
    assert world.finish(plan).status is PlanStatus.SUCCEEDED
    assert world.engines["e9"].serves == NEW
    world.start("e10", "n9")
    assert world.engines["e10"].serves == NEW, "who comes later has what the key names"


def test_keys_that_somebody_else_has_moved_stop_it():
    world = RolloutWorld(2, parts=2)
    plan = begin(world)
    other = world.put("other", "n1")
    from tensorcast.schema.commands import MoveKey

    world.execute(MoveKey(key=Key(f"{NAME}.rank1"), artifact=other, expect=OLD))
    done = world.finish(plan)
    assert done.status is PlanStatus.FAILED
    assert (at_key(world), at_key(world, f"{NAME}.rank1")) == (OLD, other)
    assert {engine.serves for engine in world.engines.values()} == {OLD}


def test_a_node_that_does_not_get_them_stops_it_before_engines_are_asked():
    world = RolloutWorld(3)
    world.faults = lambda node, number: AWAY if node == "n2" else None
    done = world.finish(begin(world))
    assert (done.status, done.failed_step) == (PlanStatus.FAILED, "prefetch")
    assert [engine.calls for engine in world.engines.values()] == [[], [], []]
    assert at_key(world) == OLD


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_dry_run_tells_what_it_would_move(strategy):
    world = RolloutWorld(4)
    spec = plan_rollout(world.wanted, world.members, strategy)
    told = forecast(world.view, spec, {}, world.now)
    assert (told.state, told.bytes, told.faults) == ("succeeded", 3 * 4 * MIB, ())


@settings(max_examples=150)
@given(
    mishaps=st.dictionaries(
        st.tuples(st.sampled_from(["e1", "e2", "e3", "e4"]), st.integers(0, 3)),
        st.sampled_from(["refused", "dies", "dies after", "silent"]),
        max_size=4,
    ),
    restarts=st.booleans(),
    is_twice=st.booleans(),
    most=st.sampled_from([None, 1]),
    strategy=st.sampled_from(STRATEGIES),
)
def test_whatever_happens_all_or_nothing_is_seen(mishaps, restarts, is_twice, most, strategy):
    world = RolloutWorld(4, lambda engine, verb, number: mishaps.get((engine, number), "done"))
    world.is_twice, world.most = is_twice, most
    plan = begin(world, strategy)
    if restarts:
        kill = world.kill

        def kill_and_restart(name):
            kill(name)
            world.restart(name)

        world.kill = kill_and_restart
    done = world.finish(plan)
    if done.status is PlanStatus.SUCCEEDED:
        assert at_key(world) == NEW
        assert {one.serves for one in world.engines.values() if one.is_alive} == {NEW}
        return
    assert done.status is PlanStatus.FAILED
    assert at_key(world) == OLD
    assert len(world.moves()) == 0
    for engine in world.engines.values():
        # What would not go back either has said so, or died at it; the log tells of it.
        is_excused = any(name == engine.name for name, _ in mishaps) or not engine.is_alive
        assert engine.serves == OLD or is_excused
