"""Slabs: segments of the node's memory, each cut into slots of one size for blocks.

Not thread-safe by itself: the store's lock guards everything but `create`, which takes long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tensorcast.movers.core.slots import cut_slab, slab_bytes
from tensorcast.movers.memory.memfd import Segment
from tensorcast.movers.memory.pool import Pool
from tensorcast.schema.block_wire import OFFSET_BITS
from tensorcast.schema.errors import OutOfCapacity

AHEAD_SHARE = 2
"""Of a slab of the usual size one in so many slots should be free at any time."""


class Slab:
    """A segment in use for blocks. `slot_bytes` changes when it is cut anew."""

    def __init__(self, number: int, segment: Segment) -> None:
        self.number = number
        self.key = number.to_bytes(3, "little")  # the last bytes of its places
        self.segment = segment
        self.slot_bytes = 0
        self.slots = 0

    def cut(self, slot_bytes: int) -> list[bytes]:
        """All its places, for slots of this size."""
        places = cut_slab(self.number, self.segment.capacity_bytes, slot_bytes)
        self.slot_bytes, self.slots = slot_bytes, len(places)
        return places


class Slabs:
    """The slabs of a node within a budget of `capacity_bytes`, a part of the pool's."""

    def __init__(self, pool: Pool, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._pool = pool
        self._slabs: dict[int, Slab] = {}
        self._free: dict[int, list[bytes]] = {}
        self._number = 0
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """The memory of all slabs, and of those that are being made."""
        return self._held_bytes

    def free_slots(self, slot_bytes: int) -> int:
        """How many slots of this size are free."""
        return len(self._free.get(slot_bytes, ()))

    def free_bytes(self) -> int:
        """The bytes of all free slots, and what slabs may still be made of."""
        free = sum(size * len(places) for size, places in self._free.items())
        return free + self.capacity_bytes - self._held_bytes

    def all(self) -> Iterable[Slab]:
        """Every slab."""
        return self._slabs.values()

    def take(self, slot_bytes: int, count: int) -> list[bytes]:
        """At most `count` free slots, neighbours in order."""
        free = self._free.get(slot_bytes)
        if not free or count < 1:
            return []
        found = free[-count:]
        del free[-count:]
        found.reverse()
        return found

    def give(self, places: Sequence[bytes]) -> None:
        """Slots that are free again."""
        slabs = self._slabs
        groups: dict[bytes, list[bytes]] = {}
        for place in reversed(places):
            groups.setdefault(place[5:8], []).append(place)
        for number, found in groups.items():
            slot_bytes = slabs[int.from_bytes(number, "little")].slot_bytes
            self._free.setdefault(slot_bytes, []).extend(found)

    def slab_of(self, place: bytes) -> Slab:
        """The slab that a place (or an entry) lies in."""
        return self._slabs[int.from_bytes(place[5:8], "little")]

    def find(self, number: int) -> Slab | None:
        """The slab of this number."""
        return self._slabs.get(number)

    def memory(self, entry: bytes) -> memoryview:
        """The bytes of an entry's block. The caller releases the view soon: a slab cannot be given
        back while one is held."""
        place = int.from_bytes(entry[:8], "little")
        slab = self._slabs[place >> OFFSET_BITS]
        offset = place & ((1 << OFFSET_BITS) - 1)
        return slab.segment.memory[offset : offset + int.from_bytes(entry[8:12], "little")]

    # ---- growing, cutting anew, shrinking ------------------------------------------------------

    def may_grow(self, slot_bytes: int) -> bool:
        """Whether the budget has room for another slab."""
        return slab_bytes(slot_bytes, self.capacity_bytes - self._held_bytes, 1) > 0

    def is_scarce(self, slot_bytes: int) -> bool:
        """Whether so few slots of this size are free that the next slab should be made now."""
        usual = slab_bytes(slot_bytes, self.capacity_bytes)
        return self.free_slots(slot_bytes) * slot_bytes * AHEAD_SHARE < usual

    def reserve(self, slot_bytes: int, slots_max: int = 0) -> int:
        """Sets memory for a new slab aside, for `create`; its size, or 0 when there is none.
        `slots_max`: as for `slab_bytes`."""
        size = slab_bytes(slot_bytes, self.capacity_bytes - self._held_bytes, slots_max)
        self._held_bytes += size
        return size

    def create(self, size_bytes: int) -> Segment | None:
        """Memory that was reserved; None when the pool has not so much. Blocks for 0.25 s a GiB;
        for any thread. `add` or `cancel` follows."""
        try:
            return self._pool.allocate(size_bytes).segment
        except OutOfCapacity:
            return None

    def add(self, segment: Segment, size_bytes: int, slot_bytes: int) -> bool:
        """Uses a new segment, for which `size_bytes` were reserved. False when the pool gave a
        larger one, of an earlier use, that does not fit the budget: it is given back."""
        more_bytes = segment.capacity_bytes - size_bytes
        if more_bytes > self.capacity_bytes - self._held_bytes:
            self._held_bytes -= size_bytes
            self._pool.release(segment)
            return False
        self._held_bytes += more_bytes
        self._number += 1
        slab = self._slabs[self._number] = Slab(self._number, segment)
        self._free.setdefault(slot_bytes, [])[:0] = slab.cut(slot_bytes)
        return True

    def cancel(self, size_bytes: int) -> None:
        """Gives a reservation up."""
        self._held_bytes -= size_bytes

    def recut(self, slab: Slab, slot_bytes: int) -> bool:
        """Cuts a slab whose slots are all free into slots of another size. False when it is too
        small."""
        if slot_bytes > slab.segment.capacity_bytes:
            return False
        self._forget_free(slab)
        self._free.setdefault(slot_bytes, [])[:0] = slab.cut(slot_bytes)
        return True

    def empty(self) -> list[Slab]:
        """The slabs whose slots are all free."""
        free = self.count_free()
        return [slab for slab in self._slabs.values() if free[slab.key] == slab.slots]

    def count_free(self) -> Counter[bytes]:
        """How many slots are free, by the key of their slab."""
        free: Counter[bytes] = Counter()
        for places in self._free.values():
            free.update(place[5:8] for place in places)
        return free

    def drop(self, slab: Slab) -> None:
        """Gives an empty slab back to the pool: what no application maps is reused there."""
        self._forget_free(slab)
        del self._slabs[slab.number]
        self._held_bytes -= slab.segment.capacity_bytes
        self._pool.release(slab.segment)

    def _forget_free(self, slab: Slab) -> None:
        free = self._free[slab.slot_bytes]
        self._free[slab.slot_bytes] = [place for place in free if place[5:8] != slab.key]
