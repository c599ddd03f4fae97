"""kill -9 of the control plane after every single append (one event, or several that are appended
as one) that it makes for a plan of 20 steps over 4 nodes, before it learns of it: the plan ends as
it does undisturbed, and no operation runs twice. Minutes:
`scripts/test failover tests/integration/test_failover_plans.py`."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

import pytest

from controlplanes import CLUSTER, ControlPlane, open_hand
from proxies import AppendGate
from samples import artifact_id, manifest
from tensorcast.log.port import read_records
from tensorcast.schema.aggregates.plan import OPEN, PlanStatus
from tensorcast.schema.commands import (
    CompleteReplica,
    DropReplica,
    EvictReplica,
    SealArtifact,
    StartOperation,
    SucceedOperation,
)
from tensorcast.schema.errors import Conflict
from tensorcast.schema.events import OperationIssued, OperationSucceeded, SignalEmitted
from tensorcast.schema.ids import Epoch, NodeId, Seq, Tier, replica_id
from tensorcast.schema.plan_commands import SubmitPlan
from tensorcast.schema.subjects import log_name
from tensorcast.schema.work import Evict, target_tier

pytestmark = [pytest.mark.failover, pytest.mark.timeout(900)]

PURE = Path(__file__).parents[1] / "unit/controlplane/core/plans/test_crashes.py"
MIB = 1 << 20


def load_pure():
    found = importlib.util.spec_from_file_location("crashes", PURE)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture
async def hand(nats_server):
    async with open_hand(nats_server.url) as hand:
        yield hand


def complete(artifact, node, tier):
    return CompleteReplica(
        replica=replica_id(artifact, node, tier),
        artifact=artifact,
        node=node,
        tier=tier,
        epoch=Epoch(1),
        chunks_total=4,
    )


async def obey(hand) -> None:
    """Movers that carry out every operation, once."""
    done = set()
    while True:
        for name in sorted(set(hand.view.open_operations) - done):
            done.add(name)
            operation = hand.view.operations[name]
            node, work, tier = operation.node, operation.work, target_tier(operation.work)
            await hand.write(StartOperation(operation=name, epoch=Epoch(1)))
            if tier is not None:
                await hand.write(complete(work.artifact, node, tier))
            elif isinstance(work, Evict):
                gone = replica_id(work.artifact, node, work.tier)
                await hand.write(EvictReplica(replica=gone, epoch=Epoch(1), reason="plan"))
                await hand.write(DropReplica(replica=gone, epoch=Epoch(1)))
            moved = 4 * MIB if tier is not None else 0
            await hand.write(SucceedOperation(operation=name, epoch=Epoch(1), bytes_moved=moved))
        await asyncio.sleep(0.02)


async def test_kill_9_after_every_event_of_a_plan(hand, nats_server, tmp_path):
    pure = load_pure()
    await hand.join("n1", "n2", "n3", "n4")
    for name in "abc":
        artifact = artifact_id(name)
        seal = SealArtifact(artifact=artifact, kind="weights", manifest=manifest(4))
        await hand.write(seal, complete(artifact, NodeId("n1"), Tier.DRAM))
    movers = asyncio.create_task(obey(hand))
    address = nats_server.url.rpartition("@")[2].removeprefix("nats://")
    gate = AppendGate(address, log_name(CLUSTER), lambda: plane.process.kill())
    plane = ControlPlane(tmp_path, nats_server.url.replace(address, gate.address), "")
    lives = 0
    try:
        await hand.write(SubmitPlan(plan=pure.PLAN, spec=pure.SPEC))
        while hand.view.plans[pure.PLAN].status in OPEN:
            lives += 1
            plane.launch("scheduler")
            await asyncio.to_thread(plane.process.wait, 120)  # it dies of its first append
            await hand.follower.wait_for(Seq(gate.seqs[-1]), 30)
    finally:
        movers.cancel()
        gate.close()
        plane.end()
    plan = hand.view.plans[pure.PLAN]
    assert plan.status is PlanStatus.SUCCEEDED
    assert {p: s.status for p, s in plan.steps.items()} == {
        p: s.status for p, s in pure.WHOLE.view.plans[pure.PLAN].steps.items()
    }
    assert plan.outputs == pure.END["outputs"]
    issued, succeeded, said = await read_effects(hand)
    assert len(set(issued)) == len(issued) == 11
    assert sorted(succeeded) == sorted(issued)
    assert sorted(said) == ["end", "fine", "fine", "fine", "go", "saved"]
    assert hand.view.skipped == 0
    writers = await read_writers(hand)
    assert sorted(set(gate.seqs)) == gate.seqs, "each life has appended once"
    for seq, actor in writers.items():
        if actor == pure.PLAN:
            end = min(one for one in gate.seqs if one >= seq)
            assert {writers[one] for one in range(seq, end + 1)} == {pure.PLAN}
    print(f"killed after each of {len(gate.seqs)} appends, in {lives} lives")


async def read_writers(hand) -> dict[int, str]:
    """Who wrote each event."""
    last, found = await hand.log.last_seq(), {}
    async for batch in read_records(hand.log, after=Seq(0)):
        found |= {one.seq: one.actor for one in batch}
        if batch[-1].seq >= last:
            return found
    raise Conflict("The log ended too early.")


async def read_effects(hand):
    last = await hand.log.last_seq()
    issued, succeeded, said = [], [], []
    async for batch in read_records(hand.log, after=Seq(0)):
        for one in batch:
            match one.event:
                case OperationIssued(operation=name):
                    issued.append(name)
                case OperationSucceeded(operation=name):
                    succeeded.append(name)
                case SignalEmitted(topic=topic):
                    said.append(topic)
        if batch[-1].seq >= last:
            return issued, succeeded, said
    raise Conflict("The log ended too early.")
