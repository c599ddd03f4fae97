"""Prewarm: a new version is where the old one was, before anybody asks for it.

Reacts to
- KeyMoved from an artifact to another: the new one is requested in memory on every node that has
  the old one there.
- NodeJoined, of a node with all `labels`: what the keys that match `on_join` point to is requested
  in its memory.

Only keys that match one of `keys`. Never asks for what is there or asked for already, nor on nodes
that are away or cordoned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import msgspec

from tensorcast.controlplane.core.policies.base import Configured, Parameters
from tensorcast.controlplane.core.view import (
    accepts,
    is_requested,
    live_replica,
    replicas_of,
    sealed,
)
from tensorcast.schema.aggregates.key import KeyStatus
from tensorcast.schema.aggregates.replica import ReplicaStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import Command, RequestReplicas
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import KeyMoved, NodeJoined
from tensorcast.schema.ids import ArtifactId, NodeId, Tier


class PrewarmParameters(Parameters, frozen=True, kw_only=True):
    """Patterns of keys (`*` stands for any text): those whose new versions follow the old ones, and
    those that nodes with these `labels` get when they join."""

    keys: tuple[str, ...] = ("*",)
    on_join: tuple[str, ...] = ()
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class Prewarm(Configured[PrewarmParameters]):
    """Brings a new version to where the old one was, and what new nodes will need to them."""

    name = "prewarm"
    Parameters = PrewarmParameters

    def react(self, view: ClusterView, recorded: Recorded) -> tuple[Command, ...]:
        match recorded.event:
            case KeyMoved(key=key, artifact=artifact, previous=previous) if previous is not None:
                if _matches(key, self.parameters.keys):
                    nodes = (
                        one.node
                        for one in replicas_of(view, previous)
                        if one.tier is Tier.DRAM and one.status is ReplicaStatus.READY
                    )
                    return tuple(_request(view, artifact, nodes))
            case NodeJoined(node=node) if self.parameters.on_join:
                return tuple(self._welcome(view, node))
        return ()

    def _welcome(self, view: ClusterView, node: NodeId) -> Iterator[Command]:
        labels = view.nodes[node].labels
        if any(labels.get(name) != value for name, value in self.parameters.labels.items()):
            return
        wanted = {
            view.keys[key].artifact
            for key in view.keys
            if view.keys[key].status is KeyStatus.SET and _matches(key, self.parameters.on_join)
        }
        for artifact in sorted(wanted):
            yield from _request(view, artifact, iter((node,)))


def _matches(key: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in patterns)


def _request(
    view: ClusterView, artifact: ArtifactId, nodes: Iterator[NodeId]
) -> Iterator[RequestReplicas]:
    missing = tuple(
        node
        for node in nodes
        if accepts(view, node)
        and live_replica(view, artifact, node, Tier.DRAM) is None
        and not is_requested(view, artifact, node, Tier.DRAM)
    )
    if missing and sealed(view, artifact):
        yield RequestReplicas(artifact=artifact, nodes=missing, tier=Tier.DRAM)
