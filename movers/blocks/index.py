"""What is known about the blocks in a node's slabs: where each is, and what it is worth.

Only looked at and changed under the store's lock. Uses are noted in passing and counted later: a
lookup costs nothing but the lookup.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice

from tensorcast.movers.core.block_eviction import (
    BlockPolicy,
    Occupant,
    aged,
    choose_victims,
    is_time_to_age,
)
from tensorcast.schema.block_wire import NOWHERE

WINDOW_MIN = 256
WINDOW_SHARE = 16
"""Victims are chosen among the least recently used: this many, or one in so many of all."""
NOTED_MAX = 256


class BlockIndex:
    """Blocks by key. An entry is a place and a size, as on the wire."""

    def __init__(self, policy: BlockPolicy) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.digests: dict[bytes, bytes] = {}
        self.lookups = 0
        self._policy = policy
        self._recent: dict[int, OrderedDict[bytes, None]] = {0: OrderedDict()}
        self._priorities: dict[bytes, int] = {}
        self._uses: Counter[bytes] = Counter()
        self._uses_since = 0
        self._noted: list[Sequence[bytes]] = []

    def look_up(self, keys: Sequence[bytes]) -> bytes:
        """The entries of blocks, one after the other; NOWHERE for each that is not there. Counts
        as a use."""
        get = self.entries.get
        found = b"".join([get(key, NOWHERE) for key in keys])
        self.note(keys)
        return found

    def note(self, keys: Sequence[bytes]) -> None:
        """A use of these blocks. Unknown ones are ignored."""
        self._noted.append(keys)
        self.lookups += 1
        if len(self._noted) > NOTED_MAX:
            self.count_uses()

    def add(self, keys: Sequence[bytes], entries: Sequence[bytes], priority: int) -> None:
        """New blocks, which count as just used."""
        self.entries.update(zip(keys, entries, strict=True))
        level = priority if self._policy is BlockPolicy.PRIORITY else 0
        recent = self._recent.setdefault(level, OrderedDict())
        for key in keys:
            recent[key] = None
        if level:
            self._priorities.update(dict.fromkeys(keys, level))

    def remove(self, key: bytes) -> bytes:
        """Forgets a block; returns its entry."""
        del self._recent[self._priorities.pop(key, 0)][key]
        self.digests.pop(key, None)
        self._uses.pop(key, None)
        return self.entries.pop(key)

    def count_uses(self) -> None:
        """Takes in the uses that were noted."""
        priorities = self._priorities
        levels, default = self._recent, self._recent[0]
        for keys in self._noted:
            for key in keys:
                if key in self.entries:
                    level = levels[priorities[key]] if key in priorities else default
                    level.move_to_end(key)
            self._uses_since += len(keys)
        if self._policy is BlockPolicy.LFU:
            self._count()
        self._noted.clear()

    def _count(self) -> None:
        for keys in self._noted:
            self._uses.update(key for key in keys if key in self.entries)
        if is_time_to_age(self._uses_since, len(self.entries)):
            self._uses = Counter(aged(self._uses))
            self._uses_since = 0

    def coldest(self) -> Iterator[bytes]:
        """All keys, by level, and in each the least recently used first."""
        self.count_uses()
        for level in sorted(self._recent):
            yield from self._recent[level]

    def is_hot(self, slabs: frozenset[bytes]) -> bool:
        """Whether all blocks of these slabs were used more recently than half of all blocks."""
        half = islice(self.coldest(), len(self.entries) // 2)
        return all(self.entries[key][5:8] not in slabs for key in half)

    def victims(self, count: int, pinned: frozenset[bytes], slots: frozenset[bytes]) -> list[bytes]:
        """At most `count` keys in the order of the policy. `pinned`: places that must stay;
        `slots`: the beginnings of the places that help (the last three bytes: the slab)."""
        self.count_uses()
        pick = self.entries
        window = max(WINDOW_MIN, count, len(self.entries) // WINDOW_SHARE)
        free = (
            (key, level, at)
            for level in sorted(self._recent)
            for at, key in enumerate(self._recent[level])
            if (place := pick[key][:8]) not in pinned and place[5:8] in slots
        )
        occupants = [
            Occupant(key, 0, at, self._uses[key], level) for key, level, at in islice(free, window)
        ]
        return list(choose_victims(occupants, count, self._policy))
