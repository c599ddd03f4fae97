"""Replicate: what was asked for gets made.

Reacts to
- ReplicasRequested: one operation for each target node that does not have the replica yet. Targets
  form chains: each prefers the target before it, which serves the chunks that it has already, so a
  fan-out costs about one transfer. There are as many chains as nodes that hold the artifact.
- ReplicaReady: a disk replica that was asked for is written from the node's DRAM once the bytes are
  there, if they were on their way there; else it is pulled straight to the disk;
  when the artifact has just got its only source, requests that found none are tried again.
- ReplicaGone: what was drained is made again when the drain was called off meanwhile.
- NodeJoined, NodeUncordoned: requests for this node that are still open; and, when it brings the
  only source of an artifact, requests for other nodes.

Never issues work to a node that is away or cordoned, for a replica that is there, or that another
pending operation makes; never touches a removed artifact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from tensorcast.controlplane.core.policies.base import Task, issue
from tensorcast.controlplane.core.view import (
    DRAINED,
    accepts,
    fill_work,
    is_making,
    is_ready,
    is_requested,
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

CHAIN_NODES_MAX = 32
"""A longer chain would add more delay than another pull from the first source costs."""
Request = tuple[NodeId, Tier]


class Replicate:
    """One operation for each replica that was asked for and is missing."""

    name = "replicate"

    def react(self, view: ClusterView, recorded: Recorded) -> tuple[Command, ...]:
        return issue(self.name, recorded.id, tuple(_tasks(view, recorded)))


def _tasks(view: ClusterView, recorded: Recorded) -> Iterable[Task]:
    match recorded.event:
        case ReplicasRequested(artifact=artifact, nodes=nodes, tier=tier):
            return _answer(view, artifact, [(node, tier) for node in nodes])
        case ReplicaReady(artifact=artifact, node=node, tier=tier):
            return _continue(view, artifact, node, tier)
        case ReplicaGone(replica=replica):
            return _bring_back(view, view.replicas[replica])
        case NodeJoined(node=node) | NodeUncordoned(node=node):
            return _welcome(view, node)
        case _:
            return ()


def _answer(view: ClusterView, artifact: ArtifactId, requests: Iterable[Request]) -> Iterator[Task]:
    """Work for the requests that are neither met nor on their way."""
    if sealed(view, artifact) is None:
        return
    missing = [request for request in requests if _is_missing(view, artifact, *request)]
    fills: dict[NodeId, Tier] = {}
    for node, tier in sorted(missing, key=lambda request: request[1] is Tier.DISK):
        if tier is Tier.DISK and is_ready(view, artifact, node, Tier.DRAM):
            yield node, Persist(artifact=artifact)
        elif not is_making(view, artifact, node, Tier.DRAM):
            fills.setdefault(node, tier)  # what is in DRAM is written to disk from there
    yield from _fan_out(view, artifact, fills)


def _is_missing(view: ClusterView, artifact: ArtifactId, node: NodeId, tier: Tier) -> bool:
    return (
        accepts(view, node)
        and not is_ready(view, artifact, node, tier)
        and not is_making(view, artifact, node, tier)
    )


def _fan_out(
    view: ClusterView, artifact: ArtifactId, targets: dict[NodeId, Tier]
) -> Iterator[Task]:
    """Fills the targets along chains: target i pulls from target i - c, where c is the number of
    chains; the first of each chain from a node that has all."""
    works = [(node, fill_work(view, artifact, node, tier)) for node, tier in targets.items()]
    pulls = [node for node, work in works if isinstance(work, Materialize)]
    holders = tuple(dict.fromkeys(r.node for r in ready_replicas(view, artifact)))
    chains = max(min(len(holders), len(pulls)), -(-len(pulls) // CHAIN_NODES_MAX))
    for node, work in works:
        if isinstance(work, Materialize):
            place = pulls.index(node)
            before = pulls[place - chains : place - chains + 1] if place >= chains else []
            first = place % len(holders) if holders else 0
            turned = (*holders[first:], *holders[:first])
            sources = tuple(source for source in (*before, *turned) if source != node)
            work = Materialize(artifact=artifact, sources=sources, tier=work.tier)
        yield node, work


def _continue(view: ClusterView, artifact: ArtifactId, node: NodeId, tier: Tier) -> Iterable[Task]:
    found = sealed(view, artifact)
    if found is None:
        return ()
    if len(ready_replicas(view, artifact)) == 1:
        return _answer(view, artifact, found.requests)
    if tier is Tier.DRAM and is_requested(view, artifact, node, Tier.DISK):
        return _answer(view, artifact, [(node, Tier.DISK)])
    return ()


def _bring_back(view: ClusterView, replica: Replica) -> Iterable[Task]:
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
    return _answer(view, replica.artifact, [request])


def _welcome(view: ClusterView, node: NodeId) -> Iterable[Task]:
    """Everything that this node was asked for and some node has, and what others waited for and
    it brings."""
    brought = sorted({replica.artifact for replica in replicas_on(view, node)})
    asked = (
        _answer(view, artifact, [r for r in view.artifacts[artifact].requests if r[0] == node])
        for artifact in sorted(view.artifacts)
        if ready_replicas(view, artifact)
    )
    waited = (
        _answer(view, artifact, [r for r in view.artifacts[artifact].requests if r[0] != node])
        for artifact in brought
        if artifact in view.artifacts and _is_only_source(view, artifact, node)
    )
    return chain.from_iterable((*asked, *waited))


def _is_only_source(view: ClusterView, artifact: ArtifactId, node: NodeId) -> bool:
    return {replica.node for replica in ready_replicas(view, artifact)} == {node}
