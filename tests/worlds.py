"""Cluster views for tests of policies, told as the events that lead to them."""

from __future__ import annotations

from samples import MIB, artifact_id, manifest, record
from tensorcast.schema.cluster import ClusterView, project
from tensorcast.schema.engine_events import EngineRegistered
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import (
    ArtifactSealed,
    Event,
    LeaseAcquired,
    NodeJoined,
    OperationFailed,
    OperationIssued,
    OperationStarted,
    OperationSucceeded,
    ReplicaReady,
    ReplicasRequested,
    ReplicaStarted,
)
from tensorcast.schema.faults import Fault, FaultKind
from tensorcast.schema.ids import (
    ArtifactId,
    EngineId,
    Epoch,
    EventId,
    LeaseId,
    NodeId,
    OperationId,
    Overflow,
    ReplicaId,
    Tier,
    replica_id,
)
from tensorcast.schema.work import Work


class World:
    """A view and the events behind it. Every method adds events; `last` is the newest."""

    def __init__(self) -> None:
        self.view = ClusterView()
        self.events: list[Recorded] = []

    @property
    def last(self) -> Recorded:
        return self.events[-1]

    def then(self, event: Event, *, cause: EventId | None = None, actor: str = "user:ada@desk"):
        """Adds one event; fails when it cannot follow."""
        recorded = record(event, self.view.at + 1, cause=cause, actor=actor)
        self.view = project(self.view, recorded)
        assert self.view.skipped == 0, f"{event} cannot follow"
        self.events.append(recorded)
        return recorded

    def node(
        self,
        name: str,
        *,
        dram: int = 64 * MIB,
        disk: int = 64 * MIB,
        epoch: int = 1,
        overflow: Overflow = Overflow.SPILL,
        labels: dict[str, str] | None = None,
        bandwidth: int = 0,
        store: bool = False,
        ticket_key: str = "",
        gpu: int = 0,
        transports: tuple[str, ...] = ("tcp",),
    ):
        """A node joins, with capacities in bytes; `store`: it has access to the one that all nodes
        share."""
        tiers = {Tier.DRAM: dram, Tier.DISK: disk}
        if store:
            tiers[Tier.OBJECT] = 1 << 48
        if gpu:
            tiers[Tier.GPU] = gpu
        return self.then(
            NodeJoined(
                node=NodeId(name),
                epoch=Epoch(epoch),
                address=f"{name}:1",
                tiers=tiers,
                transports=transports,
                overflow=overflow,
                labels=labels or {},
                bandwidth=bandwidth,
                ticket_key=ticket_key,
            )
        )

    def artifact(self, name: str, *on: str, chunks: int = 4, tier: Tier = Tier.DRAM) -> ArtifactId:
        """A sealed artifact of `chunks` MiB with complete replicas on nodes."""
        artifact = artifact_id(name)
        self.then(ArtifactSealed(artifact=artifact, kind="weights", manifest=manifest(chunks)))
        for node in on:
            self.ready(artifact, node, tier)
        return artifact

    def ready(self, artifact: ArtifactId, node: str, tier: Tier = Tier.DRAM) -> Recorded:
        """A complete replica appears."""
        return self.then(ReplicaReady(**self._replica(artifact, node, tier)))

    def filling(self, artifact: ArtifactId, node: str, tier: Tier = Tier.DRAM) -> Recorded:
        """An empty replica appears."""
        return self.then(ReplicaStarted(**self._replica(artifact, node, tier)))

    def _replica(self, artifact: ArtifactId, node: str, tier: Tier) -> dict[str, object]:
        return {
            "replica": replica_id(artifact, NodeId(node), tier),
            "artifact": artifact,
            "node": NodeId(node),
            "tier": tier,
            "epoch": self.view.nodes[NodeId(node)].epoch,
            "chunks_total": self.view.artifacts[artifact].manifest.chunks_total,
        }

    def replica(self, artifact: ArtifactId, node: str, tier: Tier = Tier.DRAM) -> ReplicaId:
        return replica_id(artifact, NodeId(node), tier)

    def request(self, artifact: ArtifactId, *nodes: str, tier: Tier = Tier.DRAM) -> Recorded:
        """Somebody asks for replicas."""
        names = tuple(map(NodeId, nodes))
        return self.then(ReplicasRequested(artifact=artifact, nodes=names, tier=tier))

    def lease(self, artifact: ArtifactId, node: str | None = None, name: str = "l1") -> Recorded:
        """Somebody takes a lease."""
        return self.then(
            LeaseAcquired(
                lease=LeaseId(name),
                artifact=artifact,
                node=NodeId(node) if node else None,
                holder="engine",
                ttl_s=30.0,
            )
        )

    def engine(self, name: str, *, life: str = "one", node: str | None = None) -> Recorded:
        """An engine registers; it answers at http://NAME."""
        return self.then(
            EngineRegistered(
                engine=EngineId(name),
                life=life,
                kind="vllm",
                node=NodeId(node) if node else None,
                model="m",
                url=f"http://{name}",
                ttl_s=15.0,
            )
        )

    def issue(
        self,
        name: str,
        node: str,
        work: Work,
        *,
        policy: str = "replicate",
        cause: str | None = None,
    ) -> OperationId:
        """An operation is issued."""
        operation = OperationId(name)
        event = OperationIssued(operation=operation, node=NodeId(node), work=work, policy=policy)
        self.then(event, cause=EventId(cause) if cause else None, actor=f"policy:{policy}")
        return operation

    def start(self, operation: OperationId) -> Recorded:
        """Its mover starts it."""
        found = self.view.operations[operation]
        epoch = self.view.nodes[found.node].epoch
        return self.then(OperationStarted(operation=operation, epoch=epoch, attempt=found.attempt))

    def succeed(self, operation: OperationId) -> Recorded:
        """It starts and ends well."""
        self.start(operation)
        epoch = self.view.operations[operation].epoch
        return self.then(OperationSucceeded(operation=operation, epoch=epoch, bytes_moved=1))

    def fail(self, operation: OperationId, kind: FaultKind = FaultKind.UNAVAILABLE) -> Recorded:
        """It starts and fails."""
        self.start(operation)
        epoch = self.view.operations[operation].epoch
        fault = Fault(kind=kind, detail="as the test wants it")
        return self.then(OperationFailed(operation=operation, epoch=epoch, fault=fault))
