"""Every intent: imperative, frozen, one closed union.

`decide` turns it into events or refuses it.
"""

from __future__ import annotations

from datetime import datetime
from typing import get_args

import msgspec

from tensorcast.schema.chunks import ChunkCount, ChunkSet
from tensorcast.schema.events import AggregateKind, Natural
from tensorcast.schema.faults import Detour, Fault
from tensorcast.schema.ids import (
    ArtifactId,
    EngineId,
    Epoch,
    Key,
    LeaseId,
    NodeId,
    OperationId,
    Overflow,
    ReplicaId,
    Tier,
)
from tensorcast.schema.namespaces import Namespace, Rights
from tensorcast.schema.plan_commands import PlanCommand
from tensorcast.schema.signals import Topic
from tensorcast.schema.tensors import Manifest
from tensorcast.schema.work import Work


class _Command(msgspec.Struct, frozen=True, kw_only=True, tag_field="command", tag=True):
    pass


class SealArtifact(_Command, frozen=True, kw_only=True):
    artifact: ArtifactId
    kind: str
    manifest: Manifest
    labels: dict[str, str] = {}
    namespace: Namespace = Namespace("")


class PinArtifact(_Command, frozen=True, kw_only=True):
    artifact: ArtifactId


class UnpinArtifact(_Command, frozen=True, kw_only=True):
    artifact: ArtifactId


class RequestReplicas(_Command, frozen=True, kw_only=True):
    artifact: ArtifactId
    nodes: tuple[NodeId, ...]
    tier: Tier = Tier.DRAM


class RequestVerification(_Command, frozen=True, kw_only=True):
    artifact: ArtifactId
    replicas: tuple[ReplicaId, ...]


class RemoveArtifact(_Command, frozen=True, kw_only=True):
    artifact: ArtifactId


class MoveKey(_Command, frozen=True, kw_only=True):
    """Compare-and-set: `expect` is what the key must point to now; None: it must not exist."""

    key: Key
    artifact: ArtifactId
    expect: ArtifactId | None = None


class RemoveKey(_Command, frozen=True, kw_only=True):
    """`expect`: what the key must point to now; None: anything."""

    key: Key
    expect: ArtifactId | None = None


class StartReplica(_Command, frozen=True, kw_only=True):
    replica: ReplicaId
    artifact: ArtifactId
    node: NodeId
    tier: Tier
    epoch: Epoch
    chunks_total: ChunkCount


class FillReplica(_Command, frozen=True, kw_only=True):
    replica: ReplicaId
    epoch: Epoch
    chunks: ChunkSet


class CompleteReplica(_Command, frozen=True, kw_only=True):
    replica: ReplicaId
    artifact: ArtifactId
    node: NodeId
    tier: Tier
    epoch: Epoch
    chunks_total: ChunkCount


class CorruptReplica(_Command, frozen=True, kw_only=True):
    replica: ReplicaId
    epoch: Epoch
    chunks: ChunkSet
    detail: str


class EvictReplica(_Command, frozen=True, kw_only=True):
    replica: ReplicaId
    epoch: Epoch
    reason: str


class DropReplica(_Command, frozen=True, kw_only=True):
    replica: ReplicaId
    epoch: Epoch


class LoseReplica(_Command, frozen=True, kw_only=True):
    replica: ReplicaId
    epoch: Epoch
    detail: str


class IssueOperation(_Command, frozen=True, kw_only=True):
    operation: OperationId
    node: NodeId
    work: Work
    policy: str


class StartOperation(_Command, frozen=True, kw_only=True):
    operation: OperationId
    epoch: Epoch


class SucceedOperation(_Command, frozen=True, kw_only=True):
    operation: OperationId
    epoch: Epoch
    bytes_moved: Natural
    transports: dict[str, int] = {}
    detours: tuple[Detour, ...] = ()


class FailOperation(_Command, frozen=True, kw_only=True):
    operation: OperationId
    epoch: Epoch
    fault: Fault
    bytes_moved: Natural = 0
    transports: dict[str, int] = {}
    detours: tuple[Detour, ...] = ()


class RetryOperation(_Command, frozen=True, kw_only=True):
    """`attempt`: the number of the try that shall follow; None: the next one."""

    operation: OperationId
    attempt: Natural | None = None


class RerouteOperation(_Command, frozen=True, kw_only=True):
    """Other sources for a materialization that is not over, in place of one that relies on
    `instead_of`. Nothing changes when it does not rely on that node (any more)."""

    operation: OperationId
    sources: tuple[NodeId, ...]
    instead_of: NodeId


class CancelOperation(_Command, frozen=True, kw_only=True):
    operation: OperationId
    reason: str


class JoinNode(_Command, frozen=True, kw_only=True):
    node: NodeId
    epoch: Epoch
    address: str
    tiers: dict[Tier, int]
    transports: tuple[str, ...]
    labels: dict[str, str] = {}
    overflow: Overflow = Overflow.SPILL
    bandwidth: Natural = 0
    ticket_key: str = ""


class LeaveNode(_Command, frozen=True, kw_only=True):
    node: NodeId
    epoch: Epoch


class LoseNode(_Command, frozen=True, kw_only=True):
    node: NodeId
    epoch: Epoch
    silent_s: float


class CordonNode(_Command, frozen=True, kw_only=True):
    node: NodeId


class UncordonNode(_Command, frozen=True, kw_only=True):
    node: NodeId


class DrainNode(_Command, frozen=True, kw_only=True):
    node: NodeId


class ReportPressure(_Command, frozen=True, kw_only=True):
    node: NodeId
    epoch: Epoch
    tier: Tier
    needed_bytes: Natural
    candidates: tuple[ReplicaId, ...]


class ReportRelief(_Command, frozen=True, kw_only=True):
    node: NodeId
    epoch: Epoch
    tier: Tier
    free_bytes: Natural
    candidates: tuple[ReplicaId, ...]


class AcquireLease(_Command, frozen=True, kw_only=True):
    lease: LeaseId
    artifact: ArtifactId
    node: NodeId | None
    holder: str
    ttl_s: float


class ReleaseLease(_Command, frozen=True, kw_only=True):
    lease: LeaseId


class ExpireLease(_Command, frozen=True, kw_only=True):
    lease: LeaseId
    last_seen: datetime


class EmitSignal(_Command, frozen=True, kw_only=True):
    """Each one emits a signal: asking twice emits two."""

    topic: Topic
    data: dict[str, object] = {}

    @property
    def signal(self) -> Topic:
        """The aggregate's id is the topic."""
        return self.topic


class RegisterEngine(_Command, frozen=True, kw_only=True):
    """What is empty stays as this life has said it before."""

    engine: EngineId
    life: str
    kind: str = ""
    node: NodeId | None = None
    model: str = ""
    url: str = ""
    ttl_s: float
    labels: dict[str, str] = {}


class ServeWeights(_Command, frozen=True, kw_only=True):
    engine: EngineId
    life: str
    version: str
    artifact: ArtifactId | None
    since: datetime


class LeaveEngine(_Command, frozen=True, kw_only=True):
    engine: EngineId
    life: str


class LoseEngine(_Command, frozen=True, kw_only=True):
    engine: EngineId
    life: str
    last_seen: datetime


class GrantAccess(_Command, frozen=True, kw_only=True):
    namespace: Namespace
    who: str
    rights: Rights


class RevokeAccess(_Command, frozen=True, kw_only=True):
    namespace: Namespace
    who: str
    rights: Rights


class EnablePolicy(_Command, frozen=True, kw_only=True):
    """`parameters`: those that it has from now on; None: they stay."""

    policy: str
    parameters: dict[str, object] | None = None


class ConfigurePolicy(_Command, frozen=True, kw_only=True):
    policy: str
    parameters: dict[str, object]


class DisablePolicy(_Command, frozen=True, kw_only=True):
    policy: str


class StopPolicy(_Command, frozen=True, kw_only=True):
    policy: str
    reason: str
    detail: str


ArtifactCommand = (
    SealArtifact
    | PinArtifact
    | UnpinArtifact
    | RequestReplicas
    | RequestVerification
    | RemoveArtifact
)
KeyCommand = MoveKey | RemoveKey
ReplicaCommand = (
    StartReplica
    | FillReplica
    | CompleteReplica
    | CorruptReplica
    | EvictReplica
    | DropReplica
    | LoseReplica
)
OperationCommand = (
    IssueOperation
    | StartOperation
    | SucceedOperation
    | FailOperation
    | RetryOperation
    | RerouteOperation
    | CancelOperation
)
NodeCommand = (
    JoinNode
    | LeaveNode
    | LoseNode
    | CordonNode
    | UncordonNode
    | DrainNode
    | ReportPressure
    | ReportRelief
)
LeaseCommand = AcquireLease | ReleaseLease | ExpireLease
EngineCommand = RegisterEngine | ServeWeights | LeaveEngine | LoseEngine
SignalCommand = EmitSignal
NamespaceCommand = GrantAccess | RevokeAccess
PolicyCommand = EnablePolicy | ConfigurePolicy | DisablePolicy | StopPolicy

Command = (
    ArtifactCommand
    | KeyCommand
    | ReplicaCommand
    | OperationCommand
    | NodeCommand
    | LeaseCommand
    | EngineCommand
    | SignalCommand
    | PlanCommand
    | NamespaceCommand
    | PolicyCommand
)

_KINDS: tuple[tuple[AggregateKind, type[Command] | tuple[type[Command], ...]], ...] = (
    (
        AggregateKind.ARTIFACT,
        (
            SealArtifact,
            PinArtifact,
            UnpinArtifact,
            RequestReplicas,
            RequestVerification,
            RemoveArtifact,
        ),
    ),
    (AggregateKind.KEY, (MoveKey, RemoveKey)),
    (
        AggregateKind.REPLICA,
        (
            StartReplica,
            FillReplica,
            CompleteReplica,
            CorruptReplica,
            EvictReplica,
            DropReplica,
            LoseReplica,
        ),
    ),
    (
        AggregateKind.OPERATION,
        (
            IssueOperation,
            StartOperation,
            SucceedOperation,
            FailOperation,
            RetryOperation,
            RerouteOperation,
            CancelOperation,
        ),
    ),
    (
        AggregateKind.NODE,
        (
            JoinNode,
            LeaveNode,
            LoseNode,
            CordonNode,
            UncordonNode,
            DrainNode,
            ReportPressure,
            ReportRelief,
        ),
    ),
    (AggregateKind.LEASE, (AcquireLease, ReleaseLease, ExpireLease)),
    (AggregateKind.ENGINE, (RegisterEngine, ServeWeights, LeaveEngine, LoseEngine)),
    (AggregateKind.SIGNAL, (EmitSignal,)),
    (AggregateKind.PLAN, get_args(PlanCommand)),
    (AggregateKind.NAMESPACE, (GrantAccess, RevokeAccess)),
    (AggregateKind.POLICY, (EnablePolicy, ConfigurePolicy, DisablePolicy, StopPolicy)),
)


def aggregate_of(command: Command) -> tuple[AggregateKind, str]:
    """The aggregate that a command is for: its kind and its id."""
    for kind, types in _KINDS:
        if isinstance(command, types):
            aggregate_id: str = getattr(command, kind.value)
            return kind, aggregate_id
    raise AssertionError(f"{type(command).__name__} is missing from the table of commands")
