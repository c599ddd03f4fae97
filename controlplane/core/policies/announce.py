"""Announce: what happens to the cluster is said as signals, for those who read signals alone.

Reacts to the events behind the topics of `schema/system_signals.py` and emits a signal for each:
weights.published, replica.ready, node.joined, node.left, node.lost, memory.pressure, kv.stored,
kv.evicted. The signal's cause is the event; its id follows from it.

Only `topics` that are chosen: replica.ready and kv.* are as many as the replicas that come and go,
so they are not among those that are said unless somebody wants it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tensorcast.controlplane.core.policies.base import Configured, Parameters
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import Command, EmitSignal
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import (
    KeyMoved,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodePressured,
    ReplicaGone,
    ReplicaReady,
)
from tensorcast.schema.ids import ArtifactId
from tensorcast.schema.signals import Topic
from tensorcast.schema.system_signals import (
    KV_EVICTED,
    KV_STORED,
    MEMORY_PRESSURE,
    NODE_JOINED,
    NODE_LEFT,
    NODE_LOST,
    REPLICA_READY,
    WEIGHTS_PUBLISHED,
)

WEIGHTS = ("weights", "adapter")
KV = "kv"
Said = tuple[str, dict[str, object]]


class AnnounceParameters(Parameters, frozen=True, kw_only=True):
    """The topics that are said."""

    topics: tuple[str, ...] = (
        WEIGHTS_PUBLISHED,
        NODE_JOINED,
        NODE_LEFT,
        NODE_LOST,
        MEMORY_PRESSURE,
    )


class Announce(Configured[AnnounceParameters]):
    """Says as signals what happens to nodes, weights, replicas and published KV."""

    name = "announce"
    Parameters = AnnounceParameters

    def react(self, view: ClusterView, recorded: Recorded) -> tuple[Command, ...]:
        return tuple(
            EmitSignal(topic=Topic(topic), data=data)
            for topic, data in _said(view, recorded)
            if topic in self.parameters.topics
        )


def _said(view: ClusterView, recorded: Recorded) -> Iterator[Said]:
    match recorded.event:
        case KeyMoved() as event:
            kind = _kind(view, event.artifact)
            if kind in WEIGHTS:
                yield (
                    WEIGHTS_PUBLISHED,
                    {"key": event.key, "artifact": event.artifact, "kind": kind},
                )
        case ReplicaReady() as event:
            place = {"artifact": event.artifact, "node": event.node, "tier": event.tier.value}
            yield REPLICA_READY, {**place}
            if _kind(view, event.artifact) == KV:
                yield KV_STORED, {**place}
        case ReplicaGone(replica=name):
            gone = view.replicas[name]
            if _kind(view, gone.artifact) == KV:
                place = {"artifact": gone.artifact, "node": gone.node, "tier": gone.tier.value}
                yield KV_EVICTED, {**place}
        case NodeJoined() as event:
            yield NODE_JOINED, {"node": event.node, "epoch": event.epoch}
        case NodeLeft() as event:
            yield NODE_LEFT, {"node": event.node, "epoch": event.epoch}
        case NodeLost() as event:
            lost = {"node": event.node, "epoch": event.epoch, "silent_s": event.silent_s}
            yield NODE_LOST, lost
        case NodePressured() as event:
            said = {"node": event.node, "tier": event.tier.value}
            yield MEMORY_PRESSURE, {**said, "needed_bytes": event.needed_bytes}
        case _:
            return


def _kind(view: ClusterView, artifact: ArtifactId) -> str:
    found = view.artifacts.get(artifact)
    return found.kind if found else ""
