"""Who can be asked for an artifact, in which order: what the log says of other nodes, the plan of
the operation, and how far each peer can be relied on. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from tensorcast.movers.core.health import Standing
from tensorcast.movers.core.holdings import operation_making
from tensorcast.movers.core.pace import Pace
from tensorcast.movers.core.sources import Source
from tensorcast.schema.aggregates.node import Node, NodeStatus
from tensorcast.schema.aggregates.operation import Operation
from tensorcast.schema.aggregates.replica import Replica, ReplicaStatus
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.ids import ArtifactId, Epoch, NodeId, Tier
from tensorcast.schema.work import Materialize

DEMAND: Final = "demand"
"""The policy of operations that a reader made necessary."""

PLANNED, READY, FILLING, DOUBTED = range(4)
"""Ranks of sources. Without a plan all that have something are alike; nodes that are quarantined
come last, and only when nobody else can do it."""

DIRECT: Final = "rdma"
"""The transport that reads the memory of devices."""

LABELS: Final = ("host", "rack")
"""Nodes that share the first of these are nearest, then those that share the second."""

StandingOf = Callable[[NodeId, Epoch], Standing]
TransportsOf = Callable[[NodeId, Epoch], Sequence[str]]
"""The transports that may be tried with a life of a peer, the best first."""

RateOf = Callable[[NodeId, Epoch], float]


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """Another node that has (part of) an artifact or is about to get it (`is_coming`), and how it
    can be reached."""

    node: NodeId
    epoch: Epoch
    address: str
    transports: tuple[str, ...]
    chunks: ChunkSet
    rank: int = 0
    is_filling: bool = False
    is_coming: bool = False


def peers_with(
    view: ClusterView, artifact: ArtifactId, node: NodeId, plan: Sequence[NodeId] = ()
) -> tuple[Peer, ...]:
    """The other nodes that are up and have a replica of the artifact, ready or filling: the planned
    ones first, then the complete ones, then by name. A planned node counts as soon as an operation
    is making its replica."""
    found: dict[NodeId, Peer] = {}
    for replica, owner in _replicas_elsewhere(view, artifact, node):
        known = found.get(replica.node)
        is_filling = replica.status is ReplicaStatus.FILLING
        is_filling = is_filling and (known is None or known.is_filling)
        found[replica.node] = Peer(
            node=replica.node,
            epoch=owner.epoch,
            address=owner.address,
            transports=_ways_to(replica, owner, known),
            chunks=replica.chunks | known.chunks if known else replica.chunks,
            rank=_rank(replica.node, plan, is_filling=is_filling),
            is_filling=is_filling,
        )
    coming = (peer for peer in _coming(view, artifact, plan) if peer.node not in {node, *found})
    place = {name: number for number, name in enumerate(plan)}
    return tuple(
        sorted(
            (*found.values(), *coming),
            key=lambda peer: (peer.rank, place.get(peer.node, 0), peer.is_filling, peer.node),
        )
    )


def _replicas_elsewhere(
    view: ClusterView, artifact: ArtifactId, node: NodeId | None
) -> Iterator[tuple[Replica, Node]]:
    for id_ in view.replicas_by_artifact.get(artifact, frozenset()):
        replica = view.replicas[id_]
        owner = view.nodes.get(replica.node)
        if replica.node == node or owner is None or owner.status is not NodeStatus.UP:
            continue
        is_there = replica.status in (ReplicaStatus.FILLING, ReplicaStatus.READY)
        if is_there and _is_served(replica, owner):
            yield replica, owner


def _is_served(replica: Replica, owner: Node) -> bool:
    """No node serves what is in a store; what is in a device's memory, only an adapter reaches."""
    is_device = replica.tier is Tier.GPU
    return replica.tier is not Tier.OBJECT and (not is_device or DIRECT in owner.transports)


def _ways_to(replica: Replica, owner: Node, known: Peer | None) -> tuple[str, ...]:
    """How the replica can be had, and the others of its node that are known already."""
    if replica.tier is not Tier.GPU:
        return owner.transports
    return known.transports if known is not None else (DIRECT,)


def _rank(node: NodeId, plan: Collection[NodeId], *, is_filling: bool) -> int:
    if not plan or node in plan:
        return PLANNED
    return FILLING if is_filling else READY


def _coming(view: ClusterView, artifact: ArtifactId, plan: Iterable[NodeId]) -> Iterator[Peer]:
    for name in plan:
        owner = view.nodes.get(name)
        if owner is None or owner.status is not NodeStatus.UP:
            continue
        if is_coming(view, artifact, name):
            yield Peer(
                node=name,
                epoch=owner.epoch,
                address=owner.address,
                transports=owner.transports,
                chunks=ChunkSet(),
                rank=PLANNED,
                is_filling=True,
                is_coming=True,
            )


def is_coming(view: ClusterView, artifact: ArtifactId, node: NodeId) -> bool:
    """Whether an open operation is bringing the artifact to a node, in a tier that any peer can
    read."""
    return any(operation_making(view, artifact, node, tier) for tier in (Tier.DRAM, Tier.DISK))


def choose_sources(
    peers: Sequence[Peer],
    missing: ChunkSet,
    transports: TransportsOf,
    standing: StandingOf,
    rate: RateOf,
) -> tuple[Source, ...]:
    """The peers as sources, over the best transport that both ends have. Who is quarantined is left
    out as long as the others have what is missing; who is on probation is not relied on then."""
    shared = {
        peer.node: [t for t in transports(peer.node, peer.epoch) if t in peer.transports]
        for peer in peers
    }
    reached = [peer for peer in peers if shared[peer.node]]
    standings = {peer.node: standing(peer.node, peer.epoch) for peer in reached}
    good = [peer for peer in reached if standings[peer.node] is Standing.GOOD]
    is_covered = _covers(good, missing)
    sources: list[Source] = []
    for peer in reached:
        found = standings[peer.node]
        if found is Standing.QUARANTINED and is_covered:
            continue
        sources.append(
            Source(
                node=peer.node,
                epoch=peer.epoch,
                chunks=peer.chunks,
                rank=DOUBTED if found is Standing.QUARANTINED else peer.rank,
                is_filling=peer.is_filling,
                is_coming=peer.is_coming,
                is_trusted=found is Standing.GOOD or not is_covered,
                transport=shared[peer.node][0],
                fallbacks=tuple(shared[peer.node][1:]),
                pace=Pace(rate=rate(peer.node, peer.epoch)),
            )
        )
    return tuple(sources)


def _covers(peers: Sequence[Peer], missing: ChunkSet) -> bool:
    if any(peer.is_filling for peer in peers):
        return True
    held = ChunkSet.merge(r for peer in peers for r in peer.chunks.ranges)
    return not (missing - held).ranges


def plan_of(view: ClusterView, artifact: ArtifactId, node: NodeId) -> tuple[NodeId, ...]:
    """The sources that the node's open operation shall use now: a plan changes while it runs."""
    for tier in (Tier.DRAM, Tier.DISK, Tier.GPU):
        making = operation_making(view, artifact, node, tier)
        operation = view.operations[making] if making is not None else None
        if operation is None or not isinstance(operation.work, Materialize):
            continue
        if _is_demand(operation):
            return plan_demands(view, artifact).get(node, ())
        return operation.work.sources
    return ()


def plan_demands(view: ClusterView, artifact: ArtifactId) -> dict[NodeId, tuple[NodeId, ...]]:
    """The sources of all nodes that are getting the artifact into their memory. Those that a reader
    wants have no plan in the log: it follows from the log, by the order in which the operations
    were issued, so that all movers make the same of it, and readers who come at once form the same
    chain as those who come one after the other. A reader's node pulls from the one before it on
    which fewest others rely, the nearest of those, and of these the one that came last; the first
    pulls from all that have it (never from those that pull from it: they would wait for each
    other), and so do others while somebody who has it serves nobody."""
    getting = sorted(_getting(view, artifact), key=lambda one: (one.issued_at, one.id))
    nodes = {operation.node for operation in getting}
    holding = {r.node for r, _ in _replicas_elsewhere(view, artifact, None)} - nodes
    load = dict.fromkeys(holding, 0)
    plans: dict[NodeId, tuple[NodeId, ...]] = {}
    for operation in getting:
        assert isinstance(operation.work, Materialize), "chosen above"
        plan = operation.work.sources
        if _is_demand(operation):
            plan = _join(view, operation.node, tuple(plans), holding, load)
        for name in plan:
            load[name] = load.get(name, 0) + 1
        load.setdefault(operation.node, 0)
        plans[operation.node] = plan
    return plans


def _getting(view: ClusterView, artifact: ArtifactId) -> Iterator[Operation]:
    for id_ in view.unsettled_by_artifact.get(artifact, frozenset()):
        operation = view.operations[id_]
        work = operation.work
        is_pull = isinstance(work, Materialize) and work.tier is Tier.DRAM
        if is_pull and id_ in view.open_operations and _is_up(view, operation.node):
            yield operation


def _is_demand(operation: Operation) -> bool:
    work = operation.work
    is_open_plan = isinstance(work, Materialize) and work.tier is Tier.DRAM and not work.sources
    return is_open_plan and operation.policy == DEMAND


def _join(
    view: ClusterView,
    node: NodeId,
    before: Sequence[NodeId],
    holding: Collection[NodeId],
    load: Mapping[NodeId, int],
) -> tuple[NodeId, ...]:
    """The sources of a node that comes after those `before`, by what others rely on already."""
    if not before:
        return tuple(sorted(holding))
    least = min(load[name] for name in (*holding, *before))
    if free := [name for name in holding if load[name] == least]:
        return tuple(sorted(free))
    came = {name: number for number, name in enumerate(before)}
    waiting = [name for name in before if load[name] == least]
    return (max(waiting, key=lambda name: (nearness(view, node, name), came[name])),)


def nearness(view: ClusterView, one: NodeId, other: NodeId) -> int:
    """How near two nodes are by their labels: 0 is anywhere."""
    mine = view.nodes[one].labels if one in view.nodes else {}
    theirs = view.nodes[other].labels if other in view.nodes else {}
    for number, label in enumerate(LABELS):
        if label in mine and mine[label] == theirs.get(label):
            return len(LABELS) - number
    return 0


def _is_up(view: ClusterView, node: NodeId) -> bool:
    found = view.nodes.get(node)
    return found is not None and found.status is NodeStatus.UP and not found.cordoned
