from datetime import timedelta

import pytest

from rollout_worlds import NEW, OLD, RolloutWorld
from tensorcast.controlplane.core.plans.outcomes import Broken, Done
from tensorcast.controlplane.core.plans.soaking import look_at_soak
from tensorcast.controlplane.core.plans.waits import due_time
from tensorcast.schema.aggregates.plan import PlanStatus
from tensorcast.schema.commands import EmitSignal
from tensorcast.schema.ids import EngineId
from tensorcast.schema.plans import Check, EmitStep, PlanSpec, SoakStep, WaitSignal

CHECKS = (Check(field="t.p95", op="le", value=2),)


def begun(**fields):
    world = RolloutWorld(2)
    plan = world.submit(
        PlanSpec(
            name="x", steps=(SoakStep(id="s", for_s=10, **fields), EmitStep(id="e", topic="t"))
        )
    )
    world.settle(plan)
    return world, plan


def said(world, topic="load.e1", **data):
    world.execute(EmitSignal(topic=topic, data=data))
    return world.events[-1]


def test_when_nothing_happens_it_is_done_with_its_time():
    world, plan = begun(engines=("e1",), artifact=OLD)
    world.now = world.now.replace(microsecond=0)
    world.pass_time(9)
    assert world.look(plan) == 0
    world.pass_time(2)
    assert world.run(plan).status is PlanStatus.SUCCEEDED
    assert world.step(plan, "s").outputs == {"signals": 0}


@pytest.mark.parametrize(
    ("data", "fails"),
    [
        ({"engine": "e1", "t": {"p95": 2}}, False),
        ({"engine": "e1", "t": {"p95": 2.1}}, True),
        ({"engine": "e2", "t": {"p95": 9}}, False),
        ({"engine": "e1", "t": {"p95": None}}, True),
        ({"engine": "e1", "t": {}}, True),
        ({"engine": "e1", "t": 3}, True),
        ({"engine": "e1", "t": {"p95": True}}, True),
        ({"engine": "e1", "t": {"p95": [1]}}, True),
        ({"engine": "e1", "t": {"p95": "slow"}}, True),
    ],
)
def test_signals_must_pass_the_checks(data, fails):
    world, plan = begun(topic="load.*", where={"engine": "e1"}, checks=CHECKS)
    told = said(world, **data)
    world.settle(plan)
    state = world.step(plan, "s")
    assert (state.fault is not None) == fails
    if fails:
        assert state.fault.detail.startswith(f"Signal {told.seq} on load.e1 says ")
        assert state.fault.detail.endswith("it must be at most 2.")


@pytest.mark.parametrize("op", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_who_says_nothing_passes_no_check(op):
    for data in ({}, {"x": None}):
        world, plan = begun(topic="h", checks=(Check(field="x", op=op, value=1),))
        told = said(world, "h", **data)
        world.settle(plan)
        detail = world.step(plan, "s").fault.detail
        assert detail.startswith(f"Signal {told.seq} on h says nothing of x; it must ")


@pytest.mark.parametrize(
    ("op", "value", "said_value", "fails"),
    [
        ("eq", 1, True, True),
        ("eq", 1, 1.0, False),
        ("ne", 1, True, False),
        ("ge", 0, True, True),
        ("lt", "b", "a", False),
        ("ne", None, 0, False),
    ],
)
def test_values_are_compared_as_json(op, value, said_value, fails):
    world, plan = begun(topic="h", checks=(Check(field="x", op=op, value=value),))
    said(world, "h", x=said_value)
    world.settle(plan)
    assert (world.step(plan, "s").fault is not None) == fails


def test_what_is_optional_may_be_absent_and_does_not_count():
    checks = (Check(field="x", op="le", value=1, optional=True),)
    world, plan = begun(topic="h", checks=checks, count=2)
    said(world, "h")
    said(world, "h", x=None)
    said(world, "h", x=1)
    world.settle(plan)
    assert world.step(plan, "s").fault is None
    assert world.run(plan).fault.detail.endswith("1 signals came on h; 2 must.")


def test_without_checks_none_may_come():
    world, plan = begun(topic="alarm.>")
    said(world, "other")
    world.settle(plan)
    assert world.step(plan, "s").fault is None
    said(world, "alarm.e1")
    assert world.run(plan).fault.detail.endswith("on alarm.e1 came; none may.")


def test_so_many_must_have_come():
    world, plan = begun(topic="load.*", checks=CHECKS, count=2)
    said(world, t={"p95": 1})
    assert world.run(plan).fault.detail == "Step s: 1 signals came on load.*; 2 must." or (
        world.view.plans[plan].fault.detail == "1 signals came on load.*; 2 must."
    )


def test_engines_must_stay_and_serve_it():
    world, plan = begun(engines=("e1", "e2"), artifact=OLD)
    world.engines["e2"].serves = NEW
    world._tell(world.engines["e2"])
    assert "Engine e2 serves policy@2." in world.run(plan).fault.detail
    world, plan = begun(engines=("e1",))
    world.engines["e1"].serves = NEW
    world._tell(world.engines["e1"])
    assert world.look(plan) == 0, "it does not matter what it serves"
    world.kill("e1")
    assert "Engine e1 is lost." in world.run(plan).fault.detail
    world, plan = begun(engines=("nobody",))
    assert "There is no engine nobody." in world.run(plan).fault.detail


def test_who_dies_just_before_its_end_is_noticed():
    """An engine is lost only after a silence: a soak waits for that, too."""
    world, plan = begun(engines=("e1",))
    step, state = world.view.plans[plan].spec.steps[0], world.step(plan, "s")
    ttl_s = world.view.engines[EngineId("e1")].ttl_s
    assert due_time(step, state) > state.started_at + timedelta(seconds=step.for_s + ttl_s)


def test_an_engine_of_a_new_life_has_not_said_what_it_serves():
    world, plan = begun(engines=("e1",), artifact=OLD)
    step = world.view.plans[plan].spec.steps[0]
    state = world.step(plan, "s")
    assert look_at_soak(world.view, step, state, (), False) is None
    assert isinstance(look_at_soak(world.view, step, state, (), True), Done)
    from tensorcast.schema.commands import RegisterEngine

    world.execute(RegisterEngine(engine=EngineId("e1"), life="2", ttl_s=15))
    found = look_at_soak(world.view, step, state, (), True)
    assert isinstance(found, Broken)
    assert found.fault.detail == "Engine e1 has not said what it serves."
    assert found.because == world.view.engines["e1"].version


def test_signals_count_from_when_another_step_began():
    world = RolloutWorld(1)
    steps = (
        WaitSignal(id="w", topic="go"),
        SoakStep(id="s", for_s=9, topic="alarm", since="w", depends_on=("w",)),
    )
    plan = world.submit(PlanSpec(name="x", steps=steps))
    world.settle(plan)
    said(world, "alarm")
    said(world, "go")
    assert "on alarm came; none may." in world.run(plan).fault.detail
