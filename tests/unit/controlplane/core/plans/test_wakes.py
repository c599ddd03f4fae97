import pytest

from plan_worlds import PlanWorld
from tensorcast.controlplane.core.plans.wakes import wakes
from tensorcast.schema.commands import CordonNode, EmitSignal
from tensorcast.schema.plan_commands import CancelPlan, EndPlan, PausePlan
from tensorcast.schema.plans import PlanSpec, WaitTime
from tensorcast.schema.signals import Topic


@pytest.fixture
def world():
    world = PlanWorld()
    world.one, world.two = (
        world.submit(PlanSpec(name="x", steps=(WaitTime(id="w", for_s=9),)), name)
        for name in ("one", "two")
    )
    return world


def woken(world):
    return set(wakes(world.view, world.events[-1]))


def test_who_looks_after_what(world):
    world.execute(PausePlan(plan=world.one))
    assert woken(world) == {world.one}
    world.execute(EmitSignal(topic=Topic("t")))
    assert woken(world) == {world.one, world.two}
    world.execute(CordonNode(node="n1"))
    assert woken(world) == set()
    world.execute(CancelPlan(plan=world.one), EndPlan(plan=world.one))
    assert woken(world) == set()
