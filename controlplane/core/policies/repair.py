"""Repair: what was there, or was promised, comes back.

Reacts to
- NodeLost, NodeDrained: replicas that were asked for on that node are made on other nodes, and so
  are last copies on a draining node.
- NodeJoined, ReplicaReady: the same for what could not be made before, for want of a source or of a
  place; and replicas that lack chunks and that nobody fills get them, now that there is a source.
- ReplicaCorrupted: filled again on its node (a mover pulls only the chunks that are missing).
- ReplicaLost: made again on its node when it was asked for.

Never acts without a complete source on a node that is up; never makes a replica that a pending
operation makes, nor a second substitute for one that is away; never touches a removed artifact.
A node that left in good order is expected back: nothing is made in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tensorcast.controlplane.core.needs import REPAIR, count_needs, requested_nodes
from tensorcast.controlplane.core.policies.base import Task, issue
from tensorcast.controlplane.core.view import (
    accepts,
    choose_node,
    count_ready,
    fill_work,
    is_away,
    is_making,
    is_ready,
    is_requested,
    is_stored,
    is_up,
    replicas_on,
    rooms,
    sealed,
    size_bytes,
)
from tensorcast.schema.aggregates.artifact import Artifact
from tensorcast.schema.aggregates.replica import Replica, ReplicaStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import Command
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import (
    NodeDrained,
    NodeJoined,
    NodeLost,
    ReplicaCorrupted,
    ReplicaLost,
    ReplicaReady,
)
from tensorcast.schema.ids import ArtifactId, NodeId, Tier
from tensorcast.schema.work import Materialize

Rooms = dict[Tier, dict[NodeId, int]]


class Repair:
    """Makes again what a lost node, a drained node or a fault took."""

    name = REPAIR

    def react(self, view: ClusterView, recorded: Recorded) -> tuple[Command, ...]:
        return issue(self.name, recorded.id, tuple(_tasks(view, recorded)))


def _tasks(view: ClusterView, recorded: Recorded) -> Iterable[Task]:
    match recorded.event:
        case NodeLost(node=node) | NodeDrained(node=node):
            return _heal(view, _touched_by(view, node))
        case NodeJoined(node=node):
            return (*_heal(view, _all_in_need(view)), *_finish(view, _whole_on(view, node)))
        case ReplicaReady(artifact=artifact):
            return (*_finish(view, [artifact]), *_heal(view, [artifact]))
        case ReplicaCorrupted(replica=replica):
            return _mend(view, view.replicas[replica])
        case ReplicaLost(replica=replica):
            return _remake(view, view.replicas[replica])
        case _:
            return ()


# ---- elsewhere -------------------------------------------------------------------------------


def _touched_by(view: ClusterView, node: NodeId) -> Iterator[ArtifactId]:
    held = {replica.artifact for replica in replicas_on(view, node)}
    wanted = held.union(view.requests_by_node.get(node, ()))
    yield from (name for name in sorted(wanted) if name in view.artifacts)


def _all_in_need(view: ClusterView) -> Iterator[ArtifactId]:
    away = [node for node in sorted(view.nodes) if is_away(view, node)]
    found = {name for node in away for name in _touched_by(view, node)}
    yield from sorted(found)


def _heal(view: ClusterView, artifacts: Iterable[ArtifactId]) -> Iterator[Task]:
    room: Rooms = {}
    for name in artifacts:
        found = sealed(view, name)
        if found is None or not (count_ready(view, name, 1) or is_stored(view, name)):
            continue
        for tier in (Tier.DRAM, Tier.DISK):
            needs = count_needs(view, found, tier)
            if needs:
                yield from _place(view, found, tier, needs, room)


def _place(
    view: ClusterView, artifact: Artifact, tier: Tier, needs: int, room: Rooms
) -> Iterator[Task]:
    """Work on as many other nodes as are needed, and there are. Modifies `room`."""
    free = room.setdefault(tier, rooms(view, tier))
    taken = set(requested_nodes(artifact, tier))
    for _ in range(needs):
        node = _choose(view, artifact.id, tier, free, taken)
        if node is None:
            return
        taken.add(node)
        free[node] -= size_bytes(view, artifact.id)
        is_here = tier is Tier.DISK and _has_bytes(view, artifact.id, node)
        if is_here or not is_making(view, artifact.id, node, Tier.DRAM):
            yield node, fill_work(view, artifact.id, node, tier)


def _choose(
    view: ClusterView,
    artifact: ArtifactId,
    tier: Tier,
    free: dict[NodeId, int],
    taken: set[NodeId],
) -> NodeId | None:
    """A place; for a disk replica rather one that has the bytes in DRAM."""
    if tier is Tier.DISK:
        warm = {node: size for node, size in free.items() if _has_bytes(view, artifact, node)}
        node = choose_node(view, artifact, tier, warm, taken)
        if node is not None:
            return node
    return choose_node(view, artifact, tier, free, taken)


def _has_bytes(view: ClusterView, artifact: ArtifactId, node: NodeId) -> bool:
    return is_ready(view, artifact, node, Tier.DRAM)


# ---- on the same node ------------------------------------------------------------------------


def _mend(view: ClusterView, replica: Replica) -> Iterator[Task]:
    if sealed(view, replica.artifact) and is_up(view, replica.node):
        yield from _refill(view, replica)


def _remake(view: ClusterView, replica: Replica) -> Iterator[Task]:
    asked = is_requested(view, replica.artifact, replica.node, replica.tier)
    if asked and sealed(view, replica.artifact) and accepts(view, replica.node):
        yield from _refill(view, replica)


def _refill(view: ClusterView, replica: Replica) -> Iterator[Task]:
    """Work for a replica that lacks chunks, on its node."""
    artifact, node, tier = replica.artifact, replica.node, replica.tier
    # What goes to a GPU may come through DRAM.
    if any(is_making(view, artifact, node, one) for one in (tier, Tier.DRAM, Tier.GPU)):
        return
    work = fill_work(view, artifact, node, tier)
    if not isinstance(work, Materialize) or work.sources:
        yield node, work


def _finish(view: ClusterView, artifacts: Iterable[ArtifactId]) -> Iterator[Task]:
    """What lacks chunks, and what nobody fills any more, of artifacts that have a source now."""
    for artifact in artifacts:
        for name in sorted(view.filling_by_artifact.get(artifact, ())):
            yield from _mend(view, view.replicas[name])


def _whole_on(view: ClusterView, node: NodeId) -> list[ArtifactId]:
    ready = (r.artifact for r in replicas_on(view, node) if r.status is ReplicaStatus.READY)
    return list(dict.fromkeys(ready))
