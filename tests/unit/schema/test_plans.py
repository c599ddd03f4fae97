import msgspec
import pytest
from hypothesis import given, settings

from plan_specs import EVERY_KIND, specs
from tensorcast.schema.plans import (
    ONCE,
    EmitStep,
    OperationStep,
    PlanSpec,
    Retry,
    Step,
    WaitTime,
    all_steps,
    bodies_of,
    kind_of,
    retry_of,
)


@given(specs)
@settings(max_examples=20)
def test_a_plan_survives_a_round_trip(spec):
    assert msgspec.json.decode(msgspec.json.encode(spec), type=PlanSpec) == spec


def test_every_kind_of_step_has_a_name_of_its_own():
    kinds = [kind_of(step) for step in EVERY_KIND.steps]
    assert len(set(kinds)) == len(Step.__args__) == 18
    assert msgspec.json.decode(msgspec.json.encode(EVERY_KIND), type=PlanSpec) == EVERY_KIND


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "x", "steps": []}',
        '{"name": "x", "steps": [{"kind": "no", "id": "a"}]}',
        '{"name": "x", "steps": [{"kind": "emit", "id": "a b", "topic": "t"}]}',
        '{"name": "x", "steps": [{"kind": "emit", "id": "a\\n", "topic": "t"}]}',
        '{"name": "x", "steps": [{"kind": "emit", "id": "a", "topic": "t", "more": 1}]}',
        '{"name": "x", "steps": [{"kind": "emit", "id": "a", "topic": "t", "timeout_s": -1}]}',
        '{"name": "x", "version": 2, "steps": [{"kind": "emit", "id": "a", "topic": "t"}]}',
        '{"name": "", "steps": [{"kind": "emit", "id": "a", "topic": "t"}]}',
    ],
)
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=PlanSpec)


def test_operations_are_tried_again_unless_they_say_otherwise():
    assert retry_of(OperationStep(id="a", artifact="x", node="n")) == Retry()
    assert retry_of(WaitTime(id="a", for_s=1)) == ONCE
    assert retry_of(OperationStep(id="a", artifact="x", node="n", retry=ONCE)) == ONCE


def test_steps_are_found_in_all_bodies():
    named = [step.id for step in all_steps(EVERY_KIND.steps)]
    assert {"inner", "yes", "no", "each", "undo"} <= set(named)
    assert bodies_of(EmitStep(id="a", topic="t")) == ((),)
