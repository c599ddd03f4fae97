import pytest

from plan_worlds import PlanWorld
from samples import artifact_id
from tensorcast.controlplane.core.plans.begin import begin, halt
from tensorcast.controlplane.core.plans.scopes import root_scope
from tensorcast.schema.aggregates.plan import Plan
from tensorcast.schema.commands import (
    ConfigurePolicy,
    DisablePolicy,
    EmitSignal,
    IssueOperation,
    MoveKey,
)
from tensorcast.schema.errors import InvalidArgument, NotFound, TensorCastError
from tensorcast.schema.plan_commands import StartStep, StopStep, SucceedStep
from tensorcast.schema.plans import (
    ConditionStep,
    EmitStep,
    MapStep,
    MoveKeyStep,
    OperationStep,
    PlanSpec,
    Question,
    ReplicateStep,
    WaitReplicas,
    WaitTime,
)

A = artifact_id("a")


def first(step, world=None):
    """The commands with which a step would begin."""
    world = world or PlanWorld()
    spec = PlanSpec(name="x", steps=(WaitTime(id="gate", for_s=9), step))
    plan = world.submit(spec, name=str(world.view.at))
    return begin(world.view, root_scope(world.view.plans[plan]), step, 1, ())


def test_the_effect_comes_with_the_event_of_the_step():
    pairs = [
        (OperationStep(id="s", artifact=A, node="n2"), [IssueOperation, StartStep]),
        (EmitStep(id="s", topic="t"), [EmitSignal, SucceedStep]),
        (MoveKeyStep(id="s", key="k", artifact=A), [MoveKey, SucceedStep]),
        (WaitTime(id="s", for_s=1), [StartStep]),
    ]
    for step, kinds in pairs:
        assert [type(command) for command in first(step)] == kinds


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (OperationStep(id="s", artifact="nobody", node="n2"), NotFound),
        (OperationStep(id="s", artifact=A, node="${gate.x}"), InvalidArgument),
        (ReplicateStep(id="s", artifact=A, to=("N 1",)), InvalidArgument),
        (MapStep(id="s", shards=1001, steps=(EmitStep(id="e", topic="t"),)), InvalidArgument),
        (
            ConditionStep(
                id="s",
                test=Question(left="a", op="lt", right=3),
                then=(EmitStep(id="e", topic="t"),),
            ),
            InvalidArgument,
        ),
    ],
)
def test_what_cannot_begin_says_why(step, error):
    world = PlanWorld()
    plan = Plan(
        id="plan-1",
        status="running",
        spec=PlanSpec(name="x", steps=(step,)),
        inputs={},
        actor="me",
        submitted_at=world.now,
        submitted_seq=1,
        turned=1,
    )
    with pytest.raises(error) as raised:
        begin(world.view, root_scope(plan), step, 1, ())
    assert isinstance(raised.value, TensorCastError)


def test_a_signal_must_have_the_shape_of_its_topic():
    shape = {"type": "object", "properties": {"step": {"type": "integer"}}, "required": ["step"]}
    world = PlanWorld()
    world.execute(ConfigurePolicy(policy="topics", parameters={"shapes": {"t.*": shape}}))
    bad, good = (EmitStep(id="s", topic="t.x", data={"step": value}) for value in ("one", 1))
    with pytest.raises(InvalidArgument, match="not as topics"):
        first(bad, world)
    assert first(good, world)
    world.execute(DisablePolicy(policy="topics"))
    assert first(bad, world)


def test_names_are_looked_up_and_all_means_who_accepts():
    (start,) = first(WaitReplicas(id="s", artifact=A[:8], nodes="all"), PlanWorld(3))
    assert start.inputs == {"artifact": A, "count": 1, "nodes": ["n1", "n2", "n3"]}


def test_to_halt_is_to_stop_all_within_and_then_the_step():
    world = PlanWorld(3)
    body = (OperationStep(id="pull", artifact=A, node="${item}"),)
    plan = world.submit(PlanSpec(name="x", steps=(MapStep(id="m", nodes="all", steps=body),)))
    world.settle(plan)
    commands = halt(world.view, world.view.plans[plan], "m", "why")
    stopped = [command.step for command in commands if isinstance(command, StopStep)]
    assert stopped == ["m/1/pull", "m/2/pull", "m"]
    assert len(commands) == 5
