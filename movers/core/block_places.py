"""Which node holds which KV block: the KV log, folded into something small. Pure.

A key is kept as its 64-bit hash, and its holders as one tuple that all keys with the same holders
share. So a block costs one entry of a dictionary and one number, about 110 bytes, however long its
key is and whatever its holders are called. Two keys with one hash would be taken for one another:
then a node is asked for a block that it does not have, and says so.

Each life of what a node says has slots of its own, one for each tier. When a node begins anew, its
old slots die at once, and what lies there is swept away step by step.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Final

import msgspec

from tensorcast.schema.aggregates.node import Node, NodeStatus
from tensorcast.schema.block_events import (
    BlockEvent,
    BlocksCleared,
    BlocksEvicted,
    BlocksStored,
    iterate_keys,
)
from tensorcast.schema.ids import Epoch, NodeId, Tier

SWEEP_KEYS: Final = 10_000
"""So many keys are looked at in one step of a sweep."""

Slots = tuple[int, ...]
NOWHERE: Final[Slots] = ()


class _Slot(msgspec.Struct, frozen=True):
    node: NodeId
    epoch: Epoch
    tier: Tier


class _Speaker(msgspec.Struct):
    """What a node says in its life `epoch` since it last began anew."""

    epoch: Epoch
    slots: dict[Tier, int]


class _Names(dict[Slots, tuple[NodeId, ...]]):
    """The holders that can be asked, for each tuple of slots: worked out once for each state of
    the nodes."""

    def __init__(self, places: BlockPlaces, nodes: Mapping[NodeId, Node]) -> None:
        super().__init__({NOWHERE: ()})
        self.nodes = nodes
        self._places = places

    def __missing__(self, slots: Slots) -> tuple[NodeId, ...]:
        found = self._places.name(slots, self.nodes)
        self[slots] = found
        return found


class BlockPlaces:
    """Where blocks are, as far as other nodes than `own` have said. One thread applies events and
    sweeps; any thread may look up at the same time, without a lock: it sees each key as before or
    as after an event."""

    def __init__(self, own: NodeId) -> None:
        self._own = own
        self._places: dict[int, Slots] = {}
        self._slots: dict[int, _Slot] = {}
        self._dead: set[int] = set()
        self._speakers: dict[NodeId, _Speaker] = {}
        self._next = 0
        self._shared: dict[Slots, Slots] = {}
        self._sweeping: list[int] = []
        self._doomed: set[int] = set()
        self._names = _Names(self, {})

    def __len__(self) -> int:
        """How many keys are somewhere; those that are still to be swept away count."""
        return len(self._places)

    # ---- looking up ------------------------------------------------------------------------

    def locate(
        self, keys: Sequence[bytes], nodes: Mapping[NodeId, Node]
    ) -> list[tuple[NodeId, ...]]:
        """For each packed key the nodes that are up, in the life that spoke, and hold it: those
        that have it in memory first. Which of them comes first differs from node to node, so that
        not all ask the same one."""
        names = self._names
        if names.nodes is not nodes:
            names = self._names = _Names(self, nodes)
        place_of = self._places.get
        return [names[place_of(hash(key), NOWHERE)] for key in keys]

    def name(self, slots: Slots, nodes: Mapping[NodeId, Node]) -> tuple[NodeId, ...]:
        """The nodes behind slots, the best first."""
        tiers: dict[NodeId, Tier] = {}
        for slot in slots:
            said = self._slots.get(slot)
            if said is None or slot in self._dead or not _is_up(nodes.get(said.node), said.epoch):
                continue
            if tiers.get(said.node) is not Tier.DRAM:
                tiers[said.node] = said.tier
        return tuple(sorted(tiers, key=lambda one: (tiers[one] is not Tier.DRAM, self._rank(one))))

    def _rank(self, node: NodeId) -> int:
        return zlib.crc32(f"{self._own}>{node}".encode())

    # ---- following -------------------------------------------------------------------------

    def apply(self, event: BlockEvent) -> None:
        """Takes in one event, in the order of the log. What an older life of a node says is
        ignored; so is what the own node says."""
        if event.node == self._own:
            return
        speaker = self._speakers.get(event.node)
        if speaker is not None and event.epoch < speaker.epoch:
            return
        if speaker is None or event.epoch > speaker.epoch or isinstance(event, BlocksCleared):
            speaker = self._begin(event.node, event.epoch)
        if isinstance(event, BlocksStored):
            self._add(map(hash, iterate_keys(event)), self._slot(event, speaker))
        elif isinstance(event, BlocksEvicted):
            self._remove(map(hash, iterate_keys(event)), self._slot(event, speaker))

    def _begin(self, node: NodeId, epoch: Epoch) -> _Speaker:
        old = self._speakers.get(node)
        if old is not None and old.slots:
            self._dead.update(old.slots.values())
            self._names = _Names(self, self._names.nodes)
        speaker = self._speakers[node] = _Speaker(epoch, {})
        return speaker

    def _slot(self, event: BlocksStored | BlocksEvicted, speaker: _Speaker) -> int:
        slot = speaker.slots.get(event.tier)
        if slot is None:
            slot = speaker.slots[event.tier] = self._next
            self._next += 1
            self._slots[slot] = _Slot(event.node, event.epoch, event.tier)
        return slot

    def _add(self, hashes: Iterable[int], slot: int) -> None:
        places = self._places
        known: dict[Slots, Slots] = {}
        for number in hashes:
            old = places.get(number, NOWHERE)
            new = known.get(old)
            if new is None:
                new = known[old] = self._share((*(s for s in old if s != slot), slot))
            places[number] = new

    def _remove(self, hashes: Iterable[int], slot: int) -> None:
        places = self._places
        for number in hashes:
            old = places.get(number)
            if old is None:
                continue
            new = self._share(tuple(s for s in old if s != slot))
            if new:
                places[number] = new
            else:
                del places[number]

    def _share(self, slots: Slots) -> Slots:
        """The one tuple of these slots that live."""
        alive = tuple(sorted(slot for slot in slots if slot not in self._dead))
        return self._shared.setdefault(alive, alive)

    # ---- sweeping --------------------------------------------------------------------------

    @property
    def needs_sweep(self) -> bool:
        """Whether slots have died whose keys are not all swept away."""
        return bool(self._dead)

    def sweep(self, count: int = SWEEP_KEYS) -> None:
        """Looks at up to `count` keys and drops their dead holders. Call it again as long as
        `needs_sweep`."""
        if not self._sweeping:
            self._doomed = set(self._dead)
            self._sweeping = list(self._places)
            self._shared = {}
        for _ in repeat(None, min(count, len(self._sweeping))):
            number = self._sweeping.pop()
            old = self._places.get(number)
            if old is None:
                continue
            new = self._share(old)
            if new:
                self._places[number] = new
            else:
                del self._places[number]
        if not self._sweeping:
            self._dead -= self._doomed
            for slot in self._doomed:
                del self._slots[slot]
            self._names = _Names(self, self._names.nodes)


def _is_up(node: Node | None, epoch: Epoch) -> bool:
    return node is not None and node.status is NodeStatus.UP and node.epoch == epoch
