"""Plans of who pulls from whom, made from what the cluster knows; and new ones for those whose
source has gone. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from tensorcast.controlplane.core.broadcast import (
    LABELS,
    Feed,
    Member,
    Plan,
    place_of,
    plan_broadcast,
)
from tensorcast.controlplane.core.view import accepts, is_up, pending_operations, source_nodes
from tensorcast.schema.aggregates.operation import Operation
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.ids import ArtifactId, NodeId, Tier
from tensorcast.schema.work import Materialize


def plan_routes(
    view: ClusterView,
    artifact: ArtifactId,
    targets: Mapping[NodeId, Tier],
    labels: Sequence[str] = LABELS,
) -> Plan:
    """The sources from which each target's tier gets the artifact. What goes straight to a disk is
    placed last: it serves a chunk only once it is written."""
    ordered = sorted(targets, key=lambda node: targets[node] is Tier.DISK)
    return plan_broadcast(
        [_member(view, node, labels) for node in ordered],
        [_member(view, node, labels) for node in _holders(view, artifact, targets)],
        [
            Feed(member=_member(view, pull.node, labels), sources=_sources(pull))
            for pull in _pulls(view, artifact)
            if pull.node not in targets and _relays(view, pull)
        ],
        chunks=_chunks(view, artifact),
    )


def dependents(view: ClusterView, artifact: ArtifactId, source: NodeId) -> tuple[Operation, ...]:
    """The pulls that rely on a node."""
    return tuple(pull for pull in _pulls(view, artifact) if source in _sources(pull))


def plan_detours(
    view: ClusterView, artifact: ArtifactId, gone: NodeId, labels: Sequence[str] = LABELS
) -> Iterator[tuple[Operation, tuple[NodeId, ...]]]:
    """New sources for the pulls that rely on a node, without that node. Nobody gets a source that
    itself waits for it, at however many removes."""
    lost = dependents(view, artifact, gone)
    if not lost:
        return
    pulls = tuple(_pulls(view, artifact))
    below = _downstream(pulls, {pull.node for pull in lost})
    children = Counter(source for pull in pulls for source in _sources(pull))
    plan = plan_broadcast(
        [
            _member(view, pull.node, labels, relays=_relays(view, pull), children=children)
            for pull in lost
        ],
        [
            _member(view, node, labels)
            for node in _holders(view, artifact, {pull.node for pull in lost})
            if node != gone
        ],
        [
            Feed(member=_member(view, pull.node, labels), sources=_sources(pull))
            for pull in pulls
            if pull.node != gone and pull.node not in below and _relays(view, pull)
        ],
        chunks=_chunks(view, artifact),
    )
    for pull in lost:
        yield pull, plan[pull.node]


def _downstream(pulls: Sequence[Operation], roots: Collection[NodeId]) -> set[NodeId]:
    """These nodes, and all that get their bytes through them."""
    below, rest = set(roots), [pull for pull in pulls if pull.node not in roots]
    while found := [pull for pull in rest if below.intersection(_sources(pull))]:
        below |= {pull.node for pull in found}
        rest = [pull for pull in rest if pull.node not in below]
    return below


def _pulls(view: ClusterView, artifact: ArtifactId) -> Iterator[Operation]:
    """The materializations on nodes that are up that may still succeed, in the order in which they
    were issued."""
    found = [
        operation
        for operation in pending_operations(view, artifact)
        if isinstance(operation.work, Materialize) and is_up(view, operation.node)
    ]
    yield from sorted(found, key=lambda operation: (operation.issued_at, operation.id))


def _sources(operation: Operation) -> tuple[NodeId, ...]:
    return operation.work.sources if isinstance(operation.work, Materialize) else ()


def _relays(view: ClusterView, pull: Operation) -> bool:
    """Whether others may get their bytes through the node that pulls."""
    return accepts(view, pull.node)


def _holders(
    view: ClusterView, artifact: ArtifactId, targets: Collection[NodeId]
) -> Iterator[NodeId]:
    return (node for node in source_nodes(view, artifact) if node not in targets)


def _member(
    view: ClusterView,
    node: NodeId,
    labels: Sequence[str],
    *,
    relays: bool = True,
    children: Mapping[NodeId, int] | None = None,
) -> Member:
    found = view.nodes[node]
    return Member(
        node=node,
        bandwidth=float(found.bandwidth),
        place=place_of(found.labels, labels),
        relays=relays,
        children=(children or {}).get(node, 0),
    )


def _chunks(view: ClusterView, artifact: ArtifactId) -> int:
    return max(1, view.artifacts[artifact].manifest.chunks_total)
