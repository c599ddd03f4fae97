"""What a node holds of KV blocks, and what of it the KV log has not been told yet. Pure.

Only the difference between what is held and what was told matters: a block that is stored and
evicted in between, or stored again, is not worth an event. When there is more to tell than fits
(the log was away for long), the difference is dropped and everything is told anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from tensorcast.schema.block_events import (
    BlockEvent,
    BlocksCleared,
    BlocksEvicted,
    BlocksStored,
)
from tensorcast.schema.blocks import PACKED_BYTES_MAX, PACKED_BYTES_MIN, name_key, pack_space
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import Epoch, NodeId, Tier

EVENT_KEYS: Final = 4096
"""Most keys of one event that is told: it is made and taken in within about two milliseconds."""
CHANGES_MAX: Final = 262_144
"""Most keys that wait to be told; beyond that everything is told anew."""

Held = dict[bytes, int]
Place = tuple[Tier, bytes]
"""A tier, and the space with its length: what packed keys begin with."""


class Changes(msgspec.Struct, frozen=True):
    """What is to be told next. With a `reason` all that was told before counts no more, and
    `stored` is everything that is held; sizes before (0: not told) are in `before`. `damaged`
    blocks are evicted too, and may be stored again."""

    reason: str | None
    stored: Mapping[Tier, Mapping[bytes, int]]
    evicted: Mapping[Tier, Mapping[bytes, int]]
    before: Mapping[Tier, Mapping[bytes, int]]
    damaged: Mapping[Tier, Mapping[bytes, int]] = {}

    @property
    def is_empty(self) -> bool:
        return self.reason is None and not any(
            (*self.stored.values(), *self.evicted.values(), *self.damaged.values()),
        )


class BlockLedger:
    """The blocks of a node, by tier: `held` now, and the keys that changed since they were told.
    Not thread-safe. Memory: one entry of a dictionary for each block, whose key is the object that
    was given."""

    def __init__(self, *, changes_max: int = CHANGES_MAX) -> None:
        self.held: dict[Tier, Held] = {tier: {} for tier in Tier}
        self._changes_max = changes_max
        self._before: dict[Tier, Held] = {tier: {} for tier in Tier}
        self._damaged: dict[Tier, set[bytes]] = {tier: set() for tier in Tier}
        self._reason: str | None = None

    @property
    def waiting(self) -> int:
        """Keys that changed since they were told; an upper bound of what will be told."""
        return sum(map(len, self._before.values()))

    @property
    def begins_anew(self) -> bool:
        """Whether everything is to be told, so that nothing told now matters any more."""
        return self._reason is not None

    @property
    def blocks(self) -> int:
        """How many blocks are held, in all tiers."""
        return sum(map(len, self.held.values()))

    @property
    def is_dirty(self) -> bool:
        """Whether there may be something to tell."""
        return self._reason is not None or any(self._before.values())

    def stored(self, tier: Tier, blocks: Sequence[tuple[bytes, int]]) -> None:
        """Notes that the blocks (key, size) are held."""
        held, before = self.held[tier], self._before[tier]
        for key, size_bytes in blocks:
            known = held.get(key, 0)
            if known != size_bytes:
                held[key] = size_bytes
                before.setdefault(key, known)
        self._bound()

    def evicted(self, tier: Tier, keys: Sequence[bytes]) -> None:
        """Notes that the blocks are not held any more; unknown ones are ignored."""
        held, before = self.held[tier], self._before[tier]
        for key in keys:
            known = held.pop(key, 0)
            if known:
                before.setdefault(key, known)
        self._bound()

    def damaged(self, tier: Tier, keys: Sequence[bytes]) -> None:
        """Notes that the blocks are not held any more, because they were damaged."""
        self._damaged[tier].update(key for key in keys if key in self.held[tier])
        self.evicted(tier, keys)

    def cleared(self) -> None:
        """Notes that nothing is held any more."""
        self.held = {tier: {} for tier in Tier}
        self.begin_anew("cleared")

    def begin_anew(self, reason: str) -> None:
        """Everything that is held is to be told, whatever was told before."""
        self._before = {tier: {} for tier in Tier}
        self._damaged = {tier: set() for tier in Tier}
        self._reason = reason

    def _bound(self) -> None:
        if self._reason is not None:  # all is told anyway
            for before, damaged in zip(self._before.values(), self._damaged.values(), strict=True):
                before.clear()
                damaged.clear()
        elif self.waiting > self._changes_max:
            self.begin_anew("too many changes waited to be told")

    def take(self) -> Changes:
        """What is to be told, which counts as told from now on. Whoever cannot tell it after all
        begins anew."""
        reason, self._reason = self._reason, None
        before, self._before = self._before, {tier: {} for tier in Tier}
        if reason is not None:
            copies = {tier: dict(held) for tier, held in self.held.items()}
            return Changes(reason, copies, {}, {})
        stored: dict[Tier, Held] = {}
        evicted: dict[Tier, Held] = {}
        damaged: dict[Tier, Held] = {}
        for tier, changed in before.items():
            held = self.held[tier]
            damaged[tier] = {key: was for key in self._damaged[tier] if (was := changed.get(key))}
            changed.update(dict.fromkeys(damaged[tier], 0))  # told as gone, whatever came after
            self._damaged[tier] = set()
            now = {key: held.get(key, 0) for key in changed}
            stored[tier] = {key: n for key, n in now.items() if n and n != changed[key]}
            evicted[tier] = {key: was for key, was in changed.items() if was and not now[key]}
        return Changes(None, stored, evicted, before, damaged)


class Teller:
    """Turns changes into events, with the node's totals after each. `told` counts the keys since
    the node last began anew."""

    def __init__(self, node: NodeId) -> None:
        self.told = 0
        self._node = node
        self._totals: dict[Place, tuple[int, int]] = {}

    def events(self, changes: Changes, epoch: Epoch) -> Iterator[BlockEvent]:
        """The events, in order, made as they are asked for. Modifies the totals: ask for all of
        them, or begin anew."""
        if changes.reason is not None:
            self.told = 0
            self._totals = {}
            yield BlocksCleared(node=self._node, epoch=epoch, reason=changes.reason)
        for tier, damaged in changes.damaged.items():
            for place, keys in _batches(tier, damaged):
                yield self._evicted(epoch, place, keys, damaged, _explain_damage(keys))
        for tier, evicted in changes.evicted.items():
            for place, keys in _batches(tier, evicted):
                yield self._evicted(epoch, place, keys, evicted)
        for tier, stored in changes.stored.items():
            before = changes.before.get(tier, {})
            for place, keys in _batches(tier, stored):
                yield self._stored(epoch, place, keys, stored, before)

    def _evicted(
        self,
        epoch: Epoch,
        place: Place,
        keys: Sequence[bytes],
        sizes: Mapping[bytes, int],
        reason: str = "",
    ) -> BlocksEvicted:
        blocks, size_bytes = self._add(place, -len(keys), -sum(sizes[key] for key in keys))
        tier, head = place
        self.told += len(keys)
        return BlocksEvicted(
            node=self._node,
            epoch=epoch,
            tier=tier,
            space=head[1:].decode("ascii"),
            key_bytes=len(keys[0]) - len(head),
            keys=b"".join([key[len(head) :] for key in keys]),
            held_blocks=blocks,
            held_bytes=size_bytes,
            reason=reason,
        )

    def _stored(
        self,
        epoch: Epoch,
        place: Place,
        keys: Sequence[bytes],
        stored: Mapping[bytes, int],
        before: Mapping[bytes, int],
    ) -> BlocksStored:
        sizes = [stored[key] for key in keys]
        known = [before.get(key, 0) for key in keys]
        blocks, size_bytes = self._add(place, known.count(0), sum(sizes) - sum(known))
        tier, head = place
        self.told += len(keys)
        return BlocksStored(
            node=self._node,
            epoch=epoch,
            tier=tier,
            space=head[1:].decode("ascii"),
            key_bytes=len(keys[0]) - len(head),
            keys=b"".join([key[len(head) :] for key in keys]),
            held_blocks=blocks,
            held_bytes=size_bytes,
            sizes=tuple(sizes[:1] if min(sizes) == max(sizes) else sizes),
        )

    def _add(self, place: Place, blocks: int, size_bytes: int) -> tuple[int, int]:
        known_blocks, known_bytes = self._totals.get(place, (0, 0))
        total = (known_blocks + blocks, known_bytes + size_bytes)
        self._totals[place] = total
        return total


def _explain_damage(keys: Sequence[bytes]) -> str:
    """The reason of an event on blocks whose bytes do not match their digests."""
    more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
    return f"damaged: {name_key(keys[0])}{more}"


def _batches(tier: Tier, keys: Mapping[bytes, int]) -> Iterator[tuple[Place, list[bytes]]]:
    """The keys, sorted by space and length, as many together as one event may hold."""
    groups: dict[tuple[bytes, int], list[bytes]] = {}
    for key in keys:
        groups.setdefault((key[: 1 + key[0]], len(key)), []).append(key)
    for (head, length), group in groups.items():
        if not _is_key(head, length):
            continue
        for start in range(0, len(group), EVENT_KEYS):
            yield (tier, head), group[start : start + EVENT_KEYS]


def _is_key(head: bytes, length: int) -> bool:
    """Whether keys of this length that begin so can be packed keys. Others come from nobody who
    packs keys as we do, and are told to nobody."""
    try:
        return (
            pack_space(head[1:].decode("ascii")) == head
            and PACKED_BYTES_MIN - 2 + len(head) <= length <= PACKED_BYTES_MAX
        )
    except (UnicodeDecodeError, InvalidArgument):
        return False
