from plan_worlds import AWAY, PlanWorld
from samples import artifact_id
from tensorcast.controlplane.core.plans.telling import count_ended, tell_steps
from tensorcast.schema.plans import EmitStep, MapStep, OnFailure, OperationStep, PlanSpec, Retry

A = artifact_id("a")


def test_steps_are_told_in_order_also_those_to_come():
    world = PlanWorld(3)
    body = (OperationStep(id="pull", artifact=A, node="${item}"), EmitStep(id="e", topic="t"))
    bad = OperationStep(
        id="bad",
        artifact=A,
        node="n2",
        retry=Retry(attempts=1),
        on_failure=OnFailure.COMPENSATE,
        compensate=(EmitStep(id="undo", topic="u"),),
        depends_on=("m",),
    )
    plan = world.submit(PlanSpec(name="x", steps=(MapStep(id="m", nodes=("n3",), steps=body), bad)))

    def told():
        state = world.view.plans[plan]
        return [(s.path(step), one and one.status.value) for s, step, one in tell_steps(state)]

    assert told() == [("m", None), ("bad", None)]
    world.settle(plan)
    assert told() == [
        ("m", "running"),
        ("m/0/pull", "running"),
        ("m/0/e", "succeeded"),
        ("bad", None),
    ]
    assert count_ended(world.view.plans[plan]) == (1, 4)
    world.run(plan, lambda node, _: AWAY if node == "n2" else None)
    assert told()[-2:] == [("bad", "failed"), ("bad/compensate/undo", "succeeded")]
