from datetime import timedelta

import pytest

from plan_specs import EVERY_KIND
from plan_worlds import MIB, PlanWorld
from samples import artifact_id
from tensorcast.controlplane.core.plans.forecast import Rates, forecast
from tensorcast.schema.commands import IssueOperation
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import NodeId, OperationId
from tensorcast.schema.plans import (
    EmitStep,
    MapStep,
    OperationStep,
    PlanSpec,
    ReplicateStep,
    WaitSignal,
    WaitTime,
)
from tensorcast.schema.work import Materialize, Persist

A = artifact_id("a")
N2 = NodeId("n2")


def told(spec, world=None):
    world = world or PlanWorld(4)
    before = world.view
    found = forecast(world.view, spec, {}, world.now)
    assert world.view is before
    return found, {step.id: step for step in found.steps}


def test_a_dry_run_says_steps_bytes_sources_and_times():
    spec = PlanSpec(
        name="x",
        steps=(
            OperationStep(id="pull", artifact=A, node="n2"),
            WaitTime(id="rest", for_s=5, depends_on=("pull",)),
            ReplicateStep(id="fan", artifact="${pull.artifact}", to="all", depends_on=("rest",)),
        ),
    )
    found, steps = told(spec)
    assert (found.state, found.bytes, found.faults) == ("succeeded", 3 * 4 * MIB, ())
    assert found.seconds == pytest.approx(0.04 + 5 + 0.04)
    pull = steps["pull"]
    assert (pull.nodes, pull.artifact, pull.sources) == (("n2",), A, {"n2": ("n1",)})
    assert (pull.bytes, pull.begins_s, pull.ends_s) == (4 * MIB, 0.0, 0.04)
    assert steps["fan"].begins_s == pytest.approx(5.04)
    assert sorted(steps["fan"].sources) == ["n3", "n4"]


def test_what_is_there_already_moves_nothing():
    found, steps = told(PlanSpec(name="x", steps=(OperationStep(id="p", artifact=A, node="n1"),)))
    assert (found.bytes, found.seconds, steps["p"].status) == (0, 0.0, "succeeded")


def test_what_others_must_say_is_taken_to_come_and_what_follows_from_it_is_not_known():
    spec = PlanSpec(
        name="x",
        steps=(
            WaitSignal(id="ask", topic="asked"),
            EmitStep(id="say", topic="heard", depends_on=("ask",)),
            OperationStep(id="pull", artifact="${ask.data.artifact}", node="n2"),
        ),
    )
    found, steps = told(spec)
    assert (steps["ask"].status, steps["say"].status) == ("assumed", "succeeded")
    assert (steps["pull"].status, steps["pull"].note) == (
        "pending",
        "depends on what is not known before",
    )
    assert found.state == "unknown"


def test_a_failure_that_depends_on_nobody_is_told():
    spec = PlanSpec(
        name="x",
        steps=(
            WaitSignal(id="ask", topic="asked"),
            OperationStep(id="pull", artifact="no-such", node="n2", depends_on=("ask",)),
            OperationStep(id="more", artifact="${pull.artifact}", node="n3"),
        ),
    )
    found, steps = told(spec)
    assert (steps["pull"].status, found.state) == ("failed", "failed")


def test_within_a_map_it_is_not_known_either():
    body = (OperationStep(id="pull", artifact="${ask.data.artifact}", node="${item}"),)
    spec = PlanSpec(
        name="x",
        steps=(
            WaitSignal(id="ask", topic="asked"),
            MapStep(id="all", nodes=("n2", "n3"), steps=body, depends_on=("ask",)),
        ),
    )
    found, steps = told(spec)
    assert found.state == "unknown"
    assert not [step.id for step in steps.values() if step.status == "failed"]


def test_a_map_that_has_begun_is_told_item_by_item():
    body = (OperationStep(id="pull", artifact=A, node="${item}"),)
    _, steps = told(PlanSpec(name="x", steps=(MapStep(id="m", nodes="all", steps=body),)))
    assert {f"m/{n}/pull" for n in range(4)} < set(steps)


def test_every_kind_of_step_can_be_told():
    found, _ = told(EVERY_KIND)
    assert len(found.steps) >= 15


def test_a_plan_that_makes_no_sense_is_refused():
    with pytest.raises(InvalidArgument):
        told(PlanSpec(name="x", steps=(EmitStep(id="a", topic="${b.c}"),)))


def test_rates_are_those_that_were_measured():
    world = PlanWorld(3)
    name = OperationId("op-1")
    work = Materialize(artifact=A)
    world.execute(IssueOperation(operation=name, node=N2, work=work, policy="replicate"))
    world.pass_time(2)
    world.work()
    rates = Rates(world.view)
    operation = world.view.operations[name]
    assert operation.ended_at - operation.issued_at == timedelta(seconds=2)
    assert rates.seconds(world.view, operation) == pytest.approx(2.0)
    elsewhere = IssueOperation(operation=OperationId("op-2"), node="n3", work=work, policy="x")
    world.execute(elsewhere)
    assert rates.seconds(world.view, world.view.operations["op-2"]) == pytest.approx(2.0)
    saved = IssueOperation(
        operation=OperationId("op-3"), node=N2, work=Persist(artifact=A), policy="x"
    )
    world.execute(saved)
    assert rates.seconds(world.view, world.view.operations["op-3"]) is None


def test_a_small_copy_tells_nothing_of_a_large_one():
    world = PlanWorld(3)
    large = world.put("large", "n1", chunks=64)
    name = OperationId("op-1")
    work = Materialize(artifact=A)  # 4 MiB
    world.execute(IssueOperation(operation=name, node=N2, work=work, policy="replicate"))
    world.pass_time(2)
    world.work()
    work = Materialize(artifact=large)
    world.execute(IssueOperation(operation=OperationId("l"), node=N2, work=work, policy="x"))
    told_s = Rates(world.view).seconds(world.view, world.view.operations["l"])
    assert told_s == pytest.approx(0.64)  # as its network can, not 32 s
