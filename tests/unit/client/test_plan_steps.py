"""What a step is given in Python is checked at once: one sentence, with its name."""

import math
import re

import pytest

import tensorcast as tc
from tensorcast.client.plan_builder import Plan
from tensorcast.client.plan_calls import read
from tensorcast.client.plan_steps import ids_of, listed
from tensorcast.schema.errors import InvalidArgument

WRONG = {
    "to": lambda p: p.replicate("s", artifact="a", to=3),
    "artifact": lambda p: p.operation("s", artifact=5, node="n1"),
    "sources": lambda p: p.operation("s", artifact="a", node="n1", sources=3),
    "mean 'dram'": lambda p: p.operation("s", artifact="a", node="n1", tier="ram"),
    "retry": lambda p: p.operation("s", artifact="a", node="n1", retry=3),
    "attempts": lambda p: p.emit("s", "t", retry=tc.Retry(attempts="x")),
    "mean 'stop'": lambda p: p.emit("s", "t", on_failure="stopp"),
    "depends_on": lambda p: p.emit("s", "t", after=3),
    "mean 'timeout'": lambda p: p.emit("s", "t", timeot=3),
    "which is called 'after' in Python.": lambda p: p.emit("s", "t", depends_on=["r"]),
    "no option 'zzz'. Every": lambda p: p.emit("s", "t", zzz=3),
    "at data": lambda p: p.emit("s", "t", 3),
    "JSON cannot hold": lambda p: p.emit("s", "t", {"x": math.nan}),
    "for_s is NaN or infinite": lambda p: p.wait_time("s", math.inf),
    "nothing that a plan can hold": lambda p: p.emit("s", "t", {"x": object()}),
    "at steps": lambda p: p.barrier("s", 3),
    "test.op": lambda p: p.condition("s", 1, "equals", 2),
    "items": lambda p: p.map("s", items=3),
    "at plan": lambda p: p.plan("s", 3),
    "returns": lambda p: p.call("s", engine="e", verb="v", returns={"x": "floaty"}),
}


@pytest.mark.parametrize("words", WRONG)
def test_what_a_step_cannot_have_is_told_with_its_name(words):
    with pytest.raises(InvalidArgument) as raised:
        WRONG[words](Plan("x"))
    told = str(raised.value)
    assert told.startswith("Step s")
    assert words in told


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Plan("x", inputs={"n": "numbr"}), "type 'numbr', which is none; did you mean 'nu"),
        (lambda: Plan("x", inputs=3), "The inputs of plan 'x' are 3"),
        (lambda: Plan("x").add(3), "int is no step"),
        (lambda: Plan("x", labels=3).spec, "at labels"),
        (lambda: Plan("x", at_once="s").spec, "at concurrency_max"),
        (lambda: Plan("x").gives(n=3).spec, "outputs"),
        (lambda: read(None), "None is no plan. Give a tc.Plan"),
        (lambda: Plan("x").operation("a", artifact="a", node="n")["artifct"], "mean 'artifact'?"),
    ],
)
def test_what_a_plan_cannot_have(make, words):
    with pytest.raises(InvalidArgument, match=re.escape(words)):
        make()


def test_steps_are_named_by_themselves_or_by_name():
    step = Plan("x").emit("a", "t")
    assert ids_of([step, "b"]) == ["a", "b"]
    assert ids_of(step) == ["a"]
    assert ids_of("b") == ["b"]
    plan = Plan("y")
    plan.emit("b", "t", after=plan.emit("a", "t"))
    assert plan.spec.steps[1].depends_on == ("a",)
    assert listed(n for n in ("n1", "n2")) == ["n1", "n2"]
    assert listed("all") == "all"
