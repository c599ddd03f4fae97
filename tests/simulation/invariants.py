"""What must hold in every history of a cluster, whatever happened in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensorcast.controlplane.core.view import aim_of, is_ready, ready_replicas, sealed
from tensorcast.schema.aggregates.replica import ReplicaStatus
from tensorcast.schema.cluster import ClusterView, project
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import OperationIssued, ReplicaEvicting
from tensorcast.schema.ids import NodeId, Tier, replica_id
from tensorcast.schema.work import Evict


def check_history(history: Sequence[Recorded]) -> None:
    """Raises AssertionError where a history breaks a rule."""
    views = _views(history)
    assert views[-1].skipped == 0, "somebody wrote what could not follow"
    seq_of = {one.id: one.seq for one in history}
    issued = [one for one in history if isinstance(one.event, OperationIssued)]
    names = [one.event.operation for one in issued]
    assert len(names) == len(set(names)), "an operation was issued twice"
    for one in history:
        if isinstance(one.event, ReplicaEvicting):
            _check_nobody_claims(views[one.seq - 1], one)
    for one in issued:
        assert one.cause is not None, "an operation has no cause"
        window = views[seq_of[one.cause] : one.seq]
        if isinstance(one.event.work, Evict):
            assert any(_may_go(view, one.event) for view in window), one
        _check_no_double(views[one.seq - 1], one)


def _views(history: Sequence[Recorded]) -> list[ClusterView]:
    """The view after each event; the first one is empty."""
    views = [ClusterView()]
    for one in history:
        views.append(project(views[-1], one))
    return views


def _check_nobody_claims(view: ClusterView, one: Recorded) -> None:
    replica = view.replicas[one.event.replica]
    leases = [view.leases[name] for name in view.leases_by_artifact.get(replica.artifact, ())]
    assert not view.artifacts[replica.artifact].pinned, one
    assert not any(lease.node in (None, replica.node) for lease in leases), one


def _may_go(view: ClusterView, event: OperationIssued) -> bool:
    """Whether the policy could have seen a replica that nobody claims, and another copy of it (or
    that it was removed)."""
    work = event.work
    replica = view.replicas.get(replica_id(work.artifact, event.node, work.tier))
    if replica is None:
        return False
    if replica.status is ReplicaStatus.EVICTING:
        return True
    leases = [view.leases[name] for name in view.leases_by_artifact.get(work.artifact, ())]
    if any(lease.node in (None, event.node) for lease in leases):
        return False
    if sealed(view, work.artifact) is None:
        return True
    others = [other for other in ready_replicas(view, work.artifact) if other.id != replica.id]
    return (
        replica.status is ReplicaStatus.READY
        and not view.artifacts[work.artifact].pinned
        and bool(others)
    )


def _check_no_double(view: ClusterView, one: Recorded) -> None:
    aim = aim_of(one.event.node, one.event.work)
    twins = [
        view.operations[name]
        for name in view.open_operations
        if aim_of(view.operations[name].node, view.operations[name].work) == aim
    ]
    assert not twins, f"{one} has the aim of {twins}"


def unmet_requests(view: ClusterView) -> Iterator[tuple[str, NodeId, Tier]]:
    """Requests that have a source and are not met."""
    for name in sorted(view.artifacts):
        found = sealed(view, name)
        if found is None or not ready_replicas(view, name):
            continue
        for node, tier in found.requests:
            if not is_ready(view, name, node, tier):
                yield name, node, tier


def explain(view: ClusterView, history: Sequence[Recorded], artifact: str) -> str:
    """What the history says about an artifact, for a failing test."""
    lines = [
        f"{one.seq} {one.actor} {one.event}"
        for one in history
        if getattr(one.event, "artifact", None) == artifact
        or getattr(getattr(one.event, "work", None), "artifact", None) == artifact
        or str(getattr(one.event, "replica", "")).startswith(artifact)
        or getattr(one.event, "operation", None) in view.operations_by_artifact.get(artifact, ())
    ]
    return "\n".join(lines)
