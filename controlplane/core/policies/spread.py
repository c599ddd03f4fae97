"""Spread: what several nodes had to wait for is brought to the others, before they ask.

Reacts to OperationIssued of policy "demand" (a `get` had to bring an artifact to its node): when
`readers` nodes have done so with one artifact within `window_s` seconds, replicas of it are
requested in the memory of the nodes that have the same labels as the reader (`alike`), or of all.

Never asks for what is there, on its way or asked for already, nor on nodes that are away, cordoned
or without so much free memory; never for what was removed.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from msgspec import Meta

from tensorcast.controlplane.core.policies.base import Configured, Parameters
from tensorcast.controlplane.core.view import (
    DEMAND,
    accepts,
    free_bytes,
    is_making,
    is_requested,
    live_replica,
    operations_of,
    sealed,
    size_bytes,
)
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import Command, RequestReplicas
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import OperationIssued
from tensorcast.schema.ids import ArtifactId, NodeId, Tier


class SpreadParameters(Parameters, frozen=True, kw_only=True):
    """`readers` on different nodes within `window_s` seconds are a demand; `alike` names labels
    that the new nodes share with the last reader; `nodes_max` is the most that are added at once;
    `kinds` of artifacts (empty: all)."""

    readers: Annotated[int, Meta(ge=1)] = 2
    window_s: Annotated[float, Meta(gt=0)] = 300.0
    alike: tuple[str, ...] = ()
    nodes_max: Annotated[int, Meta(ge=1)] = 16
    kinds: tuple[str, ...] = ("weights", "adapter")


class Spread(Configured[SpreadParameters]):
    """Replicates to demand: what several nodes had to wait for goes to the others too."""

    name = "spread"
    Parameters = SpreadParameters

    def react(self, view: ClusterView, recorded: Recorded) -> tuple[Command, ...]:
        event = recorded.event
        if not isinstance(event, OperationIssued) or event.policy != DEMAND:
            return ()
        artifact = event.work.artifact
        found, wanted = sealed(view, artifact), self.parameters
        if found is None or (wanted.kinds and found.kind not in wanted.kinds):
            return ()
        since = recorded.at - timedelta(seconds=wanted.window_s)
        readers = {
            operation.node
            for operation in operations_of(view, artifact)
            if operation.policy == DEMAND and operation.issued_at >= since
        }
        if len(readers) < wanted.readers:
            return ()
        nodes = self._targets(view, artifact, event.node)
        if not nodes:
            return ()
        return (RequestReplicas(artifact=artifact, nodes=nodes, tier=Tier.DRAM),)

    def _targets(
        self, view: ClusterView, artifact: ArtifactId, reader: NodeId
    ) -> tuple[NodeId, ...]:
        like, size = view.nodes[reader].labels, size_bytes(view, artifact)
        found = [
            node
            for node in sorted(view.nodes)
            if accepts(view, node)
            and all(view.nodes[node].labels.get(n) == like.get(n) for n in self.parameters.alike)
            and not is_requested(view, artifact, node, Tier.DRAM)
            and live_replica(view, artifact, node, Tier.DRAM) is None
            and not is_making(view, artifact, node, Tier.DRAM)
            and free_bytes(view, node, Tier.DRAM) >= size
        ]
        return tuple(found[: self.parameters.nodes_max])
