import msgspec
import pytest

import tensorcast as tc
from tensorcast.client.plan_builder import Plan
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.plan_values import ValueType
from tensorcast.schema.plans import Check, EmitStep, OnFailure, PlanSpec, Step, all_steps


def every_kind() -> Plan:
    plan = tc.Plan("roll out", inputs={"version": "text"}, at_once=4, dedup_id="${input.version}")
    publish = plan.call("publish", engine="a", verb="publish", returns={"artifact": "artifact"})
    pull = plan.operation(
        "pull", artifact=publish["artifact"], node="n2", timeout=60, retry=tc.Retry(attempts=2)
    )
    pull.undo.emit("undo", "undone", {"of": publish["artifact"]})
    fan = plan.replicate("fan", artifact=pull["artifact"], to="all", at_once=2, after=[pull])
    heard = plan.wait_signal("heard", "ready.*", where={"v": plan.input("version")}, count=2)
    plan.wait_key("key", "live", on_failure="continue")
    plan.wait_replicas("copies", artifact=pull["artifact"], count=2)
    plan.wait_engines("engines", artifact=pull["artifact"], engines=["e1"])
    rest = plan.wait_time("rest", 2.5, priority=3)
    plan.barrier("both", [heard, rest], count=1)
    plan.move_key("move", "live", pull["artifact"])
    who = plan.find_engines("who", weights="policy", unless=pull["artifact"])
    plan.soak(
        "soak",
        1,
        engines=who["engines"],
        topic="load.*",
        checks=[Check(field="ttft_s", op="le", value=1)],
        since=heard,
    )
    plan.move_keys("moves", {"a": pull["artifact"], "b": "x"}, expect={"b": "absent"})
    plan.cancel("stop", step=heard, after=["both"])
    branch = plan.condition("if", pull["bytes_moved"], "gt", 0)
    branch.then.emit("yes", "yes")
    branch.otherwise.emit("no", "no", {"met": heard["data"].part("v")})
    each = plan.map("each", nodes=fan["nodes"], at_once=1)
    checked = each.operation("check", work="verify", artifact="x", node=each.item)
    each.collect(checked["node"])
    inner = tc.Plan("inner", inputs={"n": "node"})
    inner.gives(moved=inner.operation("in", artifact="x", node=inner.input("n"))["bytes_moved"])
    sub = plan.plan("sub", inner, {"n": "n3"})
    plan.emit("end", "end", {"moved": sub["moved"], "nodes": each["collected"]})
    return plan.gives(moved=sub["moved"])


def test_every_kind_of_step_can_be_built():
    spec = every_kind().spec
    assert {type(step) for step in all_steps(spec.steps)} == set(Step.__args__)
    steps = {step.id: step for step in spec.steps}
    assert steps["pull"].artifact == "${publish.artifact}"
    assert (steps["pull"].timeout_s, steps["pull"].retry.attempts) == (60, 2)
    assert steps["pull"].on_failure is OnFailure.COMPENSATE
    assert steps["fan"].depends_on == ("pull",)
    assert steps["both"].steps == ("heard", "rest")
    assert (steps["soak"].since, steps["soak"].engines) == ("heard", "${who.engines}")
    assert [move.expect for move in steps["moves"].moves] == ["any", "absent"]
    assert steps["publish"].returns == {"artifact": ValueType.ARTIFACT}
    assert steps["if"].otherwise[0].data == {"met": "${heard.data.v}"}
    assert (spec.concurrency_max, spec.outputs) == (4, {"moved": "${sub.moved}"})
    assert msgspec.json.decode(msgspec.json.encode(spec), type=PlanSpec) == spec


def test_steps_as_they_are_written_can_be_added():
    plan = tc.Plan("x").step(EmitStep(id="a", topic="t"), EmitStep(id="b", topic="t"))
    assert [step.id for step in plan.spec.steps] == ["a", "b"]


def test_an_output_that_a_step_does_not_give_is_refused_at_once():
    plan = tc.Plan("x")
    pull = plan.operation("pull", artifact="a", node="n2")
    with pytest.raises(InvalidArgument, match="gives no 'size'"):
        pull["size"]
    with pytest.raises(InvalidArgument, match="no input 'v'"):
        plan.input("v")


def test_a_plan_that_makes_no_sense_tells_all_its_faults():
    plan = tc.Plan("x")
    plan.emit("a", "t", after=["b"])
    plan.emit("a", "not a topic")
    with pytest.raises(InvalidArgument) as raised:
        _ = plan.spec
    for words in ("is there twice", "no step beside it", "is not a topic"):
        assert words in str(raised.value)
    with pytest.raises(InvalidArgument, match="cannot be written"):
        _ = tc.Plan("").step(EmitStep(id="a", topic="t")).spec
    with pytest.raises(InvalidArgument, match="no option 'timeouts'"):
        plan.emit("c", "t", timeouts=3)
