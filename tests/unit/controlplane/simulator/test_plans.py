"""Plans in a simulated cluster, and in the backtest of its log."""

import msgspec
import pytest

from tensorcast.controlplane.core.catalog import CATALOG
from tensorcast.controlplane.simulator.backtest import measure, rerun, review
from tensorcast.controlplane.simulator.plans import PlanRunner
from tensorcast.controlplane.simulator.workload import Load, Scenario
from tensorcast.controlplane.simulator.world import World
from tensorcast.schema.aggregates.plan import PlanStatus, StepStatus
from tensorcast.schema.cluster import ClusterView, project
from tensorcast.schema.commands import EmitSignal, GrantAccess
from tensorcast.schema.events import SignalEmitted
from tensorcast.schema.ids import derive_plan_id
from tensorcast.schema.namespaces import Right
from tensorcast.schema.plan_commands import SubmitPlan
from tensorcast.schema.plan_values import ValueType
from tensorcast.schema.plans import (
    CallStep,
    EmitStep,
    MapStep,
    MoveKeyStep,
    OperationStep,
    PlanSpec,
    ReplicateStep,
    Retry,
    WaitReplicas,
    WaitSignal,
    WaitTime,
)
from tensorcast.schema.signals import Topic

LOAD = Load(nodes=5, artifacts=20, hour_s=60.0, gets=2.0, puts=0.2, requests=0.2, crashes=0.0)
PLAN = derive_plan_id("p")
ENGINE_S = 1.5
SPEC = PlanSpec(
    name="roll out",
    steps=(
        OperationStep(id="pull", artifact="a0", node="n2", timeout_s=20, retry=Retry(attempts=9)),
        ReplicateStep(id="fan", artifact="${pull.artifact}", to="all", retry=Retry(attempts=9)),
        WaitReplicas(id="there", artifact="a0", count=4),
        CallStep(
            id="ask",
            engine="e1",
            verb="hydrate",
            arguments={"artifact": "${fan.artifact}"},
            returns={"version": ValueType.INTEGER},
        ),
        WaitSignal(id="heard", topic="go", where={"n": "${ask.version}"}),
        WaitTime(id="rest", for_s=3, depends_on=("heard",)),
        MapStep(
            id="each",
            items=("x", "y"),
            steps=(EmitStep(id="say", topic="said", data={"i": "${item}"}),),
            depends_on=("rest",),
        ),
        MoveKeyStep(id="name", key="live", artifact="${pull.artifact}", depends_on=("each",)),
    ),
)


def played(seed: int, load: Load = LOAD, spec: PlanSpec = SPEC) -> Scenario:
    """A cluster in which somebody submits the plan, an engine answers and somebody says `go`."""
    world = World(seed)
    scenario = Scenario(world, load)
    scenario.prepare()
    PlanRunner(world)

    def say(topic: str, data: dict[str, object]) -> None:
        world.try_to(EmitSignal(topic=Topic(topic), data=data), actor="engine:e1@sim")

    def serve(recorded) -> None:
        event = recorded.event
        if isinstance(event, SignalEmitted) and event.topic == "engine.call.e1":
            answer = {"call": event.data["call"], "outputs": {"version": 7}}
            world.agenda.after(ENGINE_S, lambda: say("engine.answer.e1", answer))

    world.watchers.append(serve)
    submit = SubmitPlan(plan=PLAN, spec=spec)
    world.agenda.after(5.0, lambda: world.try_to(submit, actor="user:ada@sim"))
    for at_s, number in ((6.0, 6), (8.0, 7)):
        world.agenda.after(at_s, lambda n=number: say("go", {"n": n}))
    scenario.run()
    return scenario


@pytest.fixture(scope="module")
def log():
    return tuple(played(1).world.log)


def test_a_plan_runs_to_its_end():
    plan = played(1).world.view.plans[PLAN]
    assert (plan.status, plan.fault) == (PlanStatus.SUCCEEDED, None)
    assert plan.steps["ask"].outputs == {"version": 7}
    took_s = plan.steps["rest"].ended_at - plan.steps["rest"].started_at
    assert took_s.total_seconds() == pytest.approx(3.0, abs=0.1)


@pytest.mark.parametrize("seed", range(4))
def test_it_survives_crashes_and_nodes_that_are_cut_off(seed):
    load = Load(
        nodes=5,
        artifacts=20,
        hour_s=60.0,
        gets=2.0,
        crashes=200.0,
        cuts=600.0,
        cut_s=8.0,
        away_s=4.0,
    )
    world = played(seed, load).world
    plan = world.view.plans[PLAN]
    assert plan.status in (PlanStatus.SUCCEEDED, PlanStatus.FAILED)
    assert all(step.status is not StepStatus.RUNNING for step in plan.steps.values())
    found = review(ClusterView(), world.log, CATALOG)
    assert found.plan_strange == ()


def test_the_runner_decides_exactly_what_is_in_the_log(log):
    found = review(ClusterView(), log, CATALOG)
    assert found.is_exact, found
    assert found.plan_events == sum(one.actor == PLAN for one in log) > 20


def test_what_the_runner_would_not_have_written_is_told(log):
    place = next(i for i, one in enumerate(log) if one.type == "plan.step_succeeded")
    changed = list(log)
    other = msgspec.structs.replace(log[place].event, outputs={"bytes_moved": 1})
    changed[place] = msgspec.structs.replace(log[place], event=other)
    found = review(ClusterView(), changed, CATALOG)
    assert log[place].seq in found.plan_strange


def test_the_same_hour_again_runs_the_plan_again(log):
    recorded, again = measure(ClusterView(), log), rerun(ClusterView(), log, CATALOG)
    assert (recorded.plans, again.plans, again.plans_failed) == (1, 1, 0)
    by_plan = sum(one.type == "operation.issued" and one.actor == PLAN for one in log)
    assert by_plan > 0
    assert again.operations >= by_plan


def test_part_of_a_log_with_a_plan_that_runs(log):
    began = next(i for i, one in enumerate(log) if one.type == "plan.step_started")
    place = next(i for i in range(began, len(log)) if log[i].actor == "mover:n2") + 1
    view = ClusterView()
    for recorded in log[:place]:
        view = project(view, recorded)
    assert review(view, log[place:], CATALOG).plan_strange == ()
    assert rerun(view, log[place:], CATALOG).plans == 1


def test_what_who_submitted_it_may_not_do_ends_it():
    world = World(0)
    scenario = Scenario(world, LOAD)
    scenario.prepare()
    PlanRunner(world)
    grant = GrantAccess(namespace="team", who="bob", rights=(Right.READ,))
    world.try_to(grant, actor="user:carl@sim")
    spec = PlanSpec(
        name="x",
        steps=(
            EmitStep(id="say", topic="t"),
            MoveKeyStep(id="name", key="team/live", artifact="a0", depends_on=("say",)),
        ),
    )
    world.try_to(SubmitPlan(plan=PLAN, spec=spec), actor="user:ada@sim")
    world.agenda.run(5.0)
    plan = world.view.plans[PLAN]
    assert (plan.status, plan.failed_step) == (PlanStatus.FAILED, "name")
    assert plan.steps["name"].status is StepStatus.FAILED
