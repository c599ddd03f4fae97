"""Rebalance: what a busy engine's node is asked for most goes to the node of an engine beside it.

Reacts to signals on `engine.load.<engine>` that tell of `waiting` requests or more: of the
artifacts of kind `kv` (published prefixes) in the memory of the engine's node, the one that was
demanded most by others lately is requested on the node of another engine of the same model: the
one with most free memory that does not have it.

One artifact for each signal, and none while the last one is on its way. It knows of prefixes that
were published as artifacts; single KV blocks are not in the log that policies read.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    replicas_on,
    sealed,
    size_bytes,
)
from tensorcast.schema.aggregates.engine import Engine
from tensorcast.schema.aggregates.replica import ReplicaStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import Command, RequestReplicas
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import SignalEmitted
from tensorcast.schema.ids import ArtifactId, EngineId, NodeId, Tier

LOAD = "engine.load."


class RebalanceParameters(Parameters, frozen=True, kw_only=True):
    """An engine with so many requests `waiting` is busy."""

    waiting: Annotated[int, Meta(ge=1)] = 8
    kinds: tuple[str, ...] = ("kv",)


class Rebalance(Configured[RebalanceParameters]):
    """Copies the hottest published KV prefix of a busy engine's node to a node beside it."""

    name = "rebalance"
    Parameters = RebalanceParameters

    def react(self, view: ClusterView, recorded: Recorded) -> tuple[Command, ...]:
        event = recorded.event
        if not isinstance(event, SignalEmitted) or not event.topic.startswith(LOAD):
            return ()
        waiting = event.data.get("waiting")
        engine = view.engines.get(EngineId(event.topic.removeprefix(LOAD)))
        if engine is None or engine.node is None or not isinstance(waiting, int | float):
            return ()
        if waiting < self.parameters.waiting:
            return ()
        others = _beside(view, engine)
        for artifact in self._hot(view, engine.node):
            if any(is_making(view, artifact, node, Tier.DRAM) for node in others):
                return ()
            target = _choose(view, artifact, others)
            if target is not None:
                return (RequestReplicas(artifact=artifact, nodes=(target,), tier=Tier.DRAM),)
        return ()

    def _hot(self, view: ClusterView, node: NodeId) -> list[ArtifactId]:
        """The artifacts in the node's memory, those that were demanded most first."""
        here = [
            one.artifact
            for one in replicas_on(view, node)
            if one.tier is Tier.DRAM and one.status is ReplicaStatus.READY
        ]
        chosen = [
            artifact
            for artifact in here
            if (found := sealed(view, artifact)) and found.kind in self.parameters.kinds
        ]
        return sorted(chosen, key=lambda artifact: (-_demands(view, artifact), artifact))


def _demands(view: ClusterView, artifact: ArtifactId) -> int:
    return sum(operation.policy == DEMAND for operation in operations_of(view, artifact))


def _beside(view: ClusterView, engine: Engine) -> tuple[NodeId, ...]:
    return tuple(dict.fromkeys(_nodes_beside(view, engine)))


def _nodes_beside(view: ClusterView, engine: Engine) -> Iterator[NodeId]:
    for name in sorted(view.engines_up):
        other = view.engines[name]
        if other.node not in (None, engine.node) and other.model == engine.model:
            assert other.node is not None
            if accepts(view, other.node):
                yield other.node


def _choose(view: ClusterView, artifact: ArtifactId, nodes: tuple[NodeId, ...]) -> NodeId | None:
    size = size_bytes(view, artifact)
    fitting = [
        node
        for node in nodes
        if live_replica(view, artifact, node, Tier.DRAM) is None
        and not is_requested(view, artifact, node, Tier.DRAM)
        and free_bytes(view, node, Tier.DRAM) >= size
    ]
    return min(fitting, key=lambda node: (-free_bytes(view, node, Tier.DRAM), node), default=None)
