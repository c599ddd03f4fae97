"""Admission: a node whose memory is full takes no new replicas until it has room again.

Reacts to
- NodePressured in DRAM: when less than `low` of the memory is free, and all that nobody uses would
  not make the room that is needed, the node is cordoned.
- ReplicaGone, NodeJoined: a node that this policy has cordoned is opened again once `high` of its
  memory is free.

Never opens a node that somebody else has cordoned or drained. What is on the node goes on; only
new replicas are placed elsewhere.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tensorcast.controlplane.core.policies.base import Configured, Parameters
from tensorcast.controlplane.core.view import free_bytes, size_bytes
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import Command, CordonNode, UncordonNode
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import NodeJoined, NodePressured, ReplicaGone
from tensorcast.schema.ids import NodeId, Tier

Share = Annotated[float, Meta(ge=0.0, le=1.0)]


class AdmissionParameters(Parameters, frozen=True, kw_only=True):
    """Shares of a node's memory that are free: below `low` it is closed, from `high` on open."""

    low: Share = 0.05
    high: Share = 0.2


class Admission(Configured[AdmissionParameters]):
    """Closes nodes whose memory is full to new replicas, and opens them again."""

    name = "admission"
    Parameters = AdmissionParameters

    def react(self, view: ClusterView, recorded: Recorded) -> tuple[Command, ...]:
        match recorded.event:
            case NodePressured() as event if event.tier is Tier.DRAM:
                node = view.nodes[event.node]
                if node.cordoned or _free_share(view, node.id) >= self.parameters.low:
                    return ()
                if _clearable_bytes(view, event) >= event.needed_bytes:
                    return ()
                return (CordonNode(node=node.id),)
            case ReplicaGone(replica=replica):
                return self._open(view, view.replicas[replica].node)
            case NodeJoined(node=node):
                return self._open(view, node)
        return ()

    def _open(self, view: ClusterView, name: NodeId) -> tuple[Command, ...]:
        node = view.nodes.get(name)
        if node is None or not node.cordoned or node.draining:
            return ()
        if node.cordoned_by != f"policy:{self.name}":
            return ()
        if _free_share(view, name) < self.parameters.high:
            return ()
        return (UncordonNode(node=name),)


def _free_share(view: ClusterView, node: NodeId) -> float:
    capacity = view.nodes[node].tiers.get(Tier.DRAM, 0)
    return free_bytes(view, node, Tier.DRAM) / capacity if capacity else 1.0


def _clearable_bytes(view: ClusterView, event: NodePressured) -> int:
    known = [view.replicas[name] for name in event.candidates if name in view.replicas]
    return sum(size_bytes(view, replica.artifact) for replica in known)
