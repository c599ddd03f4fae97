import asyncio
from contextlib import asynccontextmanager

import pytest

from plan_specs import EVERY_KIND
from rigs import running_rig
from samples import artifact_id, manifest
from tensorcast.controlplane.services.plans import Runner, run_plans
from tensorcast.log.follower import Follower
from tensorcast.log.writer import Writer
from tensorcast.schema.aggregates.plan import OPEN, PlanStatus
from tensorcast.schema.commands import (
    CompleteReplica,
    EmitSignal,
    JoinNode,
    SealArtifact,
    StartOperation,
    SucceedOperation,
)
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.ids import NodeId, Tier, derive_plan_id, replica_id
from tensorcast.schema.plan_commands import CancelPlan, SubmitPlan
from tensorcast.schema.plans import (
    EmitStep,
    MapStep,
    MoveKeyStep,
    OperationStep,
    PlanSpec,
    WaitSignal,
    WaitTime,
)
from tensorcast.schema.signals import Topic
from tensorcast.schema.work import Materialize

A = artifact_id("a")
PLAN = derive_plan_id("p")


@asynccontextmanager
async def running(rig, runners=1):
    """Runners over the log of a rig, each with a follower of its own."""
    async with asyncio.TaskGroup() as tasks:
        running = []
        for _ in range(runners):
            follower, writer = Follower(rig.log), Writer(rig.log, linger_s=0)
            running += [tasks.create_task(follower.run()), tasks.create_task(writer.run())]
            await follower.wait_for(await rig.log.last_seq(), 5)
            running.append(tasks.create_task(run_plans(rig.log, writer, follower)))
        try:
            yield
        finally:
            for task in running:
                task.cancel()


async def cluster(rig) -> None:
    for name in ("n1", "n2"):
        await rig.execute(
            JoinNode(
                node=NodeId(name),
                epoch=1,
                address=f"{name}:1",
                tiers={Tier.DRAM: 1 << 30},
                transports=("tcp",),
            )
        )
    await rig.execute(
        SealArtifact(artifact=A, kind="weights", manifest=manifest(4)), complete("n1")
    )


def complete(node):
    return CompleteReplica(
        replica=replica_id(A, NodeId(node), Tier.DRAM),
        artifact=A,
        node=NodeId(node),
        tier=Tier.DRAM,
        epoch=1,
        chunks_total=4,
    )


async def over(rig):
    view = await rig.follower.wait_until(lambda view: view.plans[PLAN].status not in OPEN, 30)
    return view.plans[PLAN]


async def issued(rig):
    view = await rig.follower.wait_until(lambda view: len(view.open_operations) > 0, 30)
    return next(iter(view.open_operations))


@pytest.mark.parametrize("runners", [1, 3])
async def test_a_plan_runs_to_its_end_however_many_run_it(runners):
    steps = (
        OperationStep(id="pull", artifact=A, node="n2"),
        EmitStep(id="say", topic="pulled", data={"node": "${pull.node}"}),
        WaitSignal(id="heard", topic="pulled", where={"node": "n2"}),
        WaitTime(id="rest", for_s=0.01, depends_on=("heard",)),
    )
    async with running_rig() as rig, running(rig, runners):
        await cluster(rig)
        await rig.execute(SubmitPlan(plan=PLAN, spec=PlanSpec(name="x", steps=steps)))
        operation = await issued(rig)
        await rig.execute(StartOperation(operation=operation, epoch=1), complete("n2"))
        await rig.execute(SucceedOperation(operation=operation, epoch=1, bytes_moved=7))
        state = await over(rig)
        assert state.status is PlanStatus.SUCCEEDED
        assert state.steps["heard"].outputs["data"] == {"node": "n2"}
        assert rig.view.signals[Topic("pulled")].emitted == 1
        assert len(rig.view.operations) == 1


async def test_a_runner_that_starts_late_finds_signals_that_came_before():
    steps = (WaitSignal(id="w", topic="a.>", count=2, where={"n": 1}),)
    async with running_rig() as rig:
        await rig.execute(EmitSignal(topic=Topic("a.b"), data={"n": 1}))
        await rig.execute(SubmitPlan(plan=PLAN, spec=PlanSpec(name="x", steps=steps)))
        for number in (1, 2, 1):
            await rig.execute(EmitSignal(topic=Topic("a.b"), data={"n": number}))
        async with running(rig):
            assert (await over(rig)).status is PlanStatus.SUCCEEDED


async def test_a_cancelled_plan_ends_and_its_operation_with_it():
    steps = (OperationStep(id="pull", artifact=A, node="n2"),)
    async with running_rig() as rig, running(rig):
        await cluster(rig)
        await rig.execute(SubmitPlan(plan=PLAN, spec=PlanSpec(name="x", steps=steps)))
        await issued(rig)
        await rig.execute(CancelPlan(plan=PLAN))
        assert (await over(rig)).status is PlanStatus.CANCELLED
        assert not rig.view.open_operations


async def test_what_a_plan_waits_for_for_ever_ends_nothing():
    async with running_rig() as rig, running(rig):
        await rig.execute(SubmitPlan(plan=PLAN, spec=EVERY_KIND))
        view = await rig.follower.wait_until(lambda view: "publish" in view.plans[PLAN].steps, 30)
        assert view.plans[PLAN].status is PlanStatus.RUNNING


class Killed(Exception):
    """kill -9."""


class _Dying:
    """A writer whose process dies right after an append, before it learns of it."""

    def __init__(self, writer) -> None:
        self._writer = writer

    async def append(self, drafts):
        await self._writer.append(drafts)
        raise Killed

    async def last_seq(self):
        return await self._writer.last_seq()


async def obey(rig) -> None:
    for name in list(rig.view.open_operations):
        operation = rig.view.operations[name]
        await rig.execute(StartOperation(operation=name, epoch=1))
        if isinstance(operation.work, Materialize):
            await rig.execute(complete(operation.node))
        await rig.execute(SucceedOperation(operation=name, epoch=1, bytes_moved=7))


async def test_a_runner_that_dies_after_every_append_is_followed_by_another():
    body = (
        OperationStep(id="check", work="verify", artifact=A, node="${item}"),
        EmitStep(id="fine", topic="fine", data={"node": "${check.node}"}),
    )
    steps = (
        OperationStep(id="pull", artifact=A, node="n2"),
        MapStep(id="each", items=("n1", "n2"), steps=body, depends_on=("pull",)),
        WaitSignal(id="heard", topic="fine", count=2, distinct="node"),
        MoveKeyStep(id="name", key="live", artifact="${pull.artifact}", depends_on=("heard",)),
    )
    async with running_rig() as rig:
        await cluster(rig)
        await rig.execute(SubmitPlan(plan=PLAN, spec=PlanSpec(name="x", steps=steps)))
        deaths = 0
        while rig.view.plans[PLAN].status in OPEN:
            try:
                await Runner(rig.log, _Dying(rig.writer), rig.follower).look(PLAN)
            except Killed:
                deaths += 1
            await rig.follower.wait_for(await rig.log.last_seq(), 5)
            await obey(rig)
        assert rig.view.plans[PLAN].status is PlanStatus.SUCCEEDED
        assert deaths >= 8
        assert len(rig.view.operations) == 3
        assert rig.view.signals[Topic("fine")].emitted == 2
        assert rig.view.keys["live"].moves == 1


class _Away:
    """A log that cannot be asked; the second time it can."""

    def __init__(self, log) -> None:
        self._log = log
        self.asked = 0

    async def read_one(self, seq):
        self.asked += 1
        if self.asked == 1:
            raise Unavailable("The log is away.")
        return await self._log.read_one(seq)

    async def find_signal(self, pattern, after):
        return await self._log.find_signal(pattern, after)


async def test_a_look_that_is_disturbed_is_repeated():
    steps = (EmitStep(id="say", topic="t"),)
    async with running_rig() as rig:
        await rig.execute(SubmitPlan(plan=PLAN, spec=PlanSpec(name="x", steps=steps)))
        log = _Away(rig.log)
        runner = Runner(log, rig.writer, rig.follower)
        await runner.look(PLAN)
        assert rig.view.plans[PLAN].status is PlanStatus.RUNNING
        await runner.look(PLAN)
        assert rig.view.plans[PLAN].status is PlanStatus.SUCCEEDED


async def test_a_plan_whose_next_event_cannot_be_written_fails():
    large = {"v": "x" * 60_000}
    steps = tuple(EmitStep(id=f"s{n}", topic="t", data=large) for n in range(3))
    spec = PlanSpec(name="x", steps=steps)
    async with running_rig() as rig:
        await rig.execute(SubmitPlan(plan=PLAN, spec=spec))

        class Refusing:
            async def append(self, drafts):
                from tensorcast.schema.errors import InvalidArgument

                if any(draft.event.__class__.__name__ == "SignalEmitted" for draft in drafts):
                    raise InvalidArgument("The event is too large.")
                return await rig.writer.append(drafts)

            async def last_seq(self):
                return await rig.writer.last_seq()

        await Runner(rig.log, Refusing(), rig.follower).look(PLAN)
        state = rig.view.plans[PLAN]
        assert (state.status, state.fault.detail) == (PlanStatus.FAILED, "The event is too large.")
