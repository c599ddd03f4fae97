"""Drain: a draining node gives its replicas away.

Reacts to whatever can make a replica on a draining node superfluous: NodeDrained, NodeJoined (it
was away when it was drained), ReplicaReady elsewhere, and the end of a claim (LeaseReleased,
LeaseExpired, ArtifactUnpinned). Each time it drops, on draining nodes, the complete replicas of
which a copy stays on another node.

Never drops a replica that is leased or pinned, or of which no copy stays; `repair` makes those
copies. A draining node with pinned or leased replicas keeps them until the claim ends.
"""

from __future__ import annotations

from collections.abc import Iterable

from tensorcast.controlplane.core.needs import stays
from tensorcast.controlplane.core.policies.base import Task, issue
from tensorcast.controlplane.core.view import (
    DRAINED,
    is_draining,
    is_free,
    is_up,
    replicas_of,
    replicas_on,
    sealed,
)
from tensorcast.schema.aggregates.replica import Replica
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import Command
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import (
    ArtifactUnpinned,
    LeaseExpired,
    LeaseReleased,
    NodeDrained,
    NodeJoined,
    ReplicaReady,
)
from tensorcast.schema.ids import Tier
from tensorcast.schema.work import Evict


class Drain:
    """Empties draining nodes, as far as copies elsewhere allow."""

    name = "drain"

    def react(self, view: ClusterView, recorded: Recorded) -> tuple[Command, ...]:
        if not view.draining:
            return ()
        going = (r for r in _candidates(view, recorded) if _is_superfluous(view, r))
        return issue(self.name, recorded.id, tuple(map(_drop, going)))


def _candidates(view: ClusterView, recorded: Recorded) -> Iterable[Replica]:
    match recorded.event:
        case NodeDrained(node=node) | NodeJoined(node=node):
            return replicas_on(view, node)
        case ReplicaReady(artifact=artifact) | ArtifactUnpinned(artifact=artifact):
            return replicas_of(view, artifact)
        case LeaseReleased(lease=lease) | LeaseExpired(lease=lease):
            return replicas_of(view, view.leases[lease].artifact)
        case _:
            return ()


def _is_superfluous(view: ClusterView, replica: Replica) -> bool:
    return (
        is_draining(view, replica.node)
        and replica.tier is not Tier.OBJECT  # it is not on the node
        and is_up(view, replica.node)
        and sealed(view, replica.artifact) is not None
        and is_free(view, replica)
        and (replica.tier is Tier.GPU or stays(view, replica.artifact, replica.tier))
    )


def _drop(replica: Replica) -> Task:
    return replica.node, Evict(artifact=replica.artifact, tier=replica.tier, reason=DRAINED)
