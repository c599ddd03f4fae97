import pytest

from plan_worlds import AWAY, PlanWorld
from samples import artifact_id
from tensorcast.controlplane.core.plans.tasks import (
    Order,
    Standing,
    inspect,
    issue_wanted,
    make_order,
    order_of,
    own_id,
    own_operations,
    stop_operations,
)
from tensorcast.schema.commands import (
    CancelOperation,
    IssueOperation,
    LoseNode,
    PinArtifact,
    RemoveArtifact,
)
from tensorcast.schema.faults import FaultKind
from tensorcast.schema.ids import NodeId, OperationId, Tier, derive_plan_id
from tensorcast.schema.plans import OperationStep, PlanSpec
from tensorcast.schema.work import Load, Materialize, Persist

A = artifact_id("a")
PLAN = derive_plan_id("p")
N2 = NodeId("n2")


def order(work="fill", node="n2", tier=Tier.DRAM, **fields) -> Order:
    return Order(
        plan=PLAN,
        step=f"to-{node}",
        attempt=1,
        work=work,
        artifact=A,
        nodes=(NodeId(node),),
        tier=tier,
        **fields,
    )


def only(world, wanted, joined=()):
    (task,) = inspect(world.view, wanted, joined)
    return task


def issue(world, wanted):
    commands = issue_wanted(world.view, wanted, inspect(world.view, wanted), ())
    world.execute(*commands)
    return commands


def test_ids_follow_from_plan_step_try_and_node():
    one = order()
    assert own_id(one, 0) == own_id(order(), 0) != own_id(one, 1)


@pytest.mark.parametrize(
    ("wanted", "work"),
    [
        (order(), Materialize(artifact=A, sources=(NodeId("n1"),))),
        (order("materialize", sources=(NodeId("n1"),)), Materialize(artifact=A, sources=("n1",))),
        (order("fill", "n1", Tier.DISK), Persist(artifact=A)),
        (order("persist", "n1", Tier.DISK), Persist(artifact=A)),
        (order("load", tier=Tier.DISK), Load(artifact=A)),
    ],
)
def test_which_work_is_issued(wanted, work):
    world = PlanWorld()
    (command,) = issue(world, wanted)
    assert (command.work, command.policy) == (work, PLAN)
    assert only(world, wanted).standing is Standing.RUNNING


def test_how_a_task_ends():
    world = PlanWorld(3)
    done, failed = order(), order(node="n3")
    issue(world, done)
    issue(world, failed)
    world.work(lambda node, _: AWAY if node == "n3" else None)
    assert only(world, done).standing is Standing.DONE
    assert (only(world, failed).standing, only(world, failed).fault) == (Standing.FAILED, AWAY)


def test_a_cancelled_operation_and_a_lost_node_are_faults():
    world = PlanWorld(3)
    one, two = order(), order(node="n3")
    issue(world, one)
    issue(world, two)
    world.execute(CancelOperation(operation=own_id(one, 0), reason="x"))
    world.execute(LoseNode(node=NodeId("n3"), epoch=1, silent_s=5.0))
    assert only(world, one).fault.kind is FaultKind.CANCELLED
    assert only(world, two).fault.kind is FaultKind.UNAVAILABLE


def test_work_of_others_is_waited_for_and_its_failure_is_not_ours():
    world = PlanWorld()
    other = OperationId("op-other")
    work = Materialize(artifact=A)
    world.execute(IssueOperation(operation=other, node=N2, work=work, policy="replicate"))
    task = only(world, order())
    assert (task.standing, task.operation) == (Standing.RUNNING, other)
    world.execute(CancelOperation(operation=other, reason="x"))
    assert only(world, order(), [other]).standing is Standing.WANTED


@pytest.mark.parametrize(
    ("wanted", "kind"),
    [
        (order("evict", "n1"), FaultKind.DENIED),
        (order("verify", "n2"), FaultKind.NOT_FOUND),
        (order("persist", "n1", Tier.OBJECT), FaultKind.INVALID),
    ],
)
def test_what_may_not_be_is_not_issued(wanted, kind):
    world = PlanWorld()
    world.execute(PinArtifact(artifact=A))
    assert only(world, wanted).fault.kind is kind
    assert issue_wanted(world.view, wanted, inspect(world.view, wanted), ()) == ()


def test_a_removed_artifact_is_brought_nowhere():
    world = PlanWorld()
    world.execute(RemoveArtifact(artifact=A))
    assert only(world, order()).fault.kind is FaultKind.NOT_FOUND
    assert only(world, order("evict", "n2")).standing is Standing.DONE


def test_an_order_comes_from_the_values_that_a_step_began_with():
    world = PlanWorld()
    step = OperationStep(id="s", artifact=A, node="n2")
    plan = world.submit(PlanSpec(name="x", steps=(step,)))
    world.settle(plan)
    state = world.view.plans[plan]
    begun = state.steps["s"]
    assert order_of(state, "s", step, begun) == make_order(plan, "s", step, 1, begun.inputs)
    assert own_operations(world.view, state, "s", begun) == list(world.view.operations)
    (cancel,) = stop_operations(world.view, state, "s", begun)
    assert isinstance(cancel, CancelOperation)
