"""Questions that policies ask of the cluster view. All pure; every answer has a fixed order, so
that any number of schedulers come to the same decisions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Final

from tensorcast.controlplane.core.retry import RetryAfter, retry
from tensorcast.schema.aggregates.artifact import Artifact, ArtifactStatus
from tensorcast.schema.aggregates.node import NodeStatus
from tensorcast.schema.aggregates.operation import OPEN, Operation, OperationStatus
from tensorcast.schema.aggregates.replica import Replica, ReplicaStatus
from tensorcast.schema.cluster import LIVE, ClusterView, place_of
from tensorcast.schema.faults import FaultKind
from tensorcast.schema.ids import ArtifactId, NodeId, Tier, is_plan_id, replica_id
from tensorcast.schema.work import (
    Evict,
    Load,
    Materialize,
    Persist,
    Verify,
    Work,
    kind_of,
    target_tier,
)

DEMAND: Final = "demand"
"""The policy name of an operation that a `get` made necessary."""
PRESSURE: Final = "pressure"
REMOVED: Final = "removed"
DRAINED: Final = "drained"
"""Why a replica is evicted (`Evict.reason`): its tier needs the room, its artifact was removed, or
its node gives its replicas away."""
Aim = tuple[NodeId, ArtifactId, str, Tier | None]
"""What an operation is for. Two open operations never share one."""


# ---- artifacts and claims --------------------------------------------------------------------


def sealed(view: ClusterView, artifact: ArtifactId) -> Artifact | None:
    """The artifact, unless it is unknown or removed."""
    found = view.artifacts.get(artifact)
    return found if found and found.status is ArtifactStatus.SEALED else None


def is_pinned(view: ClusterView, artifact: ArtifactId) -> bool:
    """Whether an operator keeps all its replicas."""
    found = view.artifacts.get(artifact)
    return bool(found and found.pinned)


def is_leased(view: ClusterView, artifact: ArtifactId, node: NodeId) -> bool:
    """Whether somebody holds a lease on the artifact that covers this node."""
    leases = (view.leases[lease] for lease in view.leases_by_artifact.get(artifact, ()))
    return any(lease.node in (None, node) for lease in leases)


def is_requested(view: ClusterView, artifact: ArtifactId, node: NodeId, tier: Tier) -> bool:
    """Whether somebody asked for this replica."""
    found = view.artifacts.get(artifact)
    return bool(found and (node, tier) in found.requests)


# ---- nodes -----------------------------------------------------------------------------------


def is_up(view: ClusterView, node: NodeId) -> bool:
    """Whether the node's mover runs."""
    found = view.nodes.get(node)
    return bool(found and found.status is NodeStatus.UP)


def is_draining(view: ClusterView, node: NodeId) -> bool:
    """Whether the node gives its replicas away."""
    found = view.nodes.get(node)
    return bool(found and found.draining)


def has_store(view: ClusterView, node: NodeId) -> bool:
    """Whether the node has access to the store that all nodes share."""
    found = view.nodes.get(node)
    return bool(found and Tier.OBJECT in found.tiers)


def accepts(view: ClusterView, node: NodeId) -> bool:
    """Whether new replicas may be placed on the node: it is up and not cordoned."""
    found = view.nodes.get(node)
    return bool(found and found.status is NodeStatus.UP and not found.cordoned)


def is_away(view: ClusterView, node: NodeId) -> bool:
    """Whether the replicas of the node need a place elsewhere: it is lost or gives them away."""
    found = view.nodes.get(node)
    return bool(found and (found.status is NodeStatus.LOST or found.draining))


def used_bytes(view: ClusterView, node: NodeId, tier: Tier) -> int:
    """Bytes of the artifacts whose replicas take room on the node in the tier."""
    return view.used_bytes.get(place_of(node, tier), 0)


def free_bytes(view: ClusterView, node: NodeId, tier: Tier) -> int:
    """The tier's capacity minus what its replicas take; 0 at least."""
    found = view.nodes.get(node)
    capacity = found.tiers.get(tier, 0) if found else 0
    return max(0, capacity - used_bytes(view, node, tier))


def rooms(view: ClusterView, tier: Tier) -> dict[NodeId, int]:
    """For each node that accepts replicas, the bytes of the tier that are neither taken by
    replicas nor spoken for by open operations. The caller may count it down as it plans."""
    accepting = (node for node in sorted(view.nodes) if accepts(view, node))
    found = {node: free_bytes(view, node, tier) for node in accepting}
    for operation in (view.operations[name] for name in view.open_operations):
        work, node = operation.work, operation.node
        if (
            node in found
            and target_tier(work) is tier
            and live_replica(view, work.artifact, node, tier) is None
        ):
            found[node] -= size_bytes(view, work.artifact)
    return found


def choose_node(
    view: ClusterView,
    artifact: ArtifactId,
    tier: Tier,
    room: Mapping[NodeId, int],
    avoid: Collection[NodeId] = (),
) -> NodeId | None:
    """The node on which a new replica goes: one of `room` (see `rooms`) that has room for it, but
    neither the replica nor an operation that makes it; the one with most room, ties by name. None
    when there is none."""
    wanted = size_bytes(view, artifact)
    fitting = [
        node
        for node, free in room.items()
        if free >= wanted
        and node not in avoid
        and live_replica(view, artifact, node, tier) is None
        and not is_making(view, artifact, node, tier)
    ]
    return min(fitting, key=lambda node: (-room[node], node), default=None)


# ---- replicas --------------------------------------------------------------------------------


def size_bytes(view: ClusterView, artifact: ArtifactId) -> int:
    """The size of an artifact's byte space; 0 when it is unknown."""
    found = view.artifacts.get(artifact)
    return found.manifest.size_bytes if found else 0


def replicas_of(view: ClusterView, artifact: ArtifactId) -> Iterator[Replica]:
    """All replicas of an artifact in any status, by id."""
    for replica in sorted(view.replicas_by_artifact.get(artifact, ())):
        yield view.replicas[replica]


def replicas_on(view: ClusterView, node: NodeId) -> Iterator[Replica]:
    """All replicas on a node in any status, by id."""
    for replica in sorted(view.replicas_by_node.get(node, ())):
        yield view.replicas[replica]


def live_replica(
    view: ClusterView, artifact: ArtifactId, node: NodeId, tier: Tier
) -> Replica | None:
    """The replica, if it takes room (also while it fills or is being evicted)."""
    found = view.replicas.get(replica_id(artifact, node, tier))
    return found if found and found.status in LIVE else None


def is_ready(view: ClusterView, artifact: ArtifactId, node: NodeId, tier: Tier) -> bool:
    """Whether the replica holds all chunks."""
    found = view.replicas.get(replica_id(artifact, node, tier))
    return bool(found and found.status is ReplicaStatus.READY)


def ready_replicas(view: ClusterView, artifact: ArtifactId) -> tuple[Replica, ...]:
    """Its complete replicas on nodes that are up and can serve them, DRAM before disk, then by
    node."""
    found = _some_ready(view, artifact)
    return tuple(sorted(found, key=lambda r: (r.tier is not Tier.DRAM, r.node)))


def count_ready(view: ClusterView, artifact: ArtifactId, limit: int) -> int:
    """How many complete replicas it has on nodes that are up; `limit` stands for more."""
    return sum(1 for _ in islice(_some_ready(view, artifact), limit))


_NO_SOURCES = frozenset({Tier.OBJECT, Tier.GPU})
"""Replicas that no plan relies on: a store is nobody's, and a device's memory goes with its mover's
process."""


def _some_ready(view: ClusterView, artifact: ArtifactId) -> Iterator[Replica]:
    """In no order: for questions whose answers do not depend on it."""
    for name in view.replicas_by_artifact.get(artifact, ()):
        replica = view.replicas[name]
        if (
            replica.status is ReplicaStatus.READY
            and replica.tier not in _NO_SOURCES
            and is_up(view, replica.node)
        ):
            yield replica


def is_stored(view: ClusterView, artifact: ArtifactId) -> bool:
    """Whether the store that all nodes share has all of it, whoever put it there."""
    return any(
        replica.tier is Tier.OBJECT and replica.status is ReplicaStatus.READY
        for replica in map(view.replicas.__getitem__, view.replicas_by_artifact.get(artifact, ()))
    )


def source_nodes(view: ClusterView, artifact: ArtifactId) -> tuple[NodeId, ...]:
    """Nodes that can serve all of the artifact now, those that have it in DRAM first."""
    return tuple(dict.fromkeys(replica.node for replica in ready_replicas(view, artifact)))


def has_survivor(view: ClusterView, replica: Replica) -> bool:
    """Whether a complete copy stays when this replica goes: another one that is ready on a node
    that is up and that no open operation evicts, or one in the store that all nodes share."""
    if replica.tier is not Tier.OBJECT and is_stored(view, replica.artifact):
        return True
    return any(
        other.id != replica.id and not is_being_evicted(view, other)
        for other in _some_ready(view, replica.artifact)
    )


# ---- operations ------------------------------------------------------------------------------


def next_try(operation: Operation) -> RetryAfter | None:
    """When a failed operation is tried again; None: it has not failed, or it stays so. A check
    that found damage has done its work: its failure is the answer. What a plan has issued, the plan
    tries again, as a new operation."""
    if is_plan_id(operation.policy):
        return None
    fault = operation.fault
    if operation.status is not OperationStatus.FAILED or fault is None:
        return None
    if isinstance(operation.work, Verify) and fault.kind is FaultKind.CORRUPT:
        return None
    verdict = retry(fault, operation.attempt)
    return verdict if isinstance(verdict, RetryAfter) else None


def will_retry(operation: Operation) -> bool:
    """Whether a failed operation has a try to come."""
    return next_try(operation) is not None


def is_pending(operation: Operation) -> bool:
    """Whether the operation may still succeed by itself: it is open, or a retry will come."""
    return operation.status in OPEN or will_retry(operation)


def operations_of(view: ClusterView, artifact: ArtifactId) -> Iterator[Operation]:
    """All operations about an artifact, by id."""
    for operation in sorted(view.operations_by_artifact.get(artifact, ())):
        yield view.operations[operation]


def pending_operations(view: ClusterView, artifact: ArtifactId) -> Iterator[Operation]:
    """The operations about an artifact that may still succeed, by id."""
    names = sorted(view.unsettled_by_artifact.get(artifact, ()))
    return (found for name in names if is_pending(found := view.operations[name]))


def open_operation(
    view: ClusterView, artifact: ArtifactId, node: NodeId, kind: str
) -> Operation | None:
    """The issued or running operation of this kind (`kind_of`) on the node, if there is one."""
    for found in pending_operations(view, artifact):
        if found.node == node and found.status in OPEN and kind_of(found.work) == kind:
            return found
    return None


def open_operations_at(view: ClusterView, node: NodeId) -> Iterator[Operation]:
    """The issued and running operations of a node, by id."""
    for name in sorted(view.open_by_node.get(node, ())):
        yield view.operations[name]


def is_making(view: ClusterView, artifact: ArtifactId, node: NodeId, tier: Tier) -> bool:
    """Whether a pending operation makes the artifact's replica on the node in the tier."""
    return any(
        found.node == node and target_tier(found.work) is tier
        for found in pending_operations(view, artifact)
    )


def is_being_evicted(view: ClusterView, replica: Replica) -> bool:
    """Whether a pending operation drops the replica."""
    return any(
        found.node == replica.node
        and isinstance(found.work, Evict)
        and found.work.tier is replica.tier
        for found in pending_operations(view, replica.artifact)
    )


def is_free(view: ClusterView, replica: Replica) -> bool:
    """Whether nothing speaks against dropping the replica here: it is complete, neither pinned nor
    leased, and no pending operation of its node is about the artifact."""
    return (
        replica.status is ReplicaStatus.READY
        and not is_pinned(view, replica.artifact)
        and not is_leased(view, replica.artifact, replica.node)
        and all(found.node != replica.node for found in pending_operations(view, replica.artifact))
    )


def aim_of(node: NodeId, work: Work) -> Aim:
    """What a piece of work is for: how a tier gets filled makes no difference."""
    if isinstance(work, Evict | Verify):
        return node, work.artifact, kind_of(work), work.tier
    return node, work.artifact, "fill", target_tier(work)


def fill_work(
    view: ClusterView, artifact: ArtifactId, node: NodeId, tier: Tier = Tier.DRAM
) -> Load | Materialize | Persist:
    """How a tier of the node gets the artifact: from its other tier, or from the nodes that have
    it, or from the store that all nodes share. What only the store has goes through DRAM, and so
    does what is to go there."""
    if tier is not Tier.DRAM and is_ready(view, artifact, node, Tier.DRAM):
        return Persist(artifact=artifact, tier=tier)
    tier = Tier.DRAM if tier is Tier.OBJECT else tier
    if tier is Tier.DRAM and is_ready(view, artifact, node, Tier.DISK):
        return Load(artifact=artifact)
    sources = tuple(n for n in source_nodes(view, artifact) if n != node)
    if not sources and is_stored(view, artifact) and has_store(view, node):
        return Load(artifact=artifact, tier=Tier.OBJECT)
    return Materialize(artifact=artifact, sources=sources, tier=tier)
