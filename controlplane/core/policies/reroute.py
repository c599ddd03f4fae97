"""Reroute: who pulled from a node that has gone gets other sources.

Reacts to
- NodeLost, NodeLeft: pulls that rely on the node.
- NodeCordoned, NodeDrained: pulls that rely on the node while it is itself still filling.
- OperationFailed, OperationCancelled: pulls that rely on the node that was to be filled by it.
- ReplicaEvicting, ReplicaGone, ReplicaLost: pulls that rely on the replica.

The movers do not wait for it: a pull that breaks goes on from any node that has the chunks. This
gives the broadcast a good shape again. Never acts while the node still has a complete replica.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensorcast.controlplane.core.broadcast import LABELS
from tensorcast.controlplane.core.routes import plan_detours
from tensorcast.controlplane.core.view import is_being_evicted, ready_replicas, sealed
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import Command, RerouteOperation
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import (
    NodeCordoned,
    NodeDrained,
    NodeLeft,
    NodeLost,
    OperationCancelled,
    OperationFailed,
    ReplicaEvicting,
    ReplicaGone,
    ReplicaLost,
)
from tensorcast.schema.ids import ArtifactId, NodeId
from tensorcast.schema.work import Materialize


class Reroute:
    """Other sources for those whose source has gone. `labels` say where a node is, the widest
    place first."""

    name = "reroute"

    def __init__(self, labels: Sequence[str] = LABELS) -> None:
        self._labels = tuple(labels)

    def react(self, view: ClusterView, recorded: Recorded) -> tuple[Command, ...]:
        return tuple(
            RerouteOperation(operation=pull.id, sources=sources, instead_of=node)
            for artifact, node in _broken(view, recorded)
            if sealed(view, artifact) and not _serves(view, artifact, node)
            for pull, sources in plan_detours(view, artifact, node, self._labels)
        )


def _broken(view: ClusterView, recorded: Recorded) -> Iterator[tuple[ArtifactId, NodeId]]:
    """The artifacts that may be pulled from a node no longer."""
    match recorded.event:
        case (
            NodeLost(node=node)
            | NodeLeft(node=node)
            | NodeCordoned(node=node)
            | NodeDrained(node=node)
        ):
            works = (view.operations[name].work for name in sorted(view.open_operations))
            pulled = (
                work.artifact
                for work in works
                if isinstance(work, Materialize) and node in work.sources
            )
            yield from ((artifact, node) for artifact in dict.fromkeys(pulled))
        case OperationFailed(operation=name) | OperationCancelled(operation=name):
            operation = view.operations[name]
            if isinstance(operation.work, Materialize):
                yield operation.work.artifact, operation.node
        case (
            ReplicaEvicting(replica=replica)
            | ReplicaGone(replica=replica)
            | ReplicaLost(replica=replica)
        ):
            found = view.replicas[replica]
            yield found.artifact, found.node
        case _:
            return


def _serves(view: ClusterView, artifact: ArtifactId, node: NodeId) -> bool:
    return any(
        replica.node == node and not is_being_evicted(view, replica)
        for replica in ready_replicas(view, artifact)
    )
