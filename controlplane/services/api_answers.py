"""The cluster view in the words of the API. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tensorcast.controlplane.core.view import replicas_of, replicas_on, used_bytes
from tensorcast.schema.aggregates.artifact import Artifact
from tensorcast.schema.aggregates.engine import Engine
from tensorcast.schema.aggregates.key import KeyState, KeyStatus
from tensorcast.schema.aggregates.node import Node
from tensorcast.schema.aggregates.operation import Operation
from tensorcast.schema.aggregates.replica import Replica
from tensorcast.schema.api import (
    ArtifactInfo,
    EngineInfo,
    EventInfo,
    KeyInfo,
    KeyMove,
    NodeInfo,
    OperationInfo,
    ReplicaInfo,
    TensorInfo,
    TierInfo,
)
from tensorcast.schema.api_faults import FaultInfo
from tensorcast.schema.cluster import LIVE, ClusterView
from tensorcast.schema.codec import encode_data
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.faults import Fault
from tensorcast.schema.ids import Key, number_of, replica_id
from tensorcast.schema.tensors import Index
from tensorcast.schema.work import kind_of, target_tier


def describe_artifact(view: ClusterView, artifact: Artifact) -> ArtifactInfo:
    """An artifact with the keys that point to it and the replicas that take room."""
    replicas = (r for r in replicas_of(view, artifact.id) if r.status in LIVE)
    return ArtifactInfo(
        id=artifact.id,
        kind=artifact.kind,
        state=artifact.status.value,
        bytes=artifact.manifest.size_bytes,
        tensors=len(artifact.manifest.index),
        labels=artifact.labels,
        keys=tuple(sorted(view.keys_by_artifact.get(artifact.id, ()))),
        replicas=tuple(map(describe_replica, replicas)),
        pinned=artifact.pinned,
        leases=len(view.leases_by_artifact.get(artifact.id, ())),
        sealed_at=artifact.sealed_at,
        seq=artifact.version,
    )


def describe_replica(replica: Replica) -> ReplicaInfo:
    """One replica, with how far it is."""
    return ReplicaInfo(
        node=replica.node,
        tier=replica.tier,
        state=replica.status.value,
        chunks_ready=len(replica.chunks),
        chunks_total=replica.chunks_total,
    )


def describe_tensors(index: Index) -> tuple[TensorInfo, ...]:
    """The tensors in the order of the index; `bytes` counts each element once."""
    return tuple(
        TensorInfo(
            name=spec.name,
            dtype=spec.dtype,
            shape=spec.shape,
            offset=spec.offset,
            bytes=spec.size_bytes,
            strides=spec.strides,
        )
        for spec in index
    )


def describe_key(
    key: KeyState, history: Iterable[KeyMove] = (), versions: Iterable[Key] = ()
) -> KeyInfo:
    """A key; one that was removed points to nothing. `versions` are the keys of its family."""
    return KeyInfo(
        key=key.key,
        artifact=key.artifact if key.status is KeyStatus.SET else None,
        version=key.moves,
        history=tuple(history),
        newest=max(map(number_of, versions), default=0),
    )


def describe_operation(view: ClusterView, operation: Operation) -> OperationInfo:
    """An operation, and how far the replica is that it makes."""
    replica = _made_by(view, operation)
    return OperationInfo(
        id=operation.id,
        kind=kind_of(operation.work),
        node=operation.node,
        artifact=operation.work.artifact,
        status=operation.status.value,
        attempt=operation.attempt,
        bytes_moved=operation.bytes_moved,
        transports=operation.transports,
        policy=operation.policy,
        cause=operation.cause,
        fault=describe_fault(operation.fault),
        issued_at=operation.issued_at,
        ended_at=operation.ended_at,
        chunks_ready=len(replica.chunks) if replica else 0,
        chunks_total=replica.chunks_total if replica else 0,
        detours=operation.detours,
    )


def _made_by(view: ClusterView, operation: Operation) -> Replica | None:
    tier = target_tier(operation.work)
    if tier is None:
        return None
    return view.replicas.get(replica_id(operation.work.artifact, operation.node, tier))


def describe_fault(fault: Fault | None) -> FaultInfo | None:
    """A fault in the words of the API."""
    if fault is None:
        return None
    return FaultInfo(kind=fault.kind.value, detail=fault.detail, retryable=fault.retryable)


def describe_node(view: ClusterView, node: Node) -> NodeInfo:
    """A node, and what the replicas on it take of each tier."""
    live = sum(replica.status in LIVE for replica in replicas_on(view, node.id))
    return NodeInfo(
        node=node.id,
        epoch=node.epoch,
        state=node.status.value,
        address=node.address,
        cordoned=node.cordoned,
        draining=node.draining,
        tiers={
            tier: TierInfo(capacity=capacity, used=used_bytes(view, node.id, tier))
            for tier, capacity in node.tiers.items()
        },
        transports=node.transports,
        replicas=live,
        labels=node.labels,
        joined_at=node.joined_at,
        bandwidth=node.bandwidth,
        overflow=node.overflow,
    )


def describe_nodes(view: ClusterView) -> tuple[NodeInfo, ...]:
    """All nodes that ever joined, by name."""
    return tuple(describe_node(view, view.nodes[name]) for name in sorted(view.nodes))


def describe_engine(engine: Engine) -> EngineInfo:
    """An engine, and the weights that it serves or served last."""
    return EngineInfo(
        engine=engine.id,
        kind=engine.kind,
        state=engine.status.value,
        node=engine.node,
        model=engine.model,
        url=engine.url,
        version=engine.weights,
        artifact=engine.artifact,
        since=engine.since,
        life=engine.life,
        labels=engine.labels,
        registered_at=engine.registered_at,
        seq=engine.version,
    )


def describe_event(recorded: Recorded) -> EventInfo:
    """An event with its envelope, its data as JSON."""
    return EventInfo(
        seq=recorded.seq,
        id=recorded.id,
        type=recorded.type,
        v=recorded.v,
        at=recorded.at,
        actor=recorded.actor,
        cause=recorded.cause,
        data=msgspec.Raw(encode_data(recorded.event)),
    )
