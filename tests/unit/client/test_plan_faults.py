"""What has not the form of a plan is told in sentences that say what would be right."""

import msgspec
import pytest

from tensorcast.client.plan_faults import tell_faults
from tensorcast.schema.plans import PlanSpec

EMIT = {"kind": "emit", "id": "e", "topic": "t"}
FILL = {"kind": "operation", "id": "a", "artifact": "x", "node": "n1"}


def plan(*steps, **more):
    return {"name": "x", "steps": list(steps), **more}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (plan({**EMIT, "kind": "emt"}), ["Step e: invalid value 'emt' (at kind): use one of op"]),
        (plan({**EMIT, "kind": "emt"}), ["did you mean 'emit'?"]),
        (plan({**FILL, "nod": 1}), ["Step a: object contains unknown field `nod`", "mean 'node'?"]),
        (plan({**FILL, "tier": "ram"}), ["one of gpu, dram, disk, object; did you mean 'dram'?"]),
        (plan({**FILL, "work": "x"}), ["use one of evict, fill, load, materialize, persist, ver"]),
        (plan({**FILL, "retry": {"attempt": 3}}), ["(at retry): use one of attempts, backoff_s"]),
        (plan({**FILL, "id": "a b"}), ["expected a name: letters, digits, '_' and '-', a letter"]),
        (plan(EMIT, step=[]), ["The plan: object contains unknown field `step`", "mean 'steps'?"]),
        (plan(EMIT, inputs={"n": {"type": "floaty"}}), ["inputs.n.type): use one of artifact"]),
        (
            plan({"kind": "map", "id": "m", "nodes": ["n1"], "steps": [{**FILL, "nod": 1}]}),
            ["Step m/a: object contains unknown field `nod` (at steps[0])", "did you mean 'node'?"],
        ),
        (
            plan({"kind": "plan", "id": "p", "plan": plan({**EMIT, "kind": "emi"})}),
            ["Step p/e: invalid value 'emi'", "did you mean 'emit'?"],
        ),
        (
            plan({**EMIT, "compensate": [{**EMIT, "id": "c", "topics": 1}]}),
            ["Step e/c: object contains unknown field `topics`", "did you mean 'topic'?"],
        ),
        (plan({**EMIT, "data": {"x": [float("nan")]}}), ["Step e: data.x[0] is NaN or infinite"]),
        (plan(EMIT, inputs={"n": {"default": float("inf")}}), ["The plan: inputs.n.default is Na"]),
    ],
)
def test_a_fault_names_the_step_and_what_would_be_right(said, words):
    (fault,) = tell_faults(said)
    assert all(one in fault for one in words), fault


def test_what_is_a_plan_has_no_fault_and_another_error_is_told():
    said = plan(EMIT)
    assert tell_faults(said) == ()
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert(3, PlanSpec)
    assert tell_faults(said, raised.value) == ("expected `object`, got `int`.",)


def test_all_faults_are_told_at_once():
    said = plan(
        {**FILL, "nod": 1, "tier": "ram", "timeout_s": -1, "retry": {"attempts": 0, "tries": 2}},
        {"kind": "operation", "id": "b", "work": "dance"},
        {"kind": "map", "id": "m", "nodes": 7, "steps": [{**EMIT, "topics": 1}, {"kind": "emt"}]},
        "nothing",
        concurrency=3,
        inputs={"n": {"type": "floaty"}},
    )
    told = tell_faults(said)
    for words in (
        "unknown field `nod`",
        "invalid enum value 'ram'",
        "(at timeout_s)",
        "unknown field `tries`",
        "(at retry.attempts)",
        "'dance'",
        "missing required field `artifact`",
        "missing required field `node`",
        "(at nodes)",
        "unknown field `topics`",
        "'emt'",
        "Step number 4",
        "unknown field `concurrency`",
        "'floaty'",
    ):
        assert sum(words in one for one in told) == 1, (words, told)
