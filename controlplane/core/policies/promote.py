"""Promote: what is read often from the disk is brought into memory, as long as there is room.

Reacts to NodeRelieved: loads the most popular candidates, in order, that fit into what is free.

Never makes anything go for it (the work says so, and the mover looks again), never loads what is in
memory or on its way there, and nothing on a node that is cordoned.
"""

from __future__ import annotations

from collections.abc import Iterator

from tensorcast.controlplane.core.policies.base import Task, issue
from tensorcast.controlplane.core.view import (
    accepts,
    free_bytes,
    is_making,
    live_replica,
    sealed,
    size_bytes,
)
from tensorcast.schema.aggregates.replica import Replica, ReplicaStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import Command
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import NodeRelieved
from tensorcast.schema.ids import Tier
from tensorcast.schema.work import Load


class Promote:
    """Loads popular disk replicas into memory that nobody needs."""

    name = "promote"

    def react(self, view: ClusterView, recorded: Recorded) -> tuple[Command, ...]:
        event = recorded.event
        if not isinstance(event, NodeRelieved) or event.tier is not Tier.DRAM:
            return ()
        return issue(self.name, recorded.id, tuple(_tasks(view, event)))


def _tasks(view: ClusterView, event: NodeRelieved) -> Iterator[Task]:
    room = min(event.free_bytes, free_bytes(view, event.node, Tier.DRAM))
    found = (view.replicas[name] for name in event.candidates if name in view.replicas)
    for replica in dict.fromkeys(found):
        size = size_bytes(view, replica.artifact)
        if size <= room and _is_liftable(view, replica, event):
            room -= size
            yield event.node, Load(artifact=replica.artifact, if_room=True)


def _is_liftable(view: ClusterView, replica: Replica, event: NodeRelieved) -> bool:
    artifact, node = replica.artifact, replica.node
    return (
        node == event.node
        and replica.tier is Tier.DISK
        and replica.status is ReplicaStatus.READY
        and sealed(view, artifact) is not None
        and accepts(view, node)
        and live_replica(view, artifact, node, Tier.DRAM) is None
        and not is_making(view, artifact, node, Tier.DRAM)
    )
