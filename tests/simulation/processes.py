"""The processes of a simulated cluster: real schedulers, and movers that only pretend to copy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from rigs import fold, read_all
from simulation.network import FarLog
from tensorcast.controlplane.core.view import is_leased, is_pinned, sealed, used_bytes
from tensorcast.controlplane.services.scheduler import run_scheduler
from tensorcast.log.execute import Origin, execute, plan
from tensorcast.log.follower import Follower
from tensorcast.log.writer import Writer
from tensorcast.schema.aggregates.operation import Operation, OperationStatus
from tensorcast.schema.aggregates.replica import ReplicaStatus
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import (
    Command,
    CompleteReplica,
    CorruptReplica,
    DropReplica,
    EvictReplica,
    FailOperation,
    JoinNode,
    LoseReplica,
    ReportPressure,
    StartOperation,
    StartReplica,
    SucceedOperation,
)
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.faults import Fault, FaultKind
from tensorcast.schema.ids import ArtifactId, Epoch, NodeId, Tier, replica_id
from tensorcast.schema.work import Evict, Load, Materialize, Persist, Verify


class Process:
    """Something that follows the log and writes to it, until it is killed."""

    def __init__(self, log: FarLog) -> None:
        self.log = log
        self.follower = Follower(log)
        self.writer = Writer(log, linger_s=0)
        self._running: asyncio.Task[None] | None = None

    @property
    def view(self):
        return self.follower.view

    def start(self, work: Callable[[], Awaitable[None]]) -> None:
        self._running = asyncio.get_running_loop().create_task(self._live(work))

    async def _live(self, work: Callable[[], Awaitable[None]]) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.follower.run())
            tasks.create_task(self.writer.run())
            await work()

    async def kill(self) -> None:
        """As kill -9: nothing is said. What broke it before is raised here."""
        task, self._running = self._running, None
        if task is None:
            return
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return

    async def execute(self, *commands: Command, cause=None) -> None:
        await execute(self.writer, self.follower, commands, actor="simulation", cause=cause)


def start_scheduler(log: FarLog, cursors) -> Process:
    """A scheduler as in production, that starts at the stored cursor."""
    process = Process(log)
    process.start(lambda: run_scheduler(log, process.writer, cursors, follower=process.follower))
    return process


class Mover(Process):
    """One life of a node's mover: carries out what is issued to it, at random speed, and fails at
    random. It checks claims in the log itself right before it drops anything, as a mover must."""

    def __init__(
        self,
        log: FarLog,
        node: NodeId,
        random: Random,
        *,
        epoch: int,
        dram_bytes: int,
        faults: Callable[[], float],
    ) -> None:
        super().__init__(log)
        self.node = node
        self.epoch = Epoch(epoch)
        self._random = random
        self._dram_bytes = dram_bytes
        self._faults = faults
        self._done: set[tuple[str, int]] = set()

    async def live(self, *, lost: float) -> None:
        """Joins, says which replicas the last life left behind, and works for ever."""
        await self._surely(
            JoinNode(
                node=self.node,
                epoch=self.epoch,
                address=f"{self.node}:1",
                tiers={Tier.DRAM: self._dram_bytes, Tier.DISK: 1 << 40},
                transports=("tcp",),
            )
        )
        for name in sorted(self.view.replicas_by_node.get(self.node, ())):
            replica = self.view.replicas[name]
            is_live = replica.status not in (ReplicaStatus.GONE, ReplicaStatus.LOST)
            if is_live and self._random.random() < lost:
                await self._surely(LoseReplica(replica=name, epoch=self.epoch, detail="crash"))
        while True:
            for name in sorted(self.view.open_operations):
                operation = self.view.operations[name]
                key = (name, operation.attempt)
                if operation.node == self.node and key not in self._done:
                    self._done.add(key)
                    await self._run(operation)
            await asyncio.sleep(0.05)

    async def _surely(self, *commands: Command) -> bool:
        """Until it is in the log; False when the log refuses it for good."""
        while True:
            try:
                await self.execute(*commands)
            except TensorCastError as error:
                if not error.retryable:
                    return False
                await asyncio.sleep(0.1)
            else:
                return True

    async def _run(self, operation: Operation) -> None:
        start = StartOperation(operation=operation.id, epoch=self.epoch)
        if not await self._surely(start):
            return
        await asyncio.sleep(self._random.random() * 2)
        if self._random.random() < self._faults():
            kind = self._random.choice([FaultKind.UNAVAILABLE, FaultKind.TIMED_OUT])
            await self._fail(operation, kind)
            return
        match operation.work:
            case Materialize(artifact=artifact, tier=Tier.DISK):
                if self._has_source(artifact) and sealed(self.view, artifact):
                    await self._make(operation, artifact, Tier.DISK)
                else:
                    await self._fail(operation, FaultKind.UNAVAILABLE)
            case Materialize(artifact=artifact):
                await self._fill(operation, artifact, self._has_source(artifact))
            case Load(artifact=artifact):
                await self._fill(operation, artifact, self._is_ready(artifact, Tier.DISK))
            case Persist(artifact=artifact):
                if self._is_ready(artifact, Tier.DRAM):
                    await self._make(operation, artifact, Tier.DISK)
                else:
                    await self._fail(operation, FaultKind.UNAVAILABLE)
            case Evict():
                await self._evict(operation, operation.work)
            case Verify():
                await self._verify(operation, operation.work)

    async def _fail(self, operation: Operation, kind: FaultKind) -> None:
        fault = Fault(kind=kind, detail="as the simulation wants it")
        await self._surely(FailOperation(operation=operation.id, epoch=self.epoch, fault=fault))

    async def _fill(self, operation: Operation, artifact: ArtifactId, has_source: bool) -> None:
        found = sealed(self.view, artifact)
        if not has_source or found is None:
            await self._fail(operation, FaultKind.UNAVAILABLE)
            return
        free = self._dram_bytes - used_bytes(self.view, self.node, Tier.DRAM)
        needed = found.manifest.size_bytes - free
        if needed > 0 and not self._is_live(artifact):
            await self._report_pressure(needed)
            await self._fail(operation, FaultKind.OUT_OF_CAPACITY)
            return
        await self._make(operation, artifact, Tier.DRAM)

    async def _report_pressure(self, needed: int) -> None:
        candidates = [
            name
            for name in sorted(self.view.replicas_by_node.get(self.node, ()))
            if self.view.replicas[name].status is ReplicaStatus.READY
            and self.view.replicas[name].tier is Tier.DRAM
        ]
        self._random.shuffle(candidates)
        await self._surely(
            ReportPressure(
                node=self.node,
                epoch=self.epoch,
                tier=Tier.DRAM,
                needed_bytes=needed,
                candidates=tuple(candidates),
            )
        )

    async def _make(self, operation: Operation, artifact: ArtifactId, tier: Tier) -> None:
        identity = {
            "replica": replica_id(artifact, self.node, tier),
            "artifact": artifact,
            "node": self.node,
            "tier": tier,
            "epoch": self.epoch,
            "chunks_total": self.view.artifacts[artifact].manifest.chunks_total,
        }
        await self._surely(StartReplica(**identity))
        await asyncio.sleep(self._random.random())
        current = self.view.operations[operation.id]
        if current.status is not OperationStatus.RUNNING:
            await self._surely(DropReplica(replica=identity["replica"], epoch=self.epoch))
            return
        await self._surely(
            CompleteReplica(**identity),
            SucceedOperation(operation=operation.id, epoch=self.epoch, bytes_moved=1),
        )

    async def _evict(self, operation: Operation, work: Evict) -> None:
        """Drops the replica unless it is claimed. The look and the event are one step: nothing
        can come between them."""
        replica = replica_id(work.artifact, self.node, work.tier)
        view = fold(await read_all(self.log.log))
        evict = EvictReplica(replica=replica, epoch=self.epoch, reason=work.reason)
        if not _may_drop(view, work, self.node):
            await self._fail(operation, FaultKind.DENIED)
            return
        try:
            drafts, _ = plan(view, [evict], Origin(actor=f"mover:{self.node}"))
            await self.log.log.append(drafts)
        except TensorCastError:
            await self._fail(operation, FaultKind.UNAVAILABLE)
            return
        await self._surely(
            DropReplica(replica=replica, epoch=self.epoch),
            SucceedOperation(operation=operation.id, epoch=self.epoch, bytes_moved=0),
        )

    async def _verify(self, operation: Operation, work: Verify) -> None:
        replica = replica_id(work.artifact, self.node, work.tier)
        if self._random.random() < self._faults():
            chunks = ChunkSet.of([0])
            await self._surely(
                CorruptReplica(replica=replica, epoch=self.epoch, chunks=chunks, detail="flip")
            )
        await self._surely(
            SucceedOperation(operation=operation.id, epoch=self.epoch, bytes_moved=0)
        )

    def _is_ready(self, artifact: ArtifactId, tier: Tier) -> bool:
        found = self.view.replicas.get(replica_id(artifact, self.node, tier))
        return bool(found and found.status is ReplicaStatus.READY)

    def _is_live(self, artifact: ArtifactId) -> bool:
        found = self.view.replicas.get(replica_id(artifact, self.node, Tier.DRAM))
        return bool(found and found.status not in (ReplicaStatus.GONE, ReplicaStatus.LOST))

    def _has_source(self, artifact: ArtifactId) -> bool:
        return any(
            replica.status is ReplicaStatus.READY
            and self.view.nodes[replica.node].status.value == "up"
            for name in self.view.replicas_by_artifact.get(artifact, ())
            if (replica := self.view.replicas[name]).node != self.node
        )


def _may_drop(view: ClusterView, work: Evict, node: NodeId) -> bool:
    replica = view.replicas[replica_id(work.artifact, node, work.tier)]
    if replica.status is ReplicaStatus.EVICTING:
        return True
    return not is_leased(view, work.artifact, node) and not is_pinned(view, work.artifact)
