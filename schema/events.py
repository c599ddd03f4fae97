"""Every fact that the log can hold: past tense, frozen, one closed union.

An event names its aggregate (`aggregate_of`), so its subject follows from it. Fields are only ever
added, with a default; anything else is a new version and a step in `upcast.py`.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from tensorcast.schema.chunks import ChunkCount, ChunkSet
from tensorcast.schema.engine_events import ENGINE_EVENT_TYPES, EngineEvent
from tensorcast.schema.faults import Detour, Fault
from tensorcast.schema.ids import (
    ArtifactId,
    Epoch,
    Key,
    LeaseId,
    NodeId,
    OperationId,
    Overflow,
    ReplicaId,
    Tier,
)
from tensorcast.schema.namespaces import NAMESPACE_EVENT_TYPES, Namespace, NamespaceEvent
from tensorcast.schema.plan_events import PLAN_EVENT_TYPES, PlanEvent
from tensorcast.schema.policy_events import POLICY_EVENT_TYPES, PolicyEvent
from tensorcast.schema.signals import Topic
from tensorcast.schema.tensors import Manifest
from tensorcast.schema.work import Work

Natural = Annotated[int, Meta(ge=0)]


class AggregateKind(StrEnum):
    ARTIFACT = "artifact"
    KEY = "key"
    REPLICA = "replica"
    OPERATION = "operation"
    NODE = "node"
    LEASE = "lease"
    ENGINE = "engine"
    SIGNAL = "signal"
    PLAN = "plan"
    NAMESPACE = "namespace"
    POLICY = "policy"


class _Event(msgspec.Struct, frozen=True, kw_only=True):
    pass


# ---- artifact ------------------------------------------------------------------------------


class ArtifactSealed(_Event, frozen=True, kw_only=True):
    """The artifact exists: its content, and so its id, will never change again. `namespace` is that
    of the key that it was put with, if there was one."""

    artifact: ArtifactId
    kind: str
    manifest: Manifest
    labels: dict[str, str] = {}
    namespace: Namespace = Namespace("")


class ArtifactPinned(_Event, frozen=True, kw_only=True):
    """An operator's claim: no replica of it may be evicted."""

    artifact: ArtifactId


class ArtifactUnpinned(_Event, frozen=True, kw_only=True):
    """The claim ends; its replicas may be evicted again."""

    artifact: ArtifactId


class ReplicasRequested(_Event, frozen=True, kw_only=True):
    """Somebody wants the artifact on these nodes in this tier, and to stay there."""

    artifact: ArtifactId
    nodes: tuple[NodeId, ...]
    tier: Tier


class VerificationRequested(_Event, frozen=True, kw_only=True):
    """Somebody wants the bytes of these replicas to be checked against their digests."""

    artifact: ArtifactId
    replicas: tuple[ReplicaId, ...]


class ArtifactRemoved(_Event, frozen=True, kw_only=True):
    """Nobody may use it any more; its replicas are evicted."""

    artifact: ArtifactId


# ---- key -----------------------------------------------------------------------------------


class KeyMoved(_Event, frozen=True, kw_only=True):
    """The key points to `artifact` now; `version` counts its moves from 1."""

    key: Key
    artifact: ArtifactId
    previous: ArtifactId | None
    version: Natural


class KeyRemoved(_Event, frozen=True, kw_only=True):
    """The key points to nothing now; the artifact stays."""

    key: Key
    previous: ArtifactId
    version: Natural


# ---- replica -------------------------------------------------------------------------------


class ReplicaStarted(_Event, frozen=True, kw_only=True):
    """Memory or file space is reserved; chunks begin to arrive."""

    replica: ReplicaId
    artifact: ArtifactId
    node: NodeId
    tier: Tier
    epoch: Epoch
    chunks_total: ChunkCount


class ReplicaFilled(_Event, frozen=True, kw_only=True):
    """These chunks have arrived and match their digests; the replica serves them already."""

    replica: ReplicaId
    epoch: Epoch
    chunks: ChunkSet


class ReplicaReady(_Event, frozen=True, kw_only=True):
    """All chunks are there. It carries the identity, for a `put` makes a replica in one step."""

    replica: ReplicaId
    artifact: ArtifactId
    node: NodeId
    tier: Tier
    epoch: Epoch
    chunks_total: ChunkCount


class ReplicaCorrupted(_Event, frozen=True, kw_only=True):
    """These chunks do not match their digests any more; they are served no longer."""

    replica: ReplicaId
    epoch: Epoch
    chunks: ChunkSet
    detail: str


class ReplicaEvicting(_Event, frozen=True, kw_only=True):
    """It serves no new reader from now on."""

    replica: ReplicaId
    epoch: Epoch
    reason: str


class ReplicaGone(_Event, frozen=True, kw_only=True):
    """Its bytes are dropped."""

    replica: ReplicaId
    epoch: Epoch


class ReplicaLost(_Event, frozen=True, kw_only=True):
    """Its mover looked for it and it was not there (a crash took the memory, a disk was wiped)."""

    replica: ReplicaId
    epoch: Epoch
    detail: str


# ---- operation -----------------------------------------------------------------------------


class OperationIssued(_Event, frozen=True, kw_only=True):
    """`policy` decided that `node` shall do this work; the envelope's cause says why."""

    operation: OperationId
    node: NodeId
    work: Work
    policy: str


class OperationStarted(_Event, frozen=True, kw_only=True):
    """The mover begins try `attempt`, or a later life of it takes the try over."""

    operation: OperationId
    epoch: Epoch
    attempt: Natural


class OperationSucceeded(_Event, frozen=True, kw_only=True):
    """`transports` counts the bytes that each transport moved; `detours` say where one failed and
    another went on."""

    operation: OperationId
    epoch: Epoch
    bytes_moved: Natural
    transports: dict[str, int] = {}
    detours: tuple[Detour, ...] = ()


class OperationFailed(_Event, frozen=True, kw_only=True):
    """The try has ended with `fault`; what it moved before that, as `OperationSucceeded` counts it,
    stays where it is."""

    operation: OperationId
    epoch: Epoch
    fault: Fault
    bytes_moved: Natural = 0
    transports: dict[str, int] = {}
    detours: tuple[Detour, ...] = ()


class OperationRetried(_Event, frozen=True, kw_only=True):
    """It is issued again; `attempt` is the number of the try that follows (from 2)."""

    operation: OperationId
    attempt: Natural


class OperationRerouted(_Event, frozen=True, kw_only=True):
    """A materialization that is under way shall pull from these sources from now on, best first;
    what it has stays."""

    operation: OperationId
    sources: tuple[NodeId, ...]


class OperationCancelled(_Event, frozen=True, kw_only=True):
    """Nobody wants it any more; a mover that runs it stops."""

    operation: OperationId
    reason: str


# ---- node ----------------------------------------------------------------------------------


class NodeJoined(_Event, frozen=True, kw_only=True):
    """A mover's life begins. `address` is host:port of its data port; `tiers` gives capacities
    in bytes; `overflow` is what it does when its memory is full; `bandwidth` is that of its network
    in bytes a second, each way (0: not known); with `ticket_key`, the public half (hexadecimal) of
    an Ed25519 key, it signs what it asks of other movers. What an older epoch still tries to write
    is refused."""

    node: NodeId
    epoch: Epoch
    address: str
    tiers: dict[Tier, int]
    transports: tuple[str, ...]
    labels: dict[str, str] = {}
    overflow: Overflow = Overflow.SPILL
    bandwidth: Natural = 0
    ticket_key: str = ""


class NodeLeft(_Event, frozen=True, kw_only=True):
    """The mover stopped in good order; its replicas are away until it joins again."""

    node: NodeId
    epoch: Epoch


class NodeLost(_Event, frozen=True, kw_only=True):
    """The mover fell silent for `silent_s` seconds."""

    node: NodeId
    epoch: Epoch
    silent_s: float


class NodeCordoned(_Event, frozen=True, kw_only=True):
    """No new replicas are placed on it."""

    node: NodeId


class NodeUncordoned(_Event, frozen=True, kw_only=True):
    """It takes new replicas again; this ends a drain too."""

    node: NodeId


class NodeDrained(_Event, frozen=True, kw_only=True):
    """An operator asks to move its replicas elsewhere; it is cordoned too."""

    node: NodeId


class NodePressured(_Event, frozen=True, kw_only=True):
    """The tier has less room than is needed. `candidates` are replicas that nobody on the node
    reads, the coldest first; `needed_bytes` is what must become free."""

    node: NodeId
    epoch: Epoch
    tier: Tier
    needed_bytes: Natural
    candidates: tuple[ReplicaId, ...]


class NodeRelieved(_Event, frozen=True, kw_only=True):
    """The tier has `free_bytes` to spare. `candidates` are replicas of the node in a slower tier
    that are read often, the most popular first: they may be brought here."""

    node: NodeId
    epoch: Epoch
    tier: Tier
    free_bytes: Natural
    candidates: tuple[ReplicaId, ...]


# ---- lease ---------------------------------------------------------------------------------


class LeaseAcquired(_Event, frozen=True, kw_only=True):
    """`holder` keeps the artifact's replicas from eviction, on `node` or (None) everywhere,
    until it releases the lease or stops to renew it for `ttl_s` seconds."""

    lease: LeaseId
    artifact: ArtifactId
    node: NodeId | None
    holder: str
    ttl_s: float


class LeaseReleased(_Event, frozen=True, kw_only=True):
    """The holder does not need it any more."""

    lease: LeaseId


class LeaseExpired(_Event, frozen=True, kw_only=True):
    """Not renewed since `last_seen`."""

    lease: LeaseId
    last_seen: datetime


# ---- signal --------------------------------------------------------------------------------


class SignalEmitted(_Event, frozen=True, kw_only=True):
    """Somebody has something to say to whoever reads the topic; `data` says what."""

    topic: Topic
    data: dict[str, object] = {}

    @property
    def signal(self) -> Topic:
        """The aggregate's id is the topic."""
        return self.topic


ArtifactEvent = (
    ArtifactSealed
    | ArtifactPinned
    | ArtifactUnpinned
    | ReplicasRequested
    | VerificationRequested
    | ArtifactRemoved
)
KeyEvent = KeyMoved | KeyRemoved
ReplicaEvent = (
    ReplicaStarted
    | ReplicaFilled
    | ReplicaReady
    | ReplicaCorrupted
    | ReplicaEvicting
    | ReplicaGone
    | ReplicaLost
)
OperationEvent = (
    OperationIssued
    | OperationStarted
    | OperationSucceeded
    | OperationFailed
    | OperationRetried
    | OperationRerouted
    | OperationCancelled
)
NodeEvent = (
    NodeJoined
    | NodeLeft
    | NodeLost
    | NodeCordoned
    | NodeUncordoned
    | NodeDrained
    | NodePressured
    | NodeRelieved
)
LeaseEvent = LeaseAcquired | LeaseReleased | LeaseExpired
SignalEvent = SignalEmitted


class UnknownEvent(_Event, frozen=True, kw_only=True):
    """An event of a newer release: kept as it is, and skipped by every fold."""

    type: str
    v: int
    data: msgspec.Raw


Event = (
    ArtifactEvent
    | KeyEvent
    | ReplicaEvent
    | OperationEvent
    | NodeEvent
    | LeaseEvent
    | EngineEvent
    | SignalEvent
    | PlanEvent
    | NamespaceEvent
    | PolicyEvent
)

EVENT_TYPES: dict[str, type[Event]] = {
    "artifact.sealed": ArtifactSealed,
    "artifact.pinned": ArtifactPinned,
    "artifact.unpinned": ArtifactUnpinned,
    "artifact.replicas_requested": ReplicasRequested,
    "artifact.verification_requested": VerificationRequested,
    "artifact.removed": ArtifactRemoved,
    "key.moved": KeyMoved,
    "key.removed": KeyRemoved,
    "replica.started": ReplicaStarted,
    "replica.filled": ReplicaFilled,
    "replica.ready": ReplicaReady,
    "replica.corrupted": ReplicaCorrupted,
    "replica.evicting": ReplicaEvicting,
    "replica.gone": ReplicaGone,
    "replica.lost": ReplicaLost,
    "operation.issued": OperationIssued,
    "operation.started": OperationStarted,
    "operation.succeeded": OperationSucceeded,
    "operation.failed": OperationFailed,
    "operation.retried": OperationRetried,
    "operation.rerouted": OperationRerouted,
    "operation.cancelled": OperationCancelled,
    "node.joined": NodeJoined,
    "node.left": NodeLeft,
    "node.lost": NodeLost,
    "node.cordoned": NodeCordoned,
    "node.uncordoned": NodeUncordoned,
    "node.drained": NodeDrained,
    "node.pressured": NodePressured,
    "node.relieved": NodeRelieved,
    "lease.acquired": LeaseAcquired,
    "lease.released": LeaseReleased,
    "lease.expired": LeaseExpired,
    **ENGINE_EVENT_TYPES,
    "signal.emitted": SignalEmitted,
    **PLAN_EVENT_TYPES,
    **NAMESPACE_EVENT_TYPES,
    **POLICY_EVENT_TYPES,
}
TYPE_NAMES: dict[type[Event], str] = {cls: name for name, cls in EVENT_TYPES.items()}


def aggregate_of(event: Event) -> tuple[AggregateKind, str]:
    """The aggregate that an event belongs to: its kind and its id."""
    kind = AggregateKind(TYPE_NAMES[type(event)].split(".", 1)[0])
    aggregate_id: str = getattr(event, kind.value)
    return kind, aggregate_id
