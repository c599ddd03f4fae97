"""Evict: room is made, and what was removed goes.

Reacts to
- NodePressured in DRAM: drops the coldest candidates until the needed bytes are covered, those that
  nobody asked for first. When one is the last complete copy in the cluster it is written to the
  node's disk first, if the node's overflow is "spill" (with "evict" it stays; with "reject" nothing
  goes at all).
- NodePressured on disk: drops the coldest candidates of which a copy stays elsewhere, rather those
  that another disk has; never what somebody asked for there.
- ReplicaReady on disk, when this policy had it written: now the copy in DRAM may go. (The mover
  reports pressure anew when that was not enough.)
- ArtifactRemoved: cancels what is still being made, and drops every replica; so do ReplicaStarted,
  ReplicaReady and NodeJoined with a replica of something that was removed meanwhile.
- LeaseReleased, LeaseExpired: replicas of a removed artifact that the lease had kept.

Under pressure it never drops a replica that is leased, pinned, still filling, in use by an open
operation of its node, or the last complete copy: rather the node refuses what is new. A leased
replica stays even when its artifact is removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tensorcast.controlplane.core.policies.base import Task, issue
from tensorcast.controlplane.core.view import (
    PRESSURE,
    REMOVED,
    free_bytes,
    has_survivor,
    is_being_evicted,
    is_free,
    is_leased,
    is_making,
    is_pinned,
    is_requested,
    is_up,
    live_replica,
    open_operations_at,
    operations_of,
    pending_operations,
    ready_replicas,
    replicas_of,
    replicas_on,
    sealed,
    size_bytes,
)
from tensorcast.schema.aggregates.operation import OPEN, Operation
from tensorcast.schema.aggregates.replica import Replica, ReplicaStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import CancelOperation, Command
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import (
    ArtifactRemoved,
    LeaseExpired,
    LeaseReleased,
    NodeJoined,
    NodePressured,
    ReplicaReady,
    ReplicaStarted,
)
from tensorcast.schema.ids import ArtifactId, NodeId, Overflow, Tier
from tensorcast.schema.work import Evict as EvictWork
from tensorcast.schema.work import Persist, target_tier


class Evict:
    """Drops what is cold under pressure, and all of what was removed."""

    name = "evict"

    def react(self, view: ClusterView, recorded: Recorded) -> tuple[Command, ...]:
        cancels = _cancels(view, recorded)
        return (*cancels, *issue(self.name, recorded.id, tuple(_tasks(view, recorded))))


def _tasks(view: ClusterView, recorded: Recorded) -> Iterable[Task]:
    match recorded.event:
        case NodePressured() as event:
            return _make_room(view, event)
        case ReplicaReady() as event if sealed(view, event.artifact):
            return _demote(view, event)
        case (
            ReplicaStarted(artifact=artifact)
            | ReplicaReady(artifact=artifact)
            | ArtifactRemoved(artifact=artifact)
        ):
            return _drop_all(view, artifact)
        case LeaseReleased(lease=lease) | LeaseExpired(lease=lease):
            return _drop_all(view, view.leases[lease].artifact)
        case NodeJoined(node=node):
            removed = dict.fromkeys(replica.artifact for replica in replicas_on(view, node))
            return (task for artifact in removed for task in _drop_all(view, artifact))
        case _:
            return ()


def _cancels(view: ClusterView, recorded: Recorded) -> Iterator[Command]:
    """Nothing removed is still made."""
    if isinstance(recorded.event, ArtifactRemoved):
        for operation in operations_of(view, recorded.event.artifact):
            if operation.status in OPEN and target_tier(operation.work):
                yield CancelOperation(operation=operation.id, reason="the artifact was removed")


def _drop_all(view: ClusterView, artifact: ArtifactId) -> Iterator[Task]:
    if sealed(view, artifact):
        return
    for replica in replicas_of(view, artifact):
        if (
            replica.status in (ReplicaStatus.READY, ReplicaStatus.FILLING)
            and is_up(view, replica.node)
            and not is_leased(view, artifact, replica.node)
            and not is_being_evicted(view, replica)
        ):
            yield replica.node, EvictWork(artifact=artifact, tier=replica.tier, reason=REMOVED)


# ---- pressure --------------------------------------------------------------------------------


def _make_room(view: ClusterView, event: NodePressured) -> Iterator[Task]:
    overflow = view.nodes[event.node].overflow
    if event.tier is Tier.DRAM and overflow is Overflow.REJECT:
        return
    missing = event.needed_bytes - _leaving_bytes(view, event)
    spills = event.tier is Tier.DRAM and overflow is Overflow.SPILL
    disk = _disk_room(view, event.node) if spills else 0
    for replica in _by_worth(view, event):
        if missing <= 0:
            return
        size = size_bytes(view, replica.artifact)
        if not sealed(view, replica.artifact) or has_survivor(view, replica):
            yield event.node, EvictWork(artifact=replica.artifact, tier=event.tier, reason=PRESSURE)
        elif spills and size <= disk:
            disk -= size
            yield event.node, Persist(artifact=replica.artifact)
        else:
            continue
        missing -= size


def _disk_room(view: ClusterView, node: NodeId) -> int:
    """Bytes that can be written to the node's disk: those that are free and not spoken for, and
    those of replicas that may go from there (its mover calls for that when it needs the room)."""
    coming = sum(
        size_bytes(view, operation.work.artifact)
        for operation in open_operations_at(view, node)
        if target_tier(operation.work) is Tier.DISK
        and live_replica(view, operation.work.artifact, node, Tier.DISK) is None
    )
    going = sum(
        size_bytes(view, replica.artifact)
        for replica in replicas_on(view, node)
        if replica.tier is Tier.DISK and _may_leave_disk(view, replica)
    )
    return free_bytes(view, node, Tier.DISK) - coming + going


def _may_leave_disk(view: ClusterView, replica: Replica) -> bool:
    return (
        is_free(view, replica)
        and has_survivor(view, replica)
        and not is_requested(view, replica.artifact, replica.node, Tier.DISK)
    )


def _leaving_bytes(view: ClusterView, event: NodePressured) -> int:
    """What earlier decisions will free on the node in the tier."""
    return sum(
        size_bytes(view, operation.work.artifact)
        for operation in open_operations_at(view, event.node)
        if (isinstance(operation.work, EvictWork) and operation.work.tier is event.tier)
        or (event.tier is Tier.DRAM and _is_spill(operation))
    )


def _is_spill(operation: Operation) -> bool:
    return isinstance(operation.work, Persist) and operation.policy == Evict.name


def _by_worth(view: ClusterView, event: NodePressured) -> list[Replica]:
    """The candidates that may go: the coldest first, but those that were asked for, and then
    those that must be saved, later."""
    found = [view.replicas[name] for name in event.candidates if name in view.replicas]
    free = [replica for replica in dict.fromkeys(found) if _may_go(view, replica, event)]
    return sorted(
        free,
        key=lambda replica: (
            is_requested(view, replica.artifact, replica.node, replica.tier),
            not has_survivor(view, replica),
            event.tier is Tier.DISK and not _is_on_other_disk(view, replica),
        ),
    )


def _is_on_other_disk(view: ClusterView, replica: Replica) -> bool:
    others = ready_replicas(view, replica.artifact)
    return any(other.tier is Tier.DISK and other.id != replica.id for other in others)


def _may_go(view: ClusterView, replica: Replica, event: NodePressured) -> bool:
    if (replica.node, replica.tier) != (event.node, event.tier):
        return False
    if event.tier is Tier.DISK and sealed(view, replica.artifact):
        return _may_leave_disk(view, replica)
    return is_free(view, replica)


def _demote(view: ClusterView, event: ReplicaReady) -> Iterator[Task]:
    """Drops the DRAM replica that was written to disk for that purpose."""
    if event.tier is not Tier.DISK or not _wrote_to_evict(view, event):
        return
    replica = live_replica(view, event.artifact, event.node, Tier.DRAM)
    if (
        replica is not None
        and replica.status is ReplicaStatus.READY
        and not is_pinned(view, event.artifact)
        and not is_leased(view, event.artifact, event.node)
        and not is_being_evicted(view, replica)
        and not is_making(view, event.artifact, event.node, Tier.DRAM)
    ):
        work = EvictWork(artifact=event.artifact, tier=Tier.DRAM, reason=PRESSURE)
        yield event.node, work


def _wrote_to_evict(view: ClusterView, event: ReplicaReady) -> bool:
    return any(
        operation.node == event.node and _is_spill(operation)
        for operation in pending_operations(view, event.artifact)
    )
