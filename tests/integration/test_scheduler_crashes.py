"""Schedulers as processes: two at once, killed in the middle, issue each operation once."""

from __future__ import annotations

import asyncio

import pytest

from controlplanes import ControlPlane, open_hand
from tensorcast.log.port import read_records
from tensorcast.schema.commands import (
    FailOperation,
    RequestReplicas,
    RequestVerification,
    StartOperation,
)
from tensorcast.schema.events import OperationIssued
from tensorcast.schema.faults import Fault, FaultKind
from tensorcast.schema.ids import Epoch, NodeId, Seq, Tier, replica_id

NODES = [f"n{number}" for number in range(1, 7)]
ROUNDS = 30


@pytest.fixture
async def hand(nats_server):
    async with open_hand(nats_server.url) as hand:
        yield hand


@pytest.fixture
def schedulers(tmp_path, nats_server):
    both = [ControlPlane(tmp_path, nats_server.url, "") for _ in range(2)]
    yield both
    for plane in both:
        plane.end()


async def read_issued(hand) -> list[OperationIssued]:
    last = await hand.log.last_seq()
    issued = []
    async for batch in read_records(hand.log, after=Seq(0)):
        issued += [one.event for one in batch if isinstance(one.event, OperationIssued)]
        if batch[-1].seq >= last:
            return issued
    raise AssertionError


@pytest.mark.slow
async def test_two_schedulers_and_kill_9_issue_each_operation_once(hand, schedulers):
    await hand.join(*NODES)
    for plane in schedulers:
        await plane.start("scheduler")
    wanted = set()
    for number in range(ROUNDS):
        artifact = await hand.put(f"a{number}", "n1")
        nodes = tuple(map(NodeId, NODES[1:]))
        await hand.write(RequestReplicas(artifact=artifact, nodes=nodes, tier=Tier.DRAM))
        checked = replica_id(artifact, NodeId("n1"), Tier.DRAM)
        await hand.write(RequestVerification(artifact=artifact, replicas=(checked,)))
        wanted |= {(node, artifact, "Materialize") for node in nodes}
        wanted.add((NodeId("n1"), artifact, "Verify"))
        if number % 10 == 5:
            victim = schedulers[number // 10 % 2]
            victim.kill()
            await victim.start("scheduler")
    await hand.until(lambda view: len(view.operations) >= len(wanted), 40)
    await asyncio.sleep(1.0)  # whoever is late would issue it a second time now
    issued = await read_issued(hand)
    assert len({event.operation for event in issued}) == len(issued)
    assert sorted((e.node, e.work.artifact, type(e.work).__name__) for e in issued) == sorted(
        wanted
    )
    assert hand.view.skipped == 0


@pytest.mark.slow
async def test_a_retry_that_was_pending_is_carried_out_by_the_next_scheduler(hand, schedulers):
    await hand.join("n1", "n2")
    artifact = await hand.put("a", "n1")
    first, second = schedulers
    await first.start("scheduler")
    await hand.write(RequestReplicas(artifact=artifact, nodes=(NodeId("n2"),), tier=Tier.DRAM))
    view = await hand.until(lambda view: view.operations)
    (operation,) = view.operations
    await asyncio.sleep(1.5)  # its cursor is stored
    first.kill()
    fault = Fault(kind=FaultKind.UNAVAILABLE, detail="no answer")
    await hand.write(StartOperation(operation=operation, epoch=Epoch(1)))
    await hand.write(FailOperation(operation=operation, epoch=Epoch(1), fault=fault))
    await second.start("scheduler")
    view = await hand.until(lambda view: view.operations[operation].attempt == 2)
    assert view.operations[operation].status == "issued"


async def test_a_scheduler_needs_no_postgres(hand, schedulers):
    await hand.join("n1", "n2")
    artifact = await hand.put("a", "n1")
    await schedulers[0].start("scheduler,timers")
    await hand.write(RequestReplicas(artifact=artifact, nodes=(NodeId("n2"),), tier=Tier.DISK))
    view = await hand.until(lambda view: view.operations)
    (operation,) = view.operations.values()
    assert operation.policy == "replicate"
