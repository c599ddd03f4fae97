import pytest

from plan_specs import EVERY_KIND
from rigs import running_rig
from tensorcast.controlplane.services import api_plans
from tensorcast.controlplane.services.api_commands import run_command
from tensorcast.controlplane.services.api_history import audit_log
from tensorcast.controlplane.services.api_replay import summarize
from tensorcast.schema.api import AuditQuery, Browse, Execute, Show
from tensorcast.schema.api_plans import TryPlan, WaitPlan
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.ids import derive_plan_id
from tensorcast.schema.plan_commands import (
    CancelPlan,
    EndPlan,
    PausePlan,
    StartStep,
    SubmitPlan,
)
from tensorcast.schema.plans import EmitStep, PlanSpec

PLAN = derive_plan_id("p")
SPEC = PlanSpec(name="little", steps=(EmitStep(id="a", topic="t"), EmitStep(id="b", topic="t")))
ADA = "user:ada@desk"


async def submit(rig):
    await run_command(rig.desk, Execute(command=SubmitPlan(plan=PLAN, spec=SPEC), actor=ADA))


async def test_a_plan_is_submitted_listed_and_shown():
    async with running_rig() as rig:
        await submit(rig)
        (listed,) = await api_plans.list_plans(rig.desk, Browse())
        assert (listed.id, listed.name, listed.state, listed.steps) == (
            PLAN,
            "little",
            "running",
            (),
        )
        assert (listed.steps_ended, listed.steps_known) == (0, 2)
        for name in (PLAN, PLAN[5:14], "little"):
            shown = await api_plans.show_plan(rig.desk, Show(what=name))
            assert [(step.id, step.status) for step in shown.steps] == [
                ("a", "pending"),
                ("b", "pending"),
            ]
            assert shown.spec == SPEC
        assert await api_plans.list_plans(rig.desk, Browse(status="failed")) == ()
        with pytest.raises(InvalidArgument):
            await api_plans.list_plans(rig.desk, Browse(status="odd"))
        with pytest.raises(NotFound):
            await api_plans.show_plan(rig.desk, Show(what="nobody"))


async def test_users_pause_and_cancel_by_any_name():
    async with running_rig() as rig:
        await submit(rig)
        for command, state in (
            (PausePlan(plan="little"), "paused"),
            (CancelPlan(plan=PLAN[5:14]), "cancelling"),
        ):
            await run_command(rig.desk, Execute(command=command, actor=ADA))
            assert (await api_plans.show_plan(rig.desk, Show(what=PLAN))).state == state
        odd = SubmitPlan(plan="odd", spec=SPEC)
        with pytest.raises(InvalidArgument):
            await run_command(rig.desk, Execute(command=odd, actor=ADA))


async def test_users_may_not_do_the_runner_s_work():
    async with running_rig() as rig:
        await submit(rig)
        for command in (EndPlan(plan=PLAN), StartStep(plan=PLAN, step="a", attempt=1)):
            with pytest.raises(Exception, match="is not for users"):
                await run_command(rig.desk, Execute(command=command, actor=ADA))
        with pytest.raises(Exception, match="cannot act as"):
            await run_command(rig.desk, Execute(command=PausePlan(plan=PLAN), actor=PLAN))


async def test_a_wait_ends_with_a_change_or_with_its_time():
    async with running_rig() as rig:
        await submit(rig)
        info = await api_plans.wait_plan(rig.desk, WaitPlan(plan=PLAN, since=0, timeout_s=9))
        later = await api_plans.wait_plan(
            rig.desk, WaitPlan(plan=PLAN, since=info.seq, timeout_s=0.01)
        )
        assert later.seq == info.seq
        await rig.execute(PausePlan(plan=PLAN))
        later = await api_plans.wait_plan(
            rig.desk, WaitPlan(plan=PLAN, since=info.seq, timeout_s=9)
        )
        assert later.state == "paused"


async def test_a_plan_is_checked_and_explained():
    async with running_rig() as rig:
        faults = await api_plans.check_request(rig.desk, TryPlan(spec=EVERY_KIND))
        assert "Step pull: there is no node 'n2'." in faults
        found = await api_plans.explain_plan(rig.desk, TryPlan(spec=SPEC))
        assert (found.state, found.seconds) == ("succeeded", 0.0)
        assert [step.status for step in found.steps] == ["succeeded", "succeeded"]


async def test_the_past_knows_plans():
    async with running_rig() as rig:
        await submit(rig)
        await rig.execute(StartStep(plan=PLAN, step="a", attempt=1), actor=PLAN)
        (whole,) = summarize(rig.view, kind="plan", what="little").plans
        assert [step.status for step in whole.steps] == ["running", "pending"]
        (summary,) = summarize(rig.view, kind=None, what=None).plans
        assert summary.steps == ()
        found = await audit_log(rig.desk, AuditQuery(plan="little"))
        assert [one.type for one in found] == ["plan.submitted", "plan.step_started"]
