"""Replicate: what was asked for gets made.

Reacts to
- ReplicasRequested: one operation for each target node that does not have the replica yet. The
  operation names its sources: nodes that have the artifact, are getting it, or are other targets
  of the request, which serve the chunks that they have already. So a fan-out costs about one
  transfer (`core/broadcast.py`).
- ReplicaReady: a replica on disk or in the store that was asked for is written from the node's DRAM
  once the bytes are there; what is only for the disk is pulled straight to the disk;
  when the artifact has just got its only source, requests that found none are tried again.
- ReplicaGone: what was drained is made again when the drain was called off meanwhile.
- NodeJoined, NodeUncordoned: requests for this node that are still open; and, when it brings the
  only source of an artifact, requests for other nodes.

Never issues work to a node that is away or cordoned, for a replica that is there, or that another
pending operation makes; never touches a removed artifact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from tensorcast.controlplane.core.broadcast import LABELS
from tensorcast.controlplane.core.policies.base import Task, issue
from tensorcast.controlplane.core.routes import plan_routes
from tensorcast.controlplane.core.view import (
    DRAINED,
    accepts,
    count_ready,
    fill_work,
    has_store,
    is_making,
    is_ready,
    is_requested,
    is_stored,
    pending_operations,
    ready_replicas,
    replicas_on,
    sealed,
)
from tensorcast.schema.aggregates.replica import Replica
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import Command
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import (
    NodeJoined,
    NodeUncordoned,
    ReplicaGone,
    ReplicaReady,
    ReplicasRequested,
)
from tensorcast.schema.ids import ArtifactId, NodeId, Tier
from tensorcast.schema.work import Evict, Materialize, Persist

_ORDER = (Tier.DRAM, Tier.OBJECT, Tier.GPU, Tier.DISK)
"""What goes to the store needs DRAM, what goes to a disk does not."""
Request = tuple[NodeId, Tier]
Wanted = tuple[ArtifactId, Iterable[Request]]


class Replicate:
    """One operation for each replica that was asked for and is missing. `labels` say where a node
    is, the widest place first."""

    name = "replicate"

    def __init__(self, labels: Sequence[str] = LABELS) -> None:
        self._labels = tuple(labels)

    def react(self, view: ClusterView, recorded: Recorded) -> tuple[Command, ...]:
        tasks = (
            task
            for artifact, requests in _wanted(view, recorded)
            for task in _answer(view, artifact, requests, self._labels)
        )
        return issue(self.name, recorded.id, tuple(tasks))


def _wanted(view: ClusterView, recorded: Recorded) -> Iterable[Wanted]:
    match recorded.event:
        case ReplicasRequested(artifact=artifact, nodes=nodes, tier=tier):
            return ((artifact, [(node, tier) for node in nodes]),)
        case ReplicaReady(artifact=artifact, node=node, tier=tier):
            return _continue(view, artifact, node, tier)
        case ReplicaGone(replica=replica):
            return _bring_back(view, view.replicas[replica])
        case NodeJoined(node=node) | NodeUncordoned(node=node):
            return _welcome(view, node)
        case _:
            return ()


def _answer(
    view: ClusterView, artifact: ArtifactId, requests: Iterable[Request], labels: Sequence[str]
) -> Iterator[Task]:
    """Work for the requests that are neither met nor on their way."""
    if sealed(view, artifact) is None:
        return
    missing = [request for request in requests if _is_missing(view, artifact, *request)]
    fills: dict[NodeId, Tier] = {}
    for node, tier in sorted(missing, key=lambda request: _ORDER.index(request[1])):
        if tier is not Tier.DRAM and is_ready(view, artifact, node, Tier.DRAM):
            yield node, Persist(artifact=artifact, tier=tier)
        elif not is_making(view, artifact, node, Tier.DRAM):
            # What is in DRAM is written to disk, and to the store, from there.
            fills.setdefault(node, Tier.DRAM if tier is Tier.OBJECT else tier)
    yield from _fan_out(view, artifact, fills, labels)


def _is_missing(view: ClusterView, artifact: ArtifactId, node: NodeId, tier: Tier) -> bool:
    return (
        accepts(view, node)
        and (tier is not Tier.OBJECT or has_store(view, node))
        and not is_ready(view, artifact, node, tier)
        and not is_making(view, artifact, node, tier)
    )


def _fan_out(
    view: ClusterView,
    artifact: ArtifactId,
    targets: dict[NodeId, Tier],
    labels: Sequence[str],
) -> Iterator[Task]:
    """Fills the targets from their own disks, or as the plan of the broadcast says."""
    works = {node: fill_work(view, artifact, node, tier) for node, tier in targets.items()}
    pulls = {n: targets[n] for n, work in works.items() if isinstance(work, Materialize)}
    plan = plan_routes(view, artifact, pulls, labels)
    for node, work in works.items():
        if isinstance(work, Materialize):
            work = Materialize(artifact=artifact, sources=plan[node], tier=work.tier)
        yield node, work


def _continue(
    view: ClusterView, artifact: ArtifactId, node: NodeId, tier: Tier
) -> Iterable[Wanted]:
    found = sealed(view, artifact)
    if found is None:
        return ()
    if count_ready(view, artifact, 2) == 1:
        return ((artifact, found.requests),)
    further = [t for t in _ORDER if _ORDER.index(t) > _ORDER.index(tier) or t is Tier.OBJECT]
    wanted = [(node, other) for other in further if is_requested(view, artifact, node, other)]
    return ((artifact, wanted),) if wanted else ()


def _bring_back(view: ClusterView, replica: Replica) -> Iterable[Wanted]:
    """A request that a drain took away although its node takes replicas again."""
    was_drained = any(
        isinstance(operation.work, Evict)
        and operation.node == replica.node
        and operation.work.reason == DRAINED
        for operation in pending_operations(view, replica.artifact)
    )
    request = (replica.node, replica.tier)
    if not was_drained or not is_requested(view, replica.artifact, *request):
        return ()
    return ((replica.artifact, [request]),)


def _welcome(view: ClusterView, node: NodeId) -> Iterable[Wanted]:
    """Everything that this node was asked for and some node has, and what others waited for and
    it brings."""
    brought = sorted({replica.artifact for replica in replicas_on(view, node)})
    asked = (
        (artifact, [r for r in view.artifacts[artifact].requests if r[0] == node])
        for artifact in sorted(view.requests_by_node.get(node, ()))
        if count_ready(view, artifact, 1) or is_stored(view, artifact)
    )
    waited = (
        (artifact, [r for r in view.artifacts[artifact].requests if r[0] != node])
        for artifact in brought
        if artifact in view.artifacts and _is_only_source(view, artifact, node)
    )
    return chain(asked, waited)


def _is_only_source(view: ClusterView, artifact: ArtifactId, node: NodeId) -> bool:
    return {replica.node for replica in ready_replicas(view, artifact)} == {node}
