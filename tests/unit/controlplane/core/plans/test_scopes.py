import pytest

from plan_worlds import PlanWorld
from samples import artifact_id
from tensorcast.controlplane.core.plans.scopes import (
    active_below,
    bodies,
    compensation,
    items_of,
    open_scopes,
    root_scope,
    window,
)
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.plan_values import parse_reference
from tensorcast.schema.plans import EmitStep, Input, MapStep, OperationStep, PlanSpec, SubPlanStep

A = artifact_id("a")
INNER = PlanSpec(
    name="inner",
    inputs={"n": Input()},
    steps=(OperationStep(id="deep", artifact=A, node="${input.n}"),),
    concurrency_max=3,
)
BODY = (OperationStep(id="pull", artifact=A, node="${item}"), EmitStep(id="e", topic="t"))
SPEC = PlanSpec(
    name="x",
    inputs={"v": Input(default=5)},
    steps=(
        EmitStep(id="first", topic="t"),
        MapStep(id="m", nodes=("n2", "n3"), steps=BODY, concurrency_max=1, depends_on=("first",)),
        SubPlanStep(id="s", plan=INNER, inputs={"n": "n4"}),
        OperationStep(id="c", artifact=A, node="n2", on_failure="compensate", compensate=BODY[1:]),
    ),
)


@pytest.fixture
def world():
    world = PlanWorld(4)
    world.plan = world.submit(SPEC)
    world.settle(world.plan)
    return world


def value(scope, text):
    return scope.lookup(parse_reference(text))


def test_open_bodies_lie_within_those_of_holders_that_run(world):
    scopes = list(open_scopes(root_scope(world.view.plans[world.plan])))
    assert [scope.prefix for scope in scopes] == ["", "m/0/", "s/"]
    root, item, inner = scopes
    assert item.group is root
    assert (inner.group is inner, inner.limit, root.limit) == (True, 3, 16)
    assert item.path("pull") == "m/0/pull"
    assert item.holder == "m"


def test_what_a_body_sees(world):
    root, item, inner = open_scopes(root_scope(world.view.plans[world.plan]))
    assert (value(item, "item"), value(item, "index")) == ("n2", 0)
    assert value(item, "first.topic") == value(root, "first.topic") == "t"
    assert (value(item, "input.v"), value(inner, "input.n")) == (5, "n4")
    for scope, text in (
        (root, "item"),
        (inner, "first.topic"),
        (inner, "input.v"),
        (item, "m.items"),
    ):
        with pytest.raises(InvalidArgument, match="stands for nothing"):
            value(scope, text)


def test_a_map_opens_the_next_item_when_one_is_over(world):
    root = root_scope(world.view.plans[world.plan])
    step, state = SPEC.steps[1], root.state("m")
    assert items_of(state) == ["n2", "n3"]
    assert [body.index for body in bodies(root, step, state)] == [0, 1]
    assert [body.index for body in window(root, step, state)] == [0]
    world.work(only="n2")
    world.settle(world.plan)
    root = root_scope(world.view.plans[world.plan])
    assert [body.index for body in window(root, step, root.state("m"))] == [1]


def test_compensation_and_what_is_active(world):
    root = root_scope(world.view.plans[world.plan])
    assert compensation(root, SPEC.steps[0]) is None
    assert compensation(root, SPEC.steps[3]).prefix == "c/compensate/"
    assert [path for path, _ in active_below(root.plan, "")] == [
        "m/0/pull",
        "s/deep",
        "c",
        "m",
        "s",
    ]
    assert [path for path, _ in active_below(root.plan, "m")] == ["m/0/pull"]


def test_what_a_step_waited_for_last(world):
    root = root_scope(world.view.plans[world.plan])
    assert root.since(SPEC.steps[1]) >= root.state("first").version
    assert root.since(SPEC.steps[0]) >= root.plan.turned
    assert root.missing(SPEC.steps[1]) is None
    assert not root.is_over
    assert not root.has_stopped
    assert root.failure is None
