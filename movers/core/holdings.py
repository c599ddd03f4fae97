"""What the log says about one node and its surroundings: the questions that a mover asks."""

from __future__ import annotations

from collections.abc import Iterator

from tensorcast.schema.aggregates.artifact import Artifact, ArtifactStatus
from tensorcast.schema.aggregates.key import KeyStatus
from tensorcast.schema.aggregates.node import NodeStatus
from tensorcast.schema.aggregates.operation import OPEN, Operation
from tensorcast.schema.aggregates.replica import Replica, ReplicaStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.ids import (
    ArtifactId,
    Key,
    NodeId,
    OperationId,
    ReplicaId,
    Tier,
    is_artifact_id,
    replica_id,
)
from tensorcast.schema.work import Load, Materialize, Work, target_tier

PREFIX_CHARS_MIN = 6
PRESENT = frozenset({ReplicaStatus.FILLING, ReplicaStatus.READY, ReplicaStatus.EVICTING})


def resolve_artifact(view: ClusterView, what: str) -> Artifact:
    """The sealed artifact that a key, an id or an unambiguous beginning of an id stands for.

    Raises NotFound, or InvalidArgument when several ids begin so.
    """
    key = None if is_artifact_id(what) else view.keys.get(Key(what))
    if key is not None and key.status is KeyStatus.SET:
        return _sealed(view, key.artifact, what)
    if ArtifactId(what) in view.artifacts:
        return _sealed(view, ArtifactId(what), what)
    return _sealed(view, _complete(view, what), what)


def _complete(view: ClusterView, what: str) -> ArtifactId:
    found = [id_ for id_ in view.artifacts if id_.startswith(what)]
    sealed = [id_ for id_ in found if view.artifacts[id_].status is ArtifactStatus.SEALED]
    if len(what) < PREFIX_CHARS_MIN or not sealed:
        return ArtifactId(what)
    if len(sealed) > 1:
        raise InvalidArgument(
            f"{len(sealed)} artifacts have an id that begins with {what!r}.",
            hint="Give more characters of it.",
        )
    return sealed[0]


def _sealed(view: ClusterView, artifact: ArtifactId, what: str) -> Artifact:
    found = view.artifacts.get(artifact)
    if found is None:
        raise NotFound(
            f"There is no key or artifact {what!r}.",
            hint="`tcctl key ls` and `tcctl artifact ls` show what there is.",
            artifact=what,
        )
    if found.status is ArtifactStatus.REMOVED:
        raise NotFound(
            f"Artifact {artifact} was removed.",
            hint="Put it again to have it back.",
            artifact=artifact,
        )
    return found


def replicas_of(view: ClusterView, node: NodeId) -> Iterator[Replica]:
    """The replicas that the log believes to be on the node, in a stable order."""
    for id_ in sorted(view.replicas_by_node.get(node, ())):
        replica = view.replicas[id_]
        if replica.status in PRESENT:
            yield replica


def has_ready(view: ClusterView, artifact: ArtifactId, node: NodeId, tier: Tier) -> bool:
    """Whether the log knows a complete replica there."""
    found = view.replicas.get(replica_id(artifact, node, tier))
    return found is not None and found.status is ReplicaStatus.READY


def is_stored_elsewhere(view: ClusterView, artifact: ArtifactId, node: NodeId) -> bool:
    """Whether the disk of another node that is not lost has a complete replica, or the store that
    all nodes share: it outlives a stop of the whole cluster."""
    members = view.replicas_by_artifact.get(artifact, frozenset())
    return is_stored(view, artifact) or any(
        found.tier is Tier.DISK
        and found.status is ReplicaStatus.READY
        and found.node != node
        and found.node in view.nodes
        and view.nodes[found.node].status is not NodeStatus.LOST
        for found in (view.replicas[id_] for id_ in members)
    )


def is_stored(view: ClusterView, artifact: ArtifactId, but_by: NodeId | None = None) -> bool:
    """Whether the store that all nodes share has all of it; `but_by`: by the word of another node
    than this one."""
    members = view.replicas_by_artifact.get(artifact, frozenset())
    return any(
        found.tier is Tier.OBJECT and found.status is ReplicaStatus.READY and found.node != but_by
        for found in (view.replicas[id_] for id_ in members)
    )


def has_store(view: ClusterView, node: NodeId) -> bool:
    """Whether the node has access to the store that all nodes share."""
    found = view.nodes.get(node)
    return found is not None and Tier.OBJECT in found.tiers


def is_requested(view: ClusterView, artifact: ArtifactId, node: NodeId, tier: Tier) -> bool:
    """Whether somebody asked for this replica."""
    found = view.artifacts.get(artifact)
    return found is not None and (node, tier) in found.requests


def has_copy(view: ClusterView, artifact: ArtifactId, replica: ReplicaId) -> bool:
    """Whether another complete replica of the artifact is on a node that is up, or in the store
    that all nodes share."""
    members = view.replicas_by_artifact.get(artifact, frozenset())
    return is_stored(view, artifact) or any(
        found.id != replica
        and found.status is ReplicaStatus.READY
        and found.tier is not Tier.GPU  # it goes with a process
        and found.node in view.nodes
        and view.nodes[found.node].status is NodeStatus.UP
        for found in (view.replicas[id_] for id_ in members)
    )


def is_claimed(view: ClusterView, artifact: ArtifactId, node: NodeId) -> bool:
    """Whether a pin or a lease keeps the node's replicas of the artifact from eviction."""
    found = view.artifacts.get(artifact)
    if found is not None and found.pinned:
        return True
    leases = (view.leases[id_] for id_ in view.leases_by_artifact.get(artifact, frozenset()))
    return any(lease.node in (None, node) for lease in leases)


def operations_for(view: ClusterView, node: NodeId) -> tuple[Operation, ...]:
    """The open operations of the node, oldest first."""
    found = (view.operations[id_] for id_ in view.open_operations)
    mine = (operation for operation in found if operation.node == node)
    return tuple(sorted(mine, key=lambda operation: (operation.issued_at, operation.id)))


def operation_making(
    view: ClusterView, artifact: ArtifactId, node: NodeId, tier: Tier
) -> OperationId | None:
    """The oldest open operation that is making this replica; None if there is none."""
    found = [
        view.operations[id_]
        for id_ in view.unsettled_by_artifact.get(artifact, frozenset())
        if id_ in view.open_operations
    ]
    making = [o for o in found if o.node == node and target_tier(o.work) is tier]
    return min(making, key=lambda o: (o.issued_at, o.id)).id if making else None


def is_open(view: ClusterView, operation: OperationId) -> bool:
    """Whether the operation is issued or running."""
    found = view.operations.get(operation)
    return found is not None and found.status in OPEN


def choose_demand(
    view: ClusterView,
    artifact: ArtifactId,
    node: NodeId,
    *,
    is_served: bool = True,
) -> Work:
    """The work that brings an artifact into the node's DRAM: from its own disk, from others, or,
    when nobody serves it, from the store."""
    if has_ready(view, artifact, node, Tier.DISK):
        return Load(artifact=artifact)
    if not is_served and is_stored(view, artifact) and has_store(view, node):
        return Load(artifact=artifact, tier=Tier.OBJECT)
    return Materialize(artifact=artifact)


def doubted_replicas(
    view: ClusterView, artifact: ArtifactId, node: NodeId
) -> tuple[ReplicaId, ...]:
    """The complete replicas of a node, of which one has served damaged bytes."""
    found = (replica_id(artifact, node, tier) for tier in (Tier.DRAM, Tier.DISK))
    return tuple(
        id_
        for id_ in found
        if id_ in view.replicas and view.replicas[id_].status is ReplicaStatus.READY
    )
