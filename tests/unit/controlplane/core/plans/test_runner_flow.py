import pytest

from plan_worlds import AWAY, MIB, PlanWorld
from samples import artifact_id
from tensorcast.controlplane.core.plans.runner import backoff_s, react
from tensorcast.schema.aggregates.plan import PlanStatus, StepStatus
from tensorcast.schema.commands import (
    EmitSignal,
    MoveKey,
    RegisterEngine,
    ServeWeights,
)
from tensorcast.schema.faults import Fault, FaultKind
from tensorcast.schema.ids import Key, NodeId
from tensorcast.schema.plan_commands import CancelPlan, PausePlan, ResumePlan
from tensorcast.schema.plans import (
    CancelStep,
    ConditionStep,
    EmitStep,
    Input,
    MapStep,
    MoveKeyStep,
    OperationStep,
    PlanSpec,
    Question,
    Retry,
    SubPlanStep,
    WaitEngines,
    WaitSignal,
    WaitTime,
)
from tensorcast.schema.signals import Topic

A = artifact_id("a")
N1, N2, N3 = map(NodeId, ("n1", "n2", "n3"))
DENIED = Fault(kind=FaultKind.DENIED, detail="No.")


def spec(*steps, **fields) -> PlanSpec:
    return PlanSpec(name="test", steps=steps, **fields)


def pull(name="pull", node="n2", **fields) -> OperationStep:
    return OperationStep(id=name, artifact=A, node=node, **fields)


def never(*_):
    return AWAY


# ---- effects -------------------------------------------------------------------------------------


def test_a_key_moves_by_compare_and_set():
    world = PlanWorld(artifacts=("a", "b"))
    world.execute(MoveKey(key=Key("live"), artifact=A))
    b = artifact_id("b")
    plan = world.submit(spec(MoveKeyStep(id="move", key="live", artifact=b, expect=A)))
    state = world.run(plan)
    assert state.steps["move"].outputs == {"key": "live", "artifact": b, "previous": A}
    late = world.submit(spec(MoveKeyStep(id="move", key="live", artifact=A, expect="absent")), "q")
    assert world.run(late).fault.detail == f"Key 'live' points to {b}, not to nothing."


def test_a_step_cancels_what_another_one_copies():
    world = PlanWorld()
    plan = world.submit(
        spec(
            pull(),
            WaitSignal(id="enough", topic="enough"),
            CancelStep(id="stop", step="pull", depends_on=("enough",)),
        )
    )
    world.settle(plan)
    world.execute(EmitSignal(topic=Topic("enough")))
    state = world.run(plan)
    assert state.status is PlanStatus.SUCCEEDED
    assert state.steps["pull"].status is StepStatus.CANCELLED
    assert not world.view.open_operations
    assert world.effects == []


# ---- holders -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "met"),
    [
        (Question(left="${input.n}", op="gt", right=3), True),
        (Question(left="${input.n}", op="in", right=[1, 2]), False),
        (Question(left=A, op="is_ready", right="n1"), True),
        (Question(left=A, op="is_ready", right="n2"), False),
        (Question(left="live", op="is_set"), False),
    ],
)
def test_a_condition_runs_one_body(question, met):
    world = PlanWorld()
    step = ConditionStep(
        id="if",
        test=question,
        then=(EmitStep(id="yes", topic="yes"),),
        otherwise=(EmitStep(id="no", topic="no"),),
    )
    plan = world.submit(spec(step, inputs={"n": Input()}), n=5)
    state = world.run(plan)
    assert state.steps["if"].outputs == {"met": met}
    assert set(state.steps) == {"if", "if/yes" if met else "if/no"}


def test_a_map_runs_its_body_for_each_item_within_its_limit():
    world = PlanWorld(4)
    body = (
        OperationStep(id="pull", artifact=A, node="${item}"),
        EmitStep(id="say", topic="copied", data={"node": "${pull.node}", "number": "${index}"}),
    )
    step = MapStep(
        id="each", nodes="all", steps=body, concurrency_max=2, collect="${pull.bytes_moved}"
    )
    plan = world.submit(spec(step, outputs={"moved": "${each.collected}"}))
    most = 0
    while world.view.plans[plan].status is PlanStatus.RUNNING:
        world.settle(plan)
        most = max(most, len(world.view.open_operations))
        world.work()
    assert most == 2
    assert world.view.plans[plan].outputs == {"moved": [0, 4 * MIB, 4 * MIB, 4 * MIB]}
    said = sorted(signal.data["node"] for signal in world.signals(Topic("copied"), 0))
    assert said == ["n1", "n2", "n3", "n4"]


def test_maps_over_artifacts_shards_and_what_a_step_gives():
    world = PlanWorld(artifacts=("a", "b"))
    world.execute(
        MoveKey(key=Key("m-0"), artifact=A), MoveKey(key=Key("m-1"), artifact=artifact_id("b"))
    )
    shard = OperationStep(id="pull", artifact="m-${item}", node="n2")
    plan = world.submit(
        spec(
            MapStep(id="shards", shards=2, steps=(shard,)),
            MapStep(
                id="again",
                items="${shards.items}",
                steps=(EmitStep(id="say", topic="shard", data={"n": "${item}"}),),
            ),
        )
    )
    assert world.run(plan).status is PlanStatus.SUCCEEDED
    assert world.effects == [("materialize", "n2")] * 2
    assert [one.data for one in world.signals(Topic("shard"), 0)] == [{"n": 0}, {"n": 1}]


def test_a_plan_within_a_plan_sees_its_inputs_only():
    world = PlanWorld()
    inner = PlanSpec(
        name="inner",
        inputs={"to": Input(type="node"), "more": Input(default=1)},
        steps=(OperationStep(id="pull", artifact=A, node="${input.to}"),),
        outputs={"moved": "${pull.bytes_moved}"},
    )
    plan = world.submit(
        spec(
            SubPlanStep(id="sub", plan=inner, inputs={"to": "n2"}),
            EmitStep(id="say", topic="moved", data={"bytes": "${sub.moved}"}),
        )
    )
    assert world.run(plan).status is PlanStatus.SUCCEEDED
    (signal,) = world.signals(Topic("moved"), 0)
    assert signal.data == {"bytes": 4 * MIB}


# ---- failures ------------------------------------------------------------------------------------


def test_a_failure_stops_what_runs_beside_it_and_the_plan():
    world = PlanWorld(3)
    plan = world.submit(
        spec(
            pull("slow", "n2"),
            pull("bad", "n3", retry=Retry(attempts=1)),
            EmitStep(id="say", topic="never", depends_on=("bad",)),
        )
    )
    world.settle(plan)
    world.work(never, only="n3")
    state = world.run(plan)
    assert (state.status, state.failed_step) == (PlanStatus.FAILED, "bad")
    assert world.statuses(plan) == {"slow": "cancelled", "bad": "failed"}
    assert not world.view.open_operations


def test_a_failure_to_continue_skips_only_what_needs_its_outputs():
    world = PlanWorld()
    bad = pull("bad", on_failure="continue", retry=Retry(attempts=1))
    plan = world.submit(
        spec(
            bad,
            EmitStep(id="after", topic="after", depends_on=("bad",)),
            EmitStep(id="needs", topic="needs", data={"n": "${bad.node}"}),
            EmitStep(id="further", topic="further", data={"n": "${needs.topic}"}),
        )
    )
    state = world.run(plan, never)
    assert state.status is PlanStatus.SUCCEEDED
    assert world.statuses(plan) == {
        "bad": "failed",
        "after": "succeeded",
        "needs": "skipped",
        "further": "skipped",
    }


def test_a_failure_is_compensated_before_the_plan_fails():
    world = PlanWorld(3)
    undo = (
        EmitStep(id="say", topic="undone", data={"of": "${first.node}"}),
        OperationStep(id="drop", work="evict", artifact=A, node="n2", depends_on=("say",)),
    )
    bad = pull(
        "bad",
        "n3",
        retry=Retry(attempts=1),
        depends_on=("first",),
        on_failure="compensate",
        compensate=undo,
    )
    plan = world.submit(spec(pull("first"), bad, WaitTime(id="long", for_s=1000)))
    state = world.run(plan, lambda node, _: AWAY if node == "n3" else None)
    assert (state.status, state.failed_step) == (PlanStatus.FAILED, "bad")
    assert world.effects == [("materialize", "n2"), ("evict", "n2")]
    assert world.statuses(plan) == {
        "first": "succeeded",
        "long": "cancelled",
        "bad": "failed",
        "bad/compensate/say": "succeeded",
        "bad/compensate/drop": "succeeded",
    }


def test_a_failure_deep_within_stops_its_holders_and_says_where_it_was():
    world = PlanWorld(3)
    body = (OperationStep(id="pull", artifact=A, node="${item}", retry=Retry(attempts=1)),)
    plan = world.submit(spec(MapStep(id="each", nodes=("n2", "n3"), steps=body)))
    state = world.run(plan, lambda node, _: AWAY if node == "n2" else None)
    assert state.status is PlanStatus.FAILED
    assert state.fault.detail == "Step each/0/pull: The source is gone."
    assert not world.view.open_operations


def test_timeouts_and_deadlines():
    world = PlanWorld()
    hang = WaitSignal(id="hang", topic="never", timeout_s=5, retry=Retry(attempts=2, backoff_s=1))
    plan = world.submit(spec(hang))
    state = world.run(plan)
    assert state.fault == Fault(kind=FaultKind.TIMED_OUT, detail="It did not end in 5 s.")
    assert (world.now - state.submitted_at).total_seconds() == 5 + 1 + 5
    late = spec(WaitTime(id="w", for_s=60), pull(deadline_s=10, depends_on=("w",)))
    state = world.run(world.submit(late, "late"))
    assert (state.failed_step, state.fault.kind) == ("pull", FaultKind.TIMED_OUT)
    whole = world.submit(spec(WaitTime(id="w", for_s=60), deadline_s=10), "whole")
    state = world.run(whole)
    assert (state.failed_step, state.fault.detail) == ("", "It took more than 10 s.")


def test_a_holder_that_times_out_takes_all_within_it_along():
    world = PlanWorld()
    body = (pull(),)
    step = ConditionStep(id="if", test=Question(left=1, right=1), then=body, timeout_s=5)
    plan = world.submit(spec(step))
    world.settle(plan)
    world.pass_time(5)
    world.settle(plan)
    assert world.statuses(plan) == {"if": "failed", "if/pull": "cancelled"}
    assert not world.view.open_operations


# ---- the whole plan ------------------------------------------------------------------------------


def test_a_cancelled_plan_stops_a_copy_in_flight():
    world = PlanWorld()
    plan = world.submit(spec(pull(), EmitStep(id="say", topic="x", depends_on=("pull",))))
    world.settle(plan)
    world.execute(CancelPlan(plan=plan, reason="enough"))
    world.settle(plan)
    assert world.view.plans[plan].status is PlanStatus.CANCELLED
    assert not world.view.open_operations
    assert react(world.view, world.view.plans[plan], world.now) == ()


def test_a_paused_plan_begins_nothing_and_goes_on_when_it_is_resumed():
    world = PlanWorld()
    plan = world.submit(spec(pull(), EmitStep(id="say", topic="x", depends_on=("pull",))))
    world.settle(plan)
    world.execute(PausePlan(plan=plan))
    world.work()
    world.settle(plan)
    assert world.statuses(plan) == {"pull": "succeeded"}
    world.execute(ResumePlan(plan=plan))
    assert world.run(plan).status is PlanStatus.SUCCEEDED
    (said,) = [one for one in world.events if one.type == "signal.emitted"]
    assert world.events[[e.id for e in world.events].index(said.cause)].type == "plan.resumed"


def test_the_limit_of_a_plan_and_the_order_of_priorities():
    world = PlanWorld(5)
    steps = [pull(f"p{i}", f"n{i}", priority=i) for i in (2, 3, 4, 5)]
    plan = world.submit(spec(*steps, concurrency_max=1))
    order = []
    while world.view.plans[plan].status is PlanStatus.RUNNING:
        world.settle(plan)
        order += [world.view.operations[name].node for name in world.view.open_operations]
        world.work()
    assert order == ["n5", "n4", "n3", "n2"]


def test_a_wait_for_engines_ends_when_they_serve_the_weights():
    world = PlanWorld()
    plan = world.submit(spec(WaitEngines(id="w", artifact=A, engines=("e1", "e2"))))
    for engine in ("e1", "e2"):
        world.settle(plan)
        assert world.statuses(plan) == {"w": "running"}
        world.execute(
            RegisterEngine(engine=engine, life="1", ttl_s=9),
            ServeWeights(engine=engine, life="1", version="v", artifact=A, since=world.now),
        )
    assert world.run(plan).steps["w"].outputs["engines"] == ["e1", "e2"]


def test_the_backoff_doubles_up_to_its_limit():
    rule = Retry(attempts=100, backoff_s=1, backoff_s_max=30)
    assert [backoff_s(rule, n) for n in (1, 2, 3, 5, 6, 99)] == [1, 2, 4, 16, 30, 30]


def test_every_event_of_a_plan_names_its_cause():
    world = PlanWorld()
    plan = world.submit(spec(pull(), EmitStep(id="say", topic="x", depends_on=("pull",))))
    world.run(plan)
    causes = {one.id: one.type for one in world.events}
    told = [(one.type, causes.get(one.cause)) for one in world.events if one.actor == plan]
    assert told == [
        ("operation.issued", "plan.submitted"),
        ("plan.step_started", "plan.submitted"),
        ("plan.step_succeeded", "operation.succeeded"),
        ("signal.emitted", "plan.step_succeeded"),
        ("plan.step_succeeded", "plan.step_succeeded"),
        ("plan.succeeded", "plan.step_succeeded"),
    ]
