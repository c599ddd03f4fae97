"""Who pulls an artifact from whom, when many nodes are to get it. Pure.

Replicas serve while they fill, so a chain in which each node pulls from the one before it takes
about as long as one transfer, however long it is: S/B + (depth) chunks (pipelining; Kumar and Ross,
"Peer-assisted file distribution: the minimum distribution time", 2006, give the bound). A node
feeds as many others as its uplink carries at their full rate, so a fast node is the root of a tree;
and when a chain would be longer than the artifact has chunks, nodes feed two or more, each slower.

Nodes are placed one after the other, the fast ones first, near those that are placed already: each
under the parent that can feed it fastest; of those about as fast, the nearest; of those the one
that is fewest steps from the bytes. The nodes of a rack follow each other, so its first one brings
the bytes into the rack, and they cross no other time unless a crossing is faster. A node that is
faster than its parent gets more of them, and so do the first nodes of chains while holders idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from tensorcast.schema.ids import NodeId

LABELS: Final = ("rack", "host")
"""Labels that say where a node is, the widest place first."""

FAN_MAX: Final = 4
DEPTH_MAX: Final = 64
"""A longer chain breaks too often."""

ABOUT: Final = 0.9
"""Rates that differ by less are alike: then the nearer node is the better parent."""

SOURCES_MAX: Final = 8


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A node: the bandwidth of its network each way, in any unit (0: not known), and where it is,
    the widest place first. It may feed nobody (`relays` is false), or feed so many `children`
    already that the plan does not name."""

    node: NodeId
    bandwidth: float = 0.0
    place: tuple[str, ...] = ()
    relays: bool = True
    children: int = 0


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is getting the artifact already, from these sources (none: all holders)."""

    member: Member
    sources: tuple[NodeId, ...] = ()


Plan = Mapping[NodeId, tuple[NodeId, ...]]
"""The sources of each target, the one that gives most first."""


def place_of(labels: Mapping[str, str], order: Sequence[str] = LABELS) -> tuple[str, ...]:
    """Where a node with these labels is."""
    return tuple(labels.get(label, "") for label in order)


def plan_broadcast(
    targets: Sequence[Member],
    holders: Sequence[Member],
    feeds: Sequence[Feed] = (),
    *,
    chunks: int,
    depth_max: int = DEPTH_MAX,
) -> Plan:
    """The sources of each target: holders, nodes that are getting the artifact, or other targets
    that are placed before it. Without a holder and a feed the first target has none. The same
    arguments always give the same plan."""
    board = _Board(targets, holders, feeds, chunks, depth_max)
    for target in _in_order(targets, holders):
        board.place(target)
    board.use_idle(holders, {target.node for target in targets})
    return {target.node: board.spots[target.node].sources for target in targets}


def _in_order(targets: Sequence[Member], holders: Sequence[Member]) -> list[Member]:
    """Targets in the racks that have the bytes first, then rack by rack, the rack with the fastest
    node first; fast nodes before slow ones, and the nodes of a host together."""
    have = {holder.place[:1] for holder in holders}
    fastest: dict[tuple[str, ...], float] = {}
    for target in targets:
        for depth in range(1, len(target.place) + 1):
            place = target.place[:depth]
            fastest[place] = max(fastest.get(place, 0.0), target.bandwidth)

    def key(target: Member) -> tuple[object, ...]:
        places = [target.place[: depth + 1] for depth in range(len(target.place))]
        return (
            target.place[:1] not in have,
            *((-fastest[place], place) for place in places),
            -target.bandwidth,
        )

    return sorted(targets, key=key)


class _Spot:
    """A node in the plan: what its uplink has left, the rate at which it gets the bytes, and how
    many steps it is from a holder."""

    def __init__(self, member: Member, usual: float, rate: float, depth: int) -> None:
        self.member = member
        self.bandwidth = member.bandwidth or usual
        self.free = max(0.0, self.bandwidth - member.children * min(self.bandwidth, usual))
        self.rate = rate
        self.depth = depth
        self.sources: tuple[NodeId, ...] = ()


class _Board:
    """The nodes that are placed, while a plan is made."""

    def __init__(
        self,
        targets: Sequence[Member],
        holders: Sequence[Member],
        feeds: Sequence[Feed],
        chunks: int,
        depth_max: int,
    ) -> None:
        members = [*targets, *holders, *(feed.member for feed in feeds)]
        known = sorted(member.bandwidth for member in members if member.bandwidth)
        self._usual = known[len(known) // 2] if known else 1.0
        total = len(targets) + len(feeds)
        roots = max(1, sum((h.bandwidth or self._usual) >= self._usual for h in holders))
        fan = choose_fan(-(-total // roots), chunks)
        self._enough = self._usual / fan if fan > 1 else float("inf")
        self._depth_max = depth_max
        self.spots: dict[NodeId, _Spot] = {}
        for holder in holders:
            self._add(holder, float("inf"), 0)
        self._add_feeds(feeds, [holder.node for holder in holders])

    def _add(self, member: Member, rate: float, depth: int) -> _Spot:
        spot = _Spot(member, self._usual, rate, depth)
        self.spots[member.node] = spot
        return spot

    def _add_feeds(self, feeds: Sequence[Feed], holders: Sequence[NodeId]) -> None:
        """Places what is under way, parents before children; what is left over (its sources have
        gone) is taken as just arriving from nowhere."""
        waiting = {feed.member.node: feed for feed in feeds if feed.member.node not in self.spots}
        while waiting:
            ready = [
                feed
                for feed in waiting.values()
                if not any(source in waiting for source in feed.sources)
            ] or list(waiting.values())[:1]
            for feed in ready:
                del waiting[feed.member.node]
                sources = [s for s in feed.sources or holders if s in self.spots]
                self._feed(self._add(feed.member, 0.0, 1), sources)

    def _feed(self, spot: _Spot, sources: Iterable[NodeId]) -> None:
        """The spot gets what these sources have left, up to what it can take."""
        wanted = min(spot.bandwidth, self._enough)
        parents = [self.spots[name] for name in sources]
        for parent in parents:
            given = min(parent.free, parent.rate, max(0.0, wanted - spot.rate))
            parent.free -= given
            spot.rate += given
            spot.depth = max(spot.depth, parent.depth + 1)
        spot.sources = tuple(parent.member.node for parent in parents)
        if parents and not spot.rate:  # the uplinks are shared then
            spot.rate = min(wanted, max(p.bandwidth for p in parents) / 2)

    def place(self, target: Member) -> None:
        """Chooses the sources of a target."""
        spot = _Spot(target, self._usual, 0.0, 0)
        wanted = min(spot.bandwidth, self._enough)
        chosen: list[NodeId] = []
        found = 0.0
        while len(chosen) < SOURCES_MAX and found < wanted * ABOUT:
            parent = self._best_parent(target, wanted - found, chosen)
            if parent is None:
                break
            chosen.append(parent.member.node)
            found += min(parent.free, parent.rate, wanted - found)
            if not min(parent.free, parent.rate):
                break  # it shares an uplink: one such parent is enough
        self.spots[target.node] = spot
        self._feed(spot, chosen)

    def _best_parent(self, target: Member, wanted: float, chosen: Sequence[NodeId]) -> _Spot | None:
        """See the module. When no uplink has anything left, the nearest one is shared."""
        spots = [
            spot
            for spot in self.spots.values()
            if spot.member.relays
            and spot.member.node not in chosen
            and spot.member.node != target.node
            and spot.depth < self._depth_max
            and spot.rate > 0.0
        ]
        if chosen:  # a further one must have something to give
            spots = [spot for spot in spots if spot.free > 0.05 * wanted]
        if not spots:
            return None
        best = max(min(spot.free, spot.rate, wanted) for spot in spots)
        alike = [s for s in spots if min(s.free, s.rate, wanted) >= ABOUT * best]
        return min(alike, key=lambda s: (-_nearness(s.member, target), s.depth, -s.free))

    def use_idle(self, holders: Sequence[Member], targets: set[NodeId]) -> None:
        """Holders that feed nobody help the targets that pull from holders alone, in turns; but
        where bandwidths are known, only those that can take more."""
        names = {holder.node for holder in holders}
        idle = [self.spots[h.node] for h in holders if self._is_idle(h.node)]
        heads = [
            spot
            for name, spot in self.spots.items()
            if name in targets and spot.sources and names.issuperset(spot.sources)
        ]
        for holder in idle:
            able = [head for head in heads if self._can_use(head, holder)]
            if able:
                head = min(
                    able, key=lambda s: (-_nearness(s.member, holder.member), len(s.sources))
                )
                head.sources = (*head.sources, holder.member.node)

    def _is_idle(self, node: NodeId) -> bool:
        return not any(node in spot.sources for spot in self.spots.values())

    def _can_use(self, head: _Spot, holder: _Spot) -> bool:
        own = self.spots[head.sources[0]].member
        is_near = _nearness(holder.member, head.member) >= _nearness(own, head.member)
        is_full = bool(head.member.bandwidth) and head.rate >= ABOUT * head.bandwidth
        return is_near and not is_full and len(head.sources) < SOURCES_MAX


def _nearness(one: Member, other: Member) -> int:
    """How many places two nodes share, from the widest one on."""
    shared = 0
    for mine, theirs in zip(one.place, other.place, strict=False):
        if mine != theirs:
            break
        shared += 1
    return shared


def choose_fan(nodes: int, chunks: int) -> int:
    """How many others a node feeds at once so that `nodes` of equal bandwidth get `chunks` chunks
    soonest: in units of the time of one chunk on a link, k * chunks for the bytes and k for each
    step down a tree of that width."""

    def time(fan: int) -> int:
        depth, reached, width = 0, 0, 1
        while reached < nodes:
            depth, width = depth + 1, width * fan
            reached += width
        return fan * (chunks + depth - 1)

    return min(range(1, FAN_MAX + 1), key=time)
