from datetime import timedelta

import msgspec
import pytest

from plan_worlds import AWAY, MIB, PlanWorld
from samples import artifact_id
from tensorcast.controlplane.core.plans.runner import abandon, next_due, step_at
from tensorcast.schema.aggregates.plan import PlanStatus, StepStatus
from tensorcast.schema.commands import (
    CancelOperation,
    EmitSignal,
    LoseNode,
    MoveKey,
    RequestReplicas,
)
from tensorcast.schema.faults import Fault, FaultKind
from tensorcast.schema.ids import Key, NodeId, Tier
from tensorcast.schema.plan_commands import CancelPlan, SkipStep
from tensorcast.schema.plan_events import StepPath
from tensorcast.schema.plan_values import ValueType
from tensorcast.schema.plans import (
    Barrier,
    CallStep,
    EmitStep,
    Input,
    OperationStep,
    PlanSpec,
    ReplicateStep,
    Retry,
    WaitKey,
    WaitReplicas,
    WaitSignal,
    WaitTime,
)
from tensorcast.schema.signals import Topic
from tensorcast.schema.work import Materialize

A = artifact_id("a")
N1, N2, N3 = map(NodeId, ("n1", "n2", "n3"))
DENIED = Fault(kind=FaultKind.DENIED, detail="No.")


def test_a_plan_that_cannot_go_on_names_the_step_that_it_fails_at():
    world = PlanWorld(2)
    begun = OperationStep(id="a", artifact=A, node="n2")
    plan = world.submit(spec(begun, OperationStep(id="b", artifact=A, node="n2", work="verify")))
    world.look(plan)
    state = world.view.plans[plan]
    (decision,) = abandon(world.view, state, DENIED, StepPath("a"))
    world.execute(*decision.commands, actor=plan)
    ended = world.view.plans[plan]
    assert (ended.status, ended.failed_step, ended.fault) == (PlanStatus.FAILED, "a", DENIED)
    assert {name: one.status for name, one in ended.steps.items()}["a"] is StepStatus.FAILED
    assert abandon(world.view, ended, DENIED) == ()


def test_what_a_command_of_a_decision_is_for():
    move = MoveKey(key=Key("k"), artifact=A)
    skips = [SkipStep(plan="p", step=name, reason="") for name in "ab"]
    commands = (move, skips[0], move, skips[1])
    assert [step_at(commands, place) for place in range(5)] == ["a", "a", "b", "b", ""]


def spec(*steps, **fields) -> PlanSpec:
    return PlanSpec(name="test", steps=steps, **fields)


def pull(name="pull", node="n2", **fields) -> OperationStep:
    return OperationStep(id=name, artifact=A, node=node, **fields)


def never(*_):
    return AWAY


# ---- operations ----------------------------------------------------------------------------------


def test_an_operation_is_issued_once_and_its_end_is_the_end_of_the_step():
    world = PlanWorld()
    plan = world.submit(spec(pull()))
    world.settle(plan)
    (operation,) = world.view.open_operations
    assert world.view.operations[operation].work == Materialize(artifact=A, sources=(N1,))
    assert world.view.operations[operation].policy == plan
    state = world.run(plan)
    assert state.status is PlanStatus.SUCCEEDED
    assert world.effects == [("materialize", "n2")]
    assert state.steps["pull"].outputs == {
        "artifact": A,
        "node": "n2",
        "operation": operation,
        "bytes_moved": 4 * MIB,
        "joined": False,
    }


def test_what_is_there_already_costs_no_operation():
    world = PlanWorld()
    plan = world.submit(spec(pull(node="n1")))
    state = world.run(plan)
    assert state.status is PlanStatus.SUCCEEDED
    assert not world.view.operations
    assert state.steps["pull"].outputs["operation"] == ""


def test_a_second_request_for_the_same_thing_waits_for_the_first():
    world = PlanWorld()
    one, two = world.submit(spec(pull()), "one"), world.submit(spec(pull()), "two")
    world.settle(one)
    world.settle(two)
    assert len(world.view.operations) == 1
    world.work()
    assert world.run(one).steps["pull"].outputs["joined"] is False
    assert world.run(two).steps["pull"].outputs["joined"] is True
    assert world.effects == [("materialize", "n2")]


def test_a_joined_operation_that_somebody_cancels_is_made_anew():
    world = PlanWorld()
    one, two = world.submit(spec(pull()), "one"), world.submit(spec(pull()), "two")
    world.settle(one)
    world.settle(two)
    (first,) = world.view.operations
    world.execute(CancelOperation(operation=first, reason="asked"))
    assert world.run(two).status is PlanStatus.SUCCEEDED
    assert len(world.view.operations) == 2
    assert world.run(one).status is PlanStatus.FAILED


def test_a_plan_that_is_cancelled_leaves_an_operation_that_another_one_waits_for():
    world = PlanWorld()
    one, two = world.submit(spec(pull()), "one"), world.submit(spec(pull()), "two")
    world.settle(one)
    world.settle(two)
    world.execute(CancelPlan(plan=one))
    assert world.run(one).status is PlanStatus.CANCELLED
    assert world.run(two).status is PlanStatus.SUCCEEDED
    assert world.effects == [("materialize", "n2")]


def test_a_replica_that_somebody_asked_for_is_copied_on_when_the_plan_is_cancelled():
    world = PlanWorld()
    plan = world.submit(spec(pull()))
    world.settle(plan)
    world.execute(RequestReplicas(artifact=A, nodes=(N2,)))
    world.execute(CancelPlan(plan=plan))
    assert world.run(plan).status is PlanStatus.CANCELLED
    assert len(world.view.open_operations) == 1


def test_a_failed_try_is_repeated_as_a_new_operation_after_a_while():
    world = PlanWorld()
    plan = world.submit(spec(pull(retry=Retry(attempts=3, backoff_s=2))))
    state = world.run(plan, lambda node, tries: AWAY if tries < 2 else None)
    assert state.status is PlanStatus.SUCCEEDED
    assert state.steps["pull"].attempt == 3
    assert len(world.view.operations) == 3
    assert world.effects == [("materialize", "n2")]
    assert (world.now - state.submitted_at).total_seconds() == 2 + 4


@pytest.mark.parametrize(("fault", "tries"), [(AWAY, 2), (DENIED, 1)])
def test_tries_end_with_their_number_or_with_a_fault_that_no_try_can_help(fault, tries):
    world = PlanWorld()
    plan = world.submit(spec(pull(retry=Retry(attempts=2, backoff_s=1))))
    state = world.run(plan, lambda *_: fault)
    assert state.status is PlanStatus.FAILED
    assert (state.failed_step, state.fault) == ("pull", fault)
    assert len(world.view.operations) == tries


def test_a_node_that_is_away_is_waited_for_by_trying_again():
    world = PlanWorld()
    world.execute(LoseNode(node=N2, epoch=1, silent_s=5.0))
    plan = world.submit(spec(pull()))
    world.settle(plan)
    world.pass_time(1)
    world.settle(plan)
    assert not world.view.operations
    world.join("n2", epoch=2)
    assert world.run(plan).status is PlanStatus.SUCCEEDED


def test_a_node_that_is_lost_in_the_middle_ends_the_try_and_its_operation():
    world = PlanWorld()
    plan = world.submit(spec(pull()))
    world.settle(plan)
    world.execute(LoseNode(node=N2, epoch=1, silent_s=5.0))
    world.settle(plan)
    (operation,) = world.view.operations.values()
    assert operation.status.value == "cancelled"
    assert world.step(plan, "pull").status is StepStatus.RETRYING
    world.join("n2", epoch=2)
    assert world.run(plan).status is PlanStatus.SUCCEEDED


@pytest.mark.parametrize("work", ["persist", "verify", "evict"])
def test_every_kind_of_work(work):
    world = PlanWorld()
    world.execute(*[world._complete(A, N2, Tier.DRAM, 4)])
    tier = Tier.DISK if work == "persist" else Tier.DRAM
    plan = world.submit(spec(pull(work=work, tier=tier)))
    assert world.run(plan).status is PlanStatus.SUCCEEDED
    assert world.effects == [(work, "n2")]


def test_the_last_copy_is_not_evicted():
    world = PlanWorld()
    plan = world.submit(spec(pull(work="evict", node="n1")))
    state = world.run(plan)
    assert state.status is PlanStatus.FAILED
    assert state.fault.kind is FaultKind.DENIED


# ---- fan-out -------------------------------------------------------------------------------------


def test_a_fan_out_is_planned_as_a_whole():
    world = PlanWorld(5)
    plan = world.submit(spec(ReplicateStep(id="fan", artifact=A, to="all")))
    world.settle(plan)
    works = {op.node: op.work for op in world.view.operations.values()}
    assert sorted(works) == ["n2", "n3", "n4", "n5"]
    assert {source for work in works.values() for source in work.sources} != {N1}, "a chain"
    state = world.run(plan)
    assert state.steps["fan"].outputs["nodes"] == ["n1", "n2", "n3", "n4", "n5"]
    assert state.steps["fan"].outputs["bytes_moved"] == 4 * 4 * MIB


def test_a_fan_out_with_a_limit_goes_on_as_nodes_are_done():
    world = PlanWorld(5)
    step = ReplicateStep(id="fan", artifact=A, to="all", concurrency_max=2)
    plan = world.submit(spec(step))
    most = 0
    for _ in range(10):
        world.settle(plan)
        most = max(most, len(world.view.open_operations))
        world.work(only=next(iter(world.view.operations.values())).node) or world.work()
    assert most == 2
    assert world.run(plan).status is PlanStatus.SUCCEEDED


def test_a_try_of_a_fan_out_repeats_only_what_failed():
    world = PlanWorld(4)
    plan = world.submit(spec(ReplicateStep(id="fan", artifact=A, to=("n2", "n3", "n4"))))
    faults = {"n3": 1}
    state = world.run(plan, lambda n, tries: AWAY if tries < faults.get(n, 0) else None)
    assert state.status is PlanStatus.SUCCEEDED
    assert sorted(world.effects) == [("materialize", n) for n in ("n2", "n3", "n4")]
    assert len(world.view.operations) == 4


# ---- the flow of values --------------------------------------------------------------------------


def test_outputs_feed_later_steps():
    world = PlanWorld(3)
    plan = world.submit(
        spec(
            pull(),
            pull("more", "n3", depends_on=("pull",)),
            EmitStep(
                id="say",
                topic="done.${input.run}",
                data={"artifact": "${pull.artifact}", "moved": ["${more.bytes_moved}"]},
            ),
            inputs={"run": Input()},
            outputs={"moved": "${pull.bytes_moved}"},
        ),
        run=7,
    )
    state = world.run(plan)
    (signal,) = world.signals(Topic("done.7"), 0)
    assert signal.data == {"artifact": A, "moved": [4 * MIB]}
    assert signal.actor == plan
    assert state.outputs == {"moved": 4 * MIB}


def test_a_value_of_another_type_than_the_field_wants_ends_the_step_before_it_begins():
    world = PlanWorld()
    ask = WaitSignal(id="ask", topic="asked")
    plan = world.submit(spec(ask, pull(node="${ask.data.node}")))
    world.settle(plan)
    world.execute(EmitSignal(topic=Topic("asked"), data={"node": 7}))
    state = world.run(plan)
    assert state.status is PlanStatus.FAILED
    assert state.fault.detail == "'node' must be the name of a node, not 7."
    assert not world.view.operations


def test_a_key_is_resolved_when_the_step_begins():
    world = PlanWorld(artifacts=("a", "b"))
    world.execute(MoveKey(key=Key("live"), artifact=A))
    plan = world.submit(spec(OperationStep(id="pull", artifact="live", node="n2")))
    world.settle(plan)
    world.execute(MoveKey(key=Key("live"), artifact=artifact_id("b"), expect=A))
    assert world.run(plan).steps["pull"].outputs["artifact"] == A


# ---- waits ---------------------------------------------------------------------------------------


def test_a_wait_for_signals_counts_those_since_the_plan_was_submitted():
    world = PlanWorld()
    world.execute(EmitSignal(topic=Topic("ready.e0"), data={"v": 1}))
    wait = WaitSignal(id="wait", topic="ready.*", where={"v": 1}, count=2, distinct="topic")
    plan = world.submit(spec(WaitTime(id="later", for_s=5), after_later(wait)))
    for topic, version in (("ready.e1", 1), ("ready.e1", 1), ("ready.e2", 2)):
        world.execute(EmitSignal(topic=Topic(topic), data={"v": version}))
    world.run(plan)
    assert world.step(plan, "wait").status is StepStatus.RUNNING
    world.execute(EmitSignal(topic=Topic("ready.e2"), data={"v": 1}))
    state = world.run(plan)
    assert state.status is PlanStatus.SUCCEEDED
    assert state.steps["wait"].outputs["topic"] == "ready.e2"
    assert state.steps["wait"].outputs["all"] == [{"v": 1}, {"v": 1}]


def after_later(step):
    return msgspec.structs.replace(step, depends_on=("later",))


def test_waits_for_a_key_replicas_and_a_time():
    world = PlanWorld()
    plan = world.submit(
        spec(
            WaitKey(id="key", key="live"),
            WaitReplicas(id="copies", artifact="${key.artifact}", count=2),
            WaitTime(id="rest", for_s=30, depends_on=("copies",)),
        )
    )
    world.settle(plan)
    world.execute(MoveKey(key=Key("live"), artifact=A))
    world.settle(plan)
    assert world.statuses(plan) == {"key": "succeeded", "copies": "running"}
    world.execute(world._complete(A, N2, Tier.DRAM, 4))
    world.settle(plan)
    assert next_due(world.view.plans[plan], world.now) == world.now + timedelta(seconds=30)
    assert world.run(plan).status is PlanStatus.SUCCEEDED


def test_a_barrier_of_some_of_the_steps():
    world = PlanWorld(4)
    pulls = [
        pull(f"p{i}", f"n{i}", on_failure="continue", retry=Retry(attempts=1)) for i in (2, 3, 4)
    ]
    plan = world.submit(
        spec(
            *pulls,
            Barrier(id="two", steps=("p2", "p3", "p4"), count=2),
            EmitStep(id="say", topic="two", depends_on=("two",)),
        )
    )
    world.settle(plan)
    world.work(only="n2")
    world.settle(plan)
    assert world.step(plan, "say") is None
    world.work(never, only="n3")
    world.work(only="n4")
    world.settle(plan)
    assert world.step(plan, "say").status is StepStatus.SUCCEEDED


def test_a_barrier_fails_when_too_few_can_come():
    world = PlanWorld(3)
    pulls = [pull(f"p{i}", f"n{i}", on_failure="continue", retry=Retry(attempts=1)) for i in (2, 3)]
    plan = world.submit(spec(*pulls, Barrier(id="both", steps=("p2", "p3"))))
    state = world.run(plan, lambda node, _: AWAY if node == "n3" else None)
    assert (state.status, state.failed_step) == (PlanStatus.FAILED, "both")


def test_a_call_is_emitted_and_its_answer_gives_the_outputs():
    world = PlanWorld()
    call = CallStep(
        id="publish",
        engine="e1",
        verb="publish",
        arguments={"n": 1},
        returns={"artifact": ValueType.ARTIFACT},
    )
    plan = world.submit(
        spec(call, OperationStep(id="pull", artifact="${publish.artifact}", node="n2"))
    )
    world.settle(plan)
    (asked,) = world.signals(Topic("engine.call.e1"), 0)
    assert asked.data == {"call": f"{plan}/publish#1", "verb": "publish", "arguments": {"n": 1}}
    world.execute(EmitSignal(topic=Topic("engine.answer.e1"), data={"call": "other"}))
    world.settle(plan)
    answer = {"call": asked.data["call"], "outputs": {"artifact": A}}
    world.execute(EmitSignal(topic=Topic("engine.answer.e1"), data=answer))
    assert world.run(plan).status is PlanStatus.SUCCEEDED
    assert world.effects == [("materialize", "n2")]


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        ({"fault": {"kind": "invalid", "detail": "No."}}, "No."),
        ({"fault": "nonsense"}, "nonsense"),
        (
            {"outputs": {}},
            "Output 'artifact' of the answer must be the name of an artifact, not None.",
        ),
        ({"outputs": 3}, "The answer must be a mapping, not 3."),
    ],
)
def test_an_answer_that_is_a_fault_or_none(answer, detail):
    world = PlanWorld()
    call = CallStep(id="c", engine="e1", verb="publish", returns={"artifact": ValueType.ARTIFACT})
    plan = world.submit(spec(call))
    world.settle(plan)
    data = {"call": f"{plan}/c#1", **answer}
    world.execute(EmitSignal(topic=Topic("engine.answer.e1"), data=data))
    state = world.run(plan)
    assert (state.status, state.fault.detail) == (PlanStatus.FAILED, detail)
