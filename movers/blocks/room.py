"""Empty slots for new blocks: free ones, those of a new slab, or those of blocks that must go.

What goes is chosen by the node's policy among the blocks that nobody reads, and written to the
spill first if there is one. A class of slots whose blocks live much shorter than others' gets a
whole slab of them (as Memcached's slab rebalancer does).
"""

from __future__ import annotations

import threading
from itertools import count

from tensorcast.movers.blocks.base import BlockReporter, BlockSpill, NullSpill
from tensorcast.movers.blocks.session import Session
from tensorcast.movers.blocks.state import BlockState
from tensorcast.schema.ids import Tier

EVICT_SHARE = 64
"""At least one in so many of the blocks go at once when room is needed ..."""
EVICT_MAX = 1024
"""... but not more than so many, unless more are needed."""


class BlockRoom:
    """Finds slots; for any thread. Never waits for readers. `is_needed` is set when `grow_ahead`
    should be called, by somebody for whom nobody waits."""

    def __init__(self, state: BlockState, reporter: BlockReporter, spill: BlockSpill) -> None:
        self._state = state
        self._reporter = reporter
        self._spill = spill
        self._making = threading.Lock()
        self._growing = threading.Lock()
        self._own = Session("mover")
        self._tags = count(1)
        self._scarce: set[int] = set()
        self.is_needed = threading.Event()
        state.sessions.add(self._own)

    def take(self, slot_bytes: int, wanted: int) -> list[bytes]:
        """`wanted` slots, or as many as there can be. The caller owns them. May block for a new
        slab or for the spill."""
        with self._state.lock:
            found = self._state.slabs.take(slot_bytes, wanted)
            self._look_ahead(slot_bytes)
        while len(found) < wanted and self._make(slot_bytes, wanted - len(found)):
            with self._state.lock:
                found += self._state.slabs.take(slot_bytes, wanted - len(found))
        return found

    def take_ahead(self, slot_bytes: int, wanted: int) -> list[bytes]:
        """As `take`, for somebody who can do without: new slabs are not waited for."""
        with self._state.lock:
            found = self._state.slabs.take(slot_bytes, wanted)
            is_growing = self._look_ahead(slot_bytes)
        if is_growing or len(found) == wanted:
            return found
        return found + self.take(slot_bytes, wanted - len(found))

    def _look_ahead(self, slot_bytes: int) -> bool:
        """Has a slab made before it is missed; whether there may be one. Under the lock."""
        slabs = self._state.slabs
        if not slabs.may_grow(slot_bytes):
            return False
        if slabs.is_scarce(slot_bytes):
            self._scarce.add(slot_bytes)
            self.is_needed.set()
        return True

    def grow_ahead(self) -> None:
        """Makes the slabs that will be needed soon. Blocks."""
        self.is_needed.clear()
        while self._scarce:
            slot_bytes = self._scarce.pop()
            with self._state.lock:
                is_scarce = self._state.slabs.is_scarce(slot_bytes)
            if is_scarce:
                with self._growing:
                    self.grow(slot_bytes)

    def _await_growth(self, slot_bytes: int) -> bool:
        """Waits for the slab that is being made ahead, which may be the last one; whether it gave
        slots of this size."""
        if not self._growing.locked():
            return False
        with self._growing, self._state.lock:
            return self._state.slabs.free_slots(slot_bytes) > 0

    def grow(self, slot_bytes: int, slots_max: int = 0) -> bool:
        """Makes a new slab, if the budget has room for one; `slots_max`: as for `slab_bytes`."""
        with self._state.lock:
            size = self._state.slabs.reserve(slot_bytes, slots_max)
        if not size:
            return False
        segment = self._state.slabs.create(size)
        with self._state.lock:
            if segment is None:
                self._state.slabs.cancel(size)
                return False
            return self._state.slabs.add(segment, size, slot_bytes)

    def _make(self, slot_bytes: int, wanted: int) -> bool:
        """Whether there are more slots now than there were."""
        with self._making:
            with self._state.lock:
                self._state.free_retired()
                if self._state.slabs.free_slots(slot_bytes):
                    return True
            return (
                self.grow(slot_bytes, 2 * wanted)
                or self._await_growth(slot_bytes)
                or self._recut(slot_bytes)
                or self._drop(*self._choose(slot_bytes, wanted))
            )

    def _recut(self, slot_bytes: int) -> bool:
        """Gives an empty slab of another class to this one."""
        slabs = self._state.slabs
        with self._state.lock:
            return any(slabs.recut(slab, slot_bytes) for slab in slabs.empty())

    def _choose(self, slot_bytes: int, wanted: int) -> tuple[int, dict[bytes, bytes]]:
        """Blocks that may go, by key, with their entries; pinned under the tag until `_drop`."""
        state, tag = self._state, next(self._tags)
        with state.lock:
            pinned = state.pinned()
            own = frozenset(slab.key for slab in state.slabs.all() if slab.slot_bytes == slot_bytes)
            share = min(EVICT_MAX, len(state.index.entries) // EVICT_SHARE)
            victims: list[bytes] = []
            if own and not state.index.is_hot(own):
                victims = state.index.victims(max(wanted, share), pinned, own)
            victims = victims or self._choose_slab(slot_bytes, pinned)
            if own and not victims:
                victims = state.index.victims(max(wanted, share), pinned, own)
            chosen = {key: state.index.entries[key] for key in victims}
            self._own.leases[tag] = b"".join(chosen.values())
        return tag, chosen

    def _choose_slab(self, slot_bytes: int, pinned: frozenset[bytes]) -> list[bytes]:
        """All blocks of the slab of another class with the coldest block, of those that can be
        emptied; [] when there is none."""
        slabs, index = self._state.slabs, self._state.index
        groups: dict[bytes, list[bytes]] = {}
        for key in index.coldest():
            groups.setdefault(index.entries[key][5:8], []).append(key)
        free = slabs.count_free()
        for number, keys in groups.items():
            slab = slabs.slab_of(index.entries[keys[0]])
            is_other = slab.slot_bytes != slot_bytes <= slab.segment.capacity_bytes
            is_whole = len(keys) + free[number] == slab.slots
            is_read = any(index.entries[key][:8] in pinned for key in keys)
            if is_other and is_whole and not is_read:
                return keys
        return []

    def _drop(self, tag: int, chosen: dict[bytes, bytes]) -> bool:
        """Spills blocks and drops those that nobody has begun to read; whether any slot is free
        now."""
        state = self._state
        if not isinstance(self._spill, NullSpill):
            self._write(chosen)
        with state.lock:
            del self._own.leases[tag]
            pinned = state.pinned()
            gone = [
                key
                for key, entry in chosen.items()
                if entry[:8] not in pinned and state.index.entries.get(key) == entry
            ]
            state.remove(gone)
            state.free_retired()
            if gone:
                self._reporter.evicted(Tier.DRAM, gone)
            return bool(gone)

    def _write(self, chosen: dict[bytes, bytes]) -> None:
        """Writes blocks to the spill, those that are not there yet. What does not fit is lost: it
        is a cache."""
        for key, entry in chosen.items():
            if self._spill.contains(key):
                continue
            digest = self._state.index.digests.get(key) or self._state.hash(entry)
            with self._state.slabs.memory(entry) as memory:
                self._spill.write(key, digest, memory)
