import pytest

from plan_specs import EVERY_KIND
from tensorcast.schema.plan_types import (
    free_references,
    gives,
    item_type,
    needs_of,
    own_references,
    sources_of,
    takes,
)
from tensorcast.schema.plan_values import ValueType
from tensorcast.schema.plans import EmitStep, MapStep

STEPS = {step.id: step for step in EVERY_KIND.steps}
BESIDE = frozenset(STEPS)


@pytest.mark.parametrize("step", EVERY_KIND.steps, ids=lambda step: step.id)
def test_every_kind_says_what_it_takes_and_gives(step):
    assert all(isinstance(field.type, ValueType) for field in takes(step))
    assert all(isinstance(given, ValueType) for given in gives(step).values())


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("publish", set()),
        ("pull", {"publish"}),
        ("fan", {"pull"}),
        ("barrier", set()),
        ("cancel", {"barrier"}),
        ("condition", {"pull"}),
        ("map", {"fan"}),
        ("sub", {"pull"}),
    ],
)
def test_a_step_waits_for_what_it_takes_and_names(name, needs):
    assert needs_of(STEPS[name], BESIDE) == needs


def test_a_holder_waits_for_what_its_bodies_take():
    body = (EmitStep(id="say", topic="t", data={"n": "${fan.nodes}", "i": "${item}"}),)
    step = MapStep(id="m", items=(1,), steps=body, depends_on=("key",))
    assert needs_of(step, BESIDE) == {"fan", "key"}
    assert sources_of(step, BESIDE) == {"fan"}
    assert [str(one) for one in own_references(step)] == []
    assert [str(one) for one in free_references(step)] == ["${fan.nodes}", "${item}"]


@pytest.mark.parametrize(
    ("fields", "item"),
    [
        ({"nodes": "all"}, ValueType.NODE),
        ({"artifacts": ("a",)}, ValueType.ARTIFACT),
        ({"shards": 2}, ValueType.INTEGER),
        ({"items": (1,)}, ValueType.ANY),
    ],
)
def test_what_an_item_is(fields, item):
    assert item_type(MapStep(id="m", steps=(EmitStep(id="e", topic="t"),), **fields)) is item
