"""Several schedulers at once, late and interrupted as they come, issue each operation once."""

from __future__ import annotations

import asyncio
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rigs import read_all
from samples import MIB, artifact_id, manifest
from simulation.network import FarLog
from simulation.processes import Process, start_scheduler
from tensorcast.controlplane.core.decisions import decide_reactions
from tensorcast.log.memory import MemoryCursors, MemoryLog
from tensorcast.schema.cluster import ClusterView, project
from tensorcast.schema.commands import (
    CompleteReplica,
    IssueOperation,
    JoinNode,
    RequestReplicas,
    RequestVerification,
    SealArtifact,
)
from tensorcast.schema.events import OperationIssued
from tensorcast.schema.ids import Epoch, NodeId, Tier, replica_id
from tensorcast.schema.work import Materialize, Verify
from virtual_time import run_virtual

NODES = [NodeId(f"n{number}") for number in range(1, 6)]
ARTIFACTS = [artifact_id(name) for name in "abc"]

requests = st.builds(
    RequestReplicas,
    artifact=st.sampled_from(ARTIFACTS),
    nodes=st.lists(st.sampled_from(NODES), min_size=1, unique=True).map(tuple),
    tier=st.just(Tier.DRAM),
)
doubts = st.sampled_from(ARTIFACTS).map(
    lambda artifact: RequestVerification(
        artifact=artifact, replicas=(replica_id(artifact, NODES[0], Tier.DRAM),)
    )
)


async def _prepare(user: Process) -> None:
    """Five nodes; all artifacts are on the first."""
    for node in NODES:
        await user.execute(
            JoinNode(
                node=node,
                epoch=Epoch(1),
                address=f"{node}:1",
                tiers={Tier.DRAM: 1024 * MIB, Tier.DISK: 0},
                transports=("tcp",),
            )
        )
    for artifact in ARTIFACTS:
        await user.execute(
            SealArtifact(artifact=artifact, kind="weights", manifest=manifest()),
            CompleteReplica(
                replica=replica_id(artifact, NODES[0], Tier.DRAM),
                artifact=artifact,
                node=NODES[0],
                tier=Tier.DRAM,
                epoch=Epoch(1),
                chunks_total=4,
            ),
        )


async def _run(commands, seed: int, schedulers: int, crashes: int):
    random = Random(seed)
    log, cursors = MemoryLog(), MemoryCursors()

    def far() -> FarLog:
        return FarLog(log, random, delay_s=1.0, loss=0.1)

    user = Process(FarLog(log, random, delay_s=0.0, loss=0.0))
    user.start(asyncio.Event().wait)
    await _prepare(user)
    running = [start_scheduler(far(), cursors) for _ in range(schedulers)]
    for command in commands:
        await asyncio.sleep(random.random())
        await user.execute(command)
    for _ in range(crashes):
        await asyncio.sleep(random.random() * 3)
        await running.pop(0).kill()
        running.append(start_scheduler(far(), cursors))
    await asyncio.sleep(600)
    for process in (*running, user):
        await process.kill()
    return await read_all(log)


def _decided(history) -> set[str]:
    """The operations that follow from the history, each decided right after its event."""
    view, names = ClusterView(), set()
    for one in history:
        view = project(view, one)
        for decision in decide_reactions(view, one):
            names |= {c.operation for c in decision.commands if isinstance(c, IssueOperation)}
    return names


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(
    commands=st.lists(requests | doubts, min_size=1, max_size=6),
    seed=st.integers(0, 2**32),
    schedulers=st.integers(1, 3),
    crashes=st.integers(0, 3),
)
def test_each_operation_is_issued_exactly_once(commands, seed, schedulers, crashes):
    history = run_virtual(_run(commands, seed, schedulers, crashes))
    issued = [one for one in history if isinstance(one.event, OperationIssued)]
    names = [one.event.operation for one in issued]
    assert len(names) == len(set(names)), "issued twice"
    assert set(names) <= _decided(history), "issued, but not decided"
    assert all(one.actor == f"policy:{one.event.policy}" for one in issued)
    assert _aims(issued) == _wanted(commands), "something is missing, or made twice"


def _aims(issued) -> list[tuple[str, str, str]]:
    return sorted(
        (o.event.node, o.event.work.artifact, type(o.event.work).__name__) for o in issued
    )


def _wanted(commands) -> list[tuple[str, str, str]]:
    """No mover runs, so what was issued once stays open: each aim has one operation."""
    aims = set()
    for command in commands:
        if isinstance(command, RequestReplicas):
            aims |= {
                (node, command.artifact, Materialize.__name__)
                for node in command.nodes
                if node != NODES[0]
            }
        else:
            aims.add((NODES[0], command.artifact, Verify.__name__))
    return sorted(aims)
