"""A plan of 20 steps over 4 nodes, cut after every single append: whoever goes on from the log
alone comes to the same end, and no operation runs twice."""

import pytest

from plan_worlds import PlanWorld
from samples import artifact_id
from tensorcast.controlplane.core.plans.runner import react
from tensorcast.schema.aggregates.plan import PlanStatus
from tensorcast.schema.cluster import ClusterView, project
from tensorcast.schema.commands import EmitSignal, MoveKey
from tensorcast.schema.errors import Conflict
from tensorcast.schema.ids import Key, derive_plan_id
from tensorcast.schema.plans import (
    Barrier,
    ConditionStep,
    EmitStep,
    Input,
    MapStep,
    MoveKeyStep,
    OperationStep,
    PlanSpec,
    Question,
    ReplicateStep,
    SubPlanStep,
    WaitKey,
    WaitReplicas,
    WaitSignal,
    WaitTime,
    all_steps,
)
from tensorcast.schema.signals import Topic

A, B, C = map(artifact_id, "abc")
PLAN = derive_plan_id("p")
INNER = PlanSpec(
    name="inner",
    inputs={"node": Input()},
    steps=(
        OperationStep(id="save", work="persist", artifact=B, node="${input.node}", tier="disk"),
        EmitStep(id="told", topic="saved", data={"n": "${save.node}"}),
    ),
    outputs={"node": "${save.node}"},
)
SPEC = PlanSpec(
    name="twenty steps",
    steps=(
        OperationStep(id="a2", artifact=A, node="n2"),
        OperationStep(id="a3", artifact="${a2.artifact}", node="n3"),
        ReplicateStep(id="fan", artifact=B, to=("n2", "n3", "n4"), depends_on=("a2",)),
        WaitReplicas(id="there", artifact=B, count=4),
        Barrier(id="both", steps=("a2", "a3", "fan"), count=2),
        EmitStep(id="go", topic="go", depends_on=("both",)),
        WaitSignal(id="heard", topic="go", depends_on=("both",)),
        MoveKeyStep(id="name", key="live", artifact=A, depends_on=("heard",)),
        WaitKey(id="named", key="live", artifact=A),
        WaitTime(id="rest", for_s=5, depends_on=("named",)),
        ConditionStep(
            id="if",
            test=Question(left="${a3.node}", right="n3"),
            then=(OperationStep(id="c4", artifact=C, node="n4"),),
            depends_on=("rest",),
        ),
        MapStep(
            id="each",
            nodes="${fan.nodes}",
            steps=(
                OperationStep(id="check", work="verify", artifact=B, node="${item}"),
                EmitStep(id="fine", topic="fine", data={"n": "${check.node}"}),
            ),
            concurrency_max=2,
        ),
        SubPlanStep(id="sub", plan=INNER, inputs={"node": "n4"}, depends_on=("fan",)),
        OperationStep(
            id="drop", work="evict", artifact=B, node="${sub.node}", depends_on=("each", "there")
        ),
        EmitStep(id="end", topic="end", data={"dropped": "${drop.node}"}),
    ),
    outputs={"dropped": "${drop.node}"},
)


def begin() -> PlanWorld:
    world = PlanWorld(4, artifacts=("a", "b", "c"))
    world.submit(SPEC)
    return world


def resume(events) -> PlanWorld:
    """Another control plane, that knows the log and nothing else."""
    world = PlanWorld(0, artifacts=())
    for recorded in events:
        world.view = project(world.view, recorded)
    world.events = list(events)
    world.now = events[-1].at
    return world


def end_of(world: PlanWorld) -> dict[str, object]:
    """What a run has led to, whenever and in whichever order."""
    plan = world.view.plans[PLAN]
    return {
        "status": plan.status,
        "outputs": plan.outputs,
        "steps": {path: (one.status, one.outputs) for path, one in sorted(plan.steps.items())},
        "operations": sorted(
            (op.node, op.id, op.status, op.attempt) for op in world.view.operations.values()
        ),
        "replicas": sorted((r.id, r.status) for r in world.view.replicas.values()),
        "keys": sorted((k.key, k.artifact) for k in world.view.keys.values()),
        "signals": sorted((s.id, s.emitted) for s in world.view.signals.values()),
    }


def strip_seq(found: dict[str, object]) -> dict[str, object]:
    """Without what depends on the order in which things happen: the position of the signal that was
    heard, and which two of the three steps came to the barrier first."""
    steps = dict(found["steps"])
    if "heard" in steps:
        status, outputs = steps["heard"]
        steps["heard"] = (status, {**outputs, "seq": 0})
    if "both" in steps:
        steps["both"] = steps["both"][0]
    return {**found, "steps": steps}


WHOLE = begin()
WHOLE.run(PLAN)
END = strip_seq(end_of(WHOLE))


def test_the_plan_has_twenty_steps_and_runs_each_operation_once():
    assert len(list(all_steps(SPEC.steps))) == 20
    assert WHOLE.view.plans[PLAN].status is PlanStatus.SUCCEEDED
    assert len(WHOLE.effects) == len(set(WHOLE.view.operations)) == 11
    assert WHOLE.view.signals[Topic("fine")].emitted == 3
    assert WHOLE.view.skipped == 0


@pytest.mark.parametrize("cut", WHOLE.appends)
def test_a_control_plane_that_dies_after_any_append_is_followed_by_another(cut):
    world = resume(WHOLE.events[:cut])
    if PLAN in world.view.plans:
        world.run(PLAN)
        assert strip_seq(end_of(world)) == END
        assert all(op.attempt == 1 for op in world.view.operations.values())


def test_a_decision_that_comes_late_changes_nothing():
    """Two control planes decide at once: the second append is refused whole."""
    world = begin()
    for _ in range(500):
        plan = world.view.plans[PLAN]
        decisions = react(world.view, plan, world.now, world.heard(plan))
        for decision in decisions:
            world.execute(*decision.commands, because=decision.because)
            before = world.view
            with pytest.raises(Conflict):
                world.execute(*decision.commands, because=decision.because)
            assert world.view is before
        if not decisions and not world.work():
            world.pass_time(1)
        if world.view.plans[PLAN].status is PlanStatus.SUCCEEDED:
            break
    assert strip_seq(end_of(world))["operations"] == END["operations"]


def test_a_cut_in_the_middle_of_time_keeps_the_clock_of_the_log():
    world = begin()
    world.settle(PLAN)
    while world.step(PLAN, "rest") is None:
        world.work()
        world.settle(PLAN)
    later = resume(world.events)
    later.pass_time(4)
    later.settle(PLAN)
    assert later.step(PLAN, "rest").status.value == "running"
    later.pass_time(1)
    later.settle(PLAN)
    assert later.step(PLAN, "rest").status.value == "succeeded"


def test_what_others_do_meanwhile_is_no_part_of_the_plan():
    world = begin()
    world.execute(MoveKey(key=Key("other"), artifact=B), EmitSignal(topic=Topic("other")))
    world.run(PLAN)
    assert world.view.plans[PLAN].status is PlanStatus.SUCCEEDED
    assert ClusterView().open_plans == world.view.open_plans == frozenset()
