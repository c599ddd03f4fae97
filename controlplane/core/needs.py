"""Which replicas the cluster owes: those that were asked for on nodes that are away (lost or
draining), and the last copies on nodes that give theirs away."""

from __future__ import annotations

from tensorcast.controlplane.core.view import (
    accepts,
    is_away,
    is_draining,
    is_making,
    is_pending,
    is_ready,
    live_replica,
    operations_of,
    ready_replicas,
    replicas_of,
)
from tensorcast.schema.aggregates.artifact import Artifact
from tensorcast.schema.aggregates.operation import Operation, OperationStatus
from tensorcast.schema.aggregates.replica import ReplicaStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.ids import ArtifactId, NodeId, Tier
from tensorcast.schema.work import target_tier

REPAIR = "repair"
"""The policy whose operations count as substitutes for replicas on nodes that are away."""


def requested_nodes(artifact: Artifact, tier: Tier) -> frozenset[NodeId]:
    """Where somebody asked for a replica in this tier."""
    return frozenset(node for node, wanted in artifact.requests if wanted is tier)


def count_needs(view: ClusterView, artifact: Artifact, tier: Tier) -> int:
    """How many replicas in this tier must be made on other nodes: one for each request on a node
    that is away, less the substitutes that exist or are on their way; and one when the only copies
    are on draining nodes."""
    requested = requested_nodes(artifact, tier)
    away = sum(is_away(view, node) for node in requested)
    missing = away - len(_substitutes(view, artifact.id, tier, requested)) if away else 0
    return max(missing, int(_is_orphaned(view, artifact.id, tier)))


def stays(view: ClusterView, artifact: ArtifactId, tier: Tier) -> bool:
    """Whether a complete copy is on a node that is up and keeps it. A copy on disk is as good as
    one in DRAM, but not the other way round."""
    return any(
        not is_away(view, replica.node)
        for replica in ready_replicas(view, artifact)
        if tier is Tier.DRAM or replica.tier is tier
    )


def _substitutes(
    view: ClusterView, artifact: ArtifactId, tier: Tier, requested: frozenset[NodeId]
) -> set[NodeId]:
    """Nodes that were not asked and got, or will get, the replica in place of one that is away."""
    return {
        operation.node
        for operation in operations_of(view, artifact)
        if operation.policy == REPAIR
        and operation.node not in requested
        and accepts(view, operation.node)
        and _stands_in(view, operation, tier)
    }


def _stands_in(view: ClusterView, operation: Operation, tier: Tier) -> bool:
    artifact, node = operation.work.artifact, operation.node
    if target_tier(operation.work) is tier:
        done = operation.status is OperationStatus.SUCCEEDED
        has_it = live_replica(view, artifact, node, tier) is not None
        return is_pending(operation) or (done and has_it)
    on_the_way = tier is Tier.DISK and target_tier(operation.work) is Tier.DRAM
    return on_the_way and is_pending(operation) and not is_ready(view, artifact, node, Tier.DRAM)


def _is_orphaned(view: ClusterView, artifact: ArtifactId, tier: Tier) -> bool:
    """Whether draining nodes hold the only copies, and none is on its way to another node."""
    if not view.draining:
        return False
    gives = any(
        replica.tier is tier
        and replica.status is ReplicaStatus.READY
        and is_draining(view, replica.node)
        for replica in replicas_of(view, artifact)
    )
    if not gives or stays(view, artifact, tier):
        return False
    coming = (
        operation.node
        for operation in operations_of(view, artifact)
        if operation.policy == REPAIR and is_pending(operation)
    )
    return not any(
        is_making(view, artifact, node, tier)
        or (tier is Tier.DISK and not is_ready(view, artifact, node, Tier.DRAM))
        for node in coming
    )
