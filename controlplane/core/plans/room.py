"""What nodes have to drop for what a plan would bring to them. Pure.

Which replicas go is said by the mover when it comes to it (it alone knows what was used last), so a
dry run tells how many bytes, and whether so many may go at all.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tensorcast.controlplane.core.view import (
    has_survivor,
    is_leased,
    is_pinned,
    live_replica,
    replicas_on,
    size_bytes,
    used_bytes,
)
from tensorcast.schema.aggregates.operation import Operation
from tensorcast.schema.aggregates.replica import Replica, ReplicaStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.ids import NodeId, OperationId, Tier


class Shortage(msgspec.Struct, frozen=True):
    """An operation needs `needed` bytes of a tier beside those that are free; `evictable` could
    go."""

    node: NodeId
    tier: Tier
    needed: int
    evictable: int


class Room:
    """The room that the operations of a dry run take, one after the other."""

    def __init__(self) -> None:
        self._evicted: dict[tuple[NodeId, Tier], int] = {}
        self._short: dict[OperationId, Shortage] = {}

    def take(self, view: ClusterView, operation: Operation, tier: Tier) -> None:
        """Notes what must go for a replica that an operation makes; `view` is that before it."""
        node, artifact = operation.node, operation.work.artifact
        capacity = view.nodes[node].tiers.get(tier, 0)
        if not capacity or live_replica(view, artifact, node, tier) is not None:
            return
        gone = self._evicted.get((node, tier), 0)
        free = capacity - used_bytes(view, node, tier) + gone
        needed = size_bytes(view, artifact) - free
        if needed > 0:
            evictable = sum(
                size_bytes(view, replica.artifact)
                for replica in replicas_on(view, node)
                if replica.tier is tier and _may_go(view, replica)
            )
            self._short[operation.id] = Shortage(node, tier, needed, evictable - gone)
            if not self.lacks(operation):
                self._evicted[node, tier] = gone + needed

    def lacks(self, operation: Operation) -> bool:
        """Whether an operation needs more room than there can be."""
        short = self._short.get(operation.id)
        return short is not None and short.needed > short.evictable

    def evicted_for(self, operations: Iterable[Operation]) -> int:
        """The bytes that must go for these operations."""
        return sum(one.needed for one in self._of(operations) if one.needed <= one.evictable)

    def describe(self, operations: Iterable[Operation]) -> str:
        """One sentence about the room that these operations need; "" when there is enough."""
        parts = []
        for one in self._of(operations):
            if one.needed > one.evictable:
                parts.append(
                    f"{one.node} has no room: {_size(one.needed)} of {one.tier} must go and"
                    f" {_size(max(0, one.evictable))} may"
                )
            else:
                parts.append(f"{one.node} evicts {_size(one.needed)} of {one.tier} to make room")
        return "; ".join(parts)

    def _of(self, operations: Iterable[Operation]) -> list[Shortage]:
        return [self._short[one.id] for one in operations if one.id in self._short]


def _may_go(view: ClusterView, replica: Replica) -> bool:
    """As for an eviction; the last copy may go where there is a disk to go to."""
    if replica.status is not ReplicaStatus.READY:
        return False
    spills = replica.tier is Tier.DRAM and view.nodes[replica.node].tiers.get(Tier.DISK, 0) > 0
    return (
        not is_leased(view, replica.artifact, replica.node)
        and not is_pinned(view, replica.artifact)
        and (spills or has_survivor(view, replica))
    )


def _size(size: int) -> str:
    """Bytes as people read them."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
