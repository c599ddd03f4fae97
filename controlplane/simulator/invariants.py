"""What must hold after every event of a cluster, whatever happened before. Each check costs what
the event touches, not what the cluster holds."""

from __future__ import annotations

from tensorcast.controlplane.core.view import (
    aim_of,
    has_survivor,
    is_leased,
    is_pinned,
    pending_operations,
    sealed,
    used_bytes,
)
from tensorcast.schema.aggregates.operation import OPEN
from tensorcast.schema.aggregates.replica import ReplicaStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import (
    OperationIssued,
    ReplicaEvicting,
    ReplicaReady,
    ReplicaStarted,
)


def check_event(before: ClusterView, after: ClusterView, recorded: Recorded) -> None:
    """Raises AssertionError where an event breaks a rule of the cluster."""
    assert after.skipped == before.skipped, f"{recorded} cannot follow"
    event = recorded.event
    if isinstance(event, OperationIssued):
        _check_no_twin(before, event)
    elif isinstance(event, ReplicaEvicting):
        _check_may_go(before, event)
    elif isinstance(event, ReplicaStarted | ReplicaReady):
        _check_room(before, after, event)


def _check_no_twin(view: ClusterView, event: OperationIssued) -> None:
    aim = aim_of(event.node, event.work)
    twins = [
        other
        for other in pending_operations(view, event.work.artifact)
        if other.status in OPEN and aim_of(other.node, other.work) == aim
    ]
    assert not twins, f"{event} has the aim of {twins}"


def _check_may_go(view: ClusterView, event: ReplicaEvicting) -> None:
    replica = view.replicas[event.replica]
    assert not is_leased(view, replica.artifact, replica.node), f"{event}: it is leased"
    if sealed(view, replica.artifact) and replica.status is ReplicaStatus.READY:
        assert not is_pinned(view, replica.artifact), f"{event}: it is pinned"
        assert has_survivor(view, replica), f"{event}: it is the last copy"


def _check_room(
    before: ClusterView, after: ClusterView, event: ReplicaStarted | ReplicaReady
) -> None:
    node = after.nodes.get(event.node)
    used = used_bytes(after, event.node, event.tier)
    if node is None or used <= used_bytes(before, event.node, event.tier):
        return
    capacity = node.tiers.get(event.tier, 0)
    assert not capacity or used <= capacity, f"{event}: {used} bytes of {capacity}"
