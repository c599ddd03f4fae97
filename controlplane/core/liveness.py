"""Who has been silent for too long. Times are seconds on one steady clock, given as arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from tensorcast.schema.aggregates.node import NodeStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import LoseNode
from tensorcast.schema.ids import EngineId, Epoch, LeaseId, NodeId


class Life(msgspec.Struct, frozen=True):
    """One life of a node's mover, and when it was last heard of, in seconds."""

    epoch: Epoch
    heard_s: float


class EngineLife(msgspec.Struct, frozen=True):
    """One life of an engine, and when it was last heard of, in seconds."""

    life: str
    heard_s: float


class Watch(msgspec.Struct, frozen=True):
    """When each node and engine that is up, and each lease that is held, was last heard of. Whoever
    is new here counts as heard of just now."""

    nodes: dict[NodeId, Life] = {}
    leases: dict[LeaseId, float] = {}
    engines: dict[EngineId, EngineLife] = {}


def update(
    watch: Watch,
    view: ClusterView,
    heartbeats: Mapping[NodeId, Life],
    renewals: Mapping[LeaseId, float],
    now_s: float,
    presences: Mapping[EngineId, EngineLife] | None = None,
) -> Watch:
    """The watch with what was heard since. A heartbeat of another life counts for nothing."""
    nodes = {}
    for name, node in view.nodes.items():
        if node.status is not NodeStatus.UP:
            continue
        known = watch.nodes.get(name)
        heard_s = known.heard_s if known and known.epoch == node.epoch else now_s
        heartbeat = heartbeats.get(name)
        if heartbeat is not None and heartbeat.epoch >= node.epoch:
            heard_s = max(heard_s, heartbeat.heard_s)
        nodes[name] = Life(node.epoch, heard_s)
    leases = {
        lease: max(watch.leases.get(lease, now_s), renewals.get(lease, 0.0))
        for held in view.leases_by_artifact.values()
        for lease in held
    }
    engines = {
        name: EngineLife(
            (life := view.engines[name].life),
            max(
                _last_heard(watch.engines.get(name), life, now_s),
                _last_heard((presences or {}).get(name), life, 0.0),
            ),
        )
        for name in view.engines_up
    }
    return Watch(nodes, leases, engines)


def _last_heard(known: EngineLife | None, life: str, otherwise_s: float) -> float:
    return known.heard_s if known is not None and known.life == life else otherwise_s


def forgive(watch: Watch, now_s: float) -> Watch:
    """The watch after a time in which somebody may have spoken unheard: all count as heard of just
    now."""
    return Watch(
        {name: Life(life.epoch, now_s) for name, life in watch.nodes.items()},
        dict.fromkeys(watch.leases, now_s),
        {name: EngineLife(life.life, now_s) for name, life in watch.engines.items()},
    )


def silent_nodes(watch: Watch, now_s: float, timeout_s: float) -> Iterator[LoseNode]:
    """The nodes that have been silent for `timeout_s` or more."""
    for name, life in sorted(watch.nodes.items()):
        silent_s = now_s - life.heard_s
        if silent_s >= timeout_s:
            yield LoseNode(node=name, epoch=life.epoch, silent_s=round(silent_s, 3))


def silent_leases(watch: Watch, view: ClusterView, now_s: float) -> Iterator[tuple[LeaseId, float]]:
    """The leases that were not renewed for their whole time, and for how long, in seconds."""
    for name, heard_s in sorted(watch.leases.items()):
        silent_s = now_s - heard_s
        if silent_s >= view.leases[name].ttl_s:
            yield name, silent_s


def silent_engines(
    watch: Watch, view: ClusterView, now_s: float
) -> Iterator[tuple[EngineId, str, float]]:
    """The engines that have been silent for their whole time, in which life, and for how long, in
    seconds."""
    for name, life in sorted(watch.engines.items()):
        silent_s = now_s - life.heard_s
        if silent_s >= view.engines[name].ttl_s:
            yield name, life.life, silent_s
