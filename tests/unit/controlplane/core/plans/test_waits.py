from datetime import timedelta

import pytest

from plan_worlds import PlanWorld
from samples import BEGIN, artifact_id
from tensorcast.controlplane.core.plans.outcomes import Broken
from tensorcast.controlplane.core.plans.scopes import root_scope
from tensorcast.controlplane.core.plans.waits import (
    answer_topic,
    as_fault,
    call_topic,
    due_time,
    is_wanted,
    listening,
    look,
)
from tensorcast.schema.commands import LeaveEngine, RegisterEngine
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.plans import CallStep, PlanSpec, WaitSignal, WaitTime
from tensorcast.schema.signals import Signal

A = artifact_id("a")


def begun(*steps):
    world = PlanWorld()
    plan = world.submit(PlanSpec(name="x", steps=steps))
    world.settle(plan)
    return world, world.view.plans[plan]


def signal(**data):
    return Signal(seq=9, topic="t", at=BEGIN, actor="me", data=data, id="x")


def test_who_listens_to_what():
    _, plan = begun(
        WaitSignal(id="w", topic="a.*", count=3),
        WaitSignal(id="d", topic="b", distinct="n", since="step"),
        CallStep(id="c", engine="e1", verb="v"),
        WaitTime(id="t", for_s=5),
    )
    found = {one.path: one for one in listening(plan)}
    assert sorted(found) == ["c", "d", "w"]
    assert (found["w"].pattern, found["w"].after, found["w"].enough) == (
        "a.*",
        plan.submitted_seq,
        3,
    )
    assert found["d"].after == plan.steps["d"].started_seq
    assert (found["c"].pattern, found["c"].enough) == (answer_topic("e1"), 1)
    assert call_topic("e1") == "engine.call.e1"


@pytest.mark.parametrize(
    ("where", "data", "wanted"),
    [
        ({}, {}, True),
        ({"v": 1}, {"v": 1, "w": 2}, True),
        ({"v": 1}, {"v": 2}, False),
        ({"v": None}, {}, False),
        ({"v": None}, {"v": None}, True),
        ({"v": 1}, {"v": True}, False),
        ({"v": 1}, {"v": 1.0}, True),
    ],
)
def test_which_signals_are_wanted(where, data, wanted):
    _, plan = begun(WaitSignal(id="w", topic="t", where=where))
    (one,) = listening(plan)
    assert is_wanted(one, signal(**data)) is wanted


def test_an_answer_must_name_the_try():
    _, plan = begun(CallStep(id="c", engine="e1", verb="v"))
    (one,) = listening(plan)
    assert is_wanted(one, signal(call=f"{plan.id}/c#1"))
    assert not is_wanted(one, signal(call=f"{plan.id}/c#2"))
    assert not is_wanted(one, signal())


def test_a_call_to_an_engine_that_has_left_is_broken():
    call = CallStep(id="c", engine="e1", verb="v")
    world, plan = begun(call)
    scope = root_scope(plan)
    assert look(world.view, scope, call, plan.steps["c"], BEGIN, {}) is None
    world.execute(
        RegisterEngine(engine="e1", life="1", ttl_s=9), LeaveEngine(engine="e1", life="1")
    )
    found = look(world.view, scope, call, plan.steps["c"], BEGIN, {})
    assert isinstance(found, Broken)
    assert found.fault.detail == "Engine e1 is left."


def test_when_a_time_has_come():
    until = BEGIN + timedelta(seconds=7)
    for step, due in ((WaitTime(id="t", for_s=5), 5), (WaitTime(id="t", until=until), 7)):
        _, plan = begun(step)
        assert due_time(step, plan.steps["t"]) == BEGIN + timedelta(seconds=due)


def test_what_cannot_begin_is_not_tried_again():
    assert as_fault(Unavailable("Away.")).permanent
