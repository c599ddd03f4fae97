"""What one connection has of the blocks of a node: what it reads, was lent, and is writing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tensorcast.schema.block_board import MARK, PINS, PINS_FIRST, PINS_USED
from tensorcast.schema.block_wire import ENTRY, PLACE, entry_places, split_entries
from tensorcast.schema.errors import Corrupt

if TYPE_CHECKING:
    from tensorcast.movers.blocks.ring import PutRing

LEASES_MAX = 1 << 16
_NO_PINS = bytes(PINS * PLACE.size)


class Batch(NamedTuple):
    """Blocks that a connection is writing. `has_mark`: their end is told by the session's mark."""

    keys: Sequence[bytes]
    entries: Sequence[bytes]
    priority: int
    digests: Sequence[bytes] = ()
    has_mark: bool = False

    def pick(self, indexes: Sequence[int]) -> Batch:
        """The batch of the blocks of these indexes."""
        digests = [self.digests[at] for at in indexes] if self.digests else ()
        keys, entries = [self.keys[at] for at in indexes], [self.entries[at] for at in indexes]
        return Batch(keys, entries, self.priority, digests, self.has_mark)


class Session:
    """All of it ends with the connection. Only changed under the store's lock.

    `user`: the login of the application, by the kernel or by its mover's word. `leases`: by tag,
    the entries that may not be overwritten; `lent`: empty slots by place, and their size;
    `batches`: by tag. `words`: memory in which the application says what it has written, and what
    it reads (`schema/block_board.py`). `ring`: in which it tells of what it has stored; `fault`:
    why the ring is not looked at any more. `put_bytes`: the size of the largest block that it put
    last.
    """

    def __init__(self, actor: str, user: str = "") -> None:
        self.actor = actor
        self.user = user
        self.leases: dict[int, bytes] = {}
        self.lent: dict[bytes, int] = {}
        self.lent_bytes = 0
        self.batches: dict[int, Batch] = {}
        self.words: memoryview | None = None
        self.ring: PutRing | None = None
        self.fault = ""
        self.put_bytes = 0

    def ended(self) -> list[int]:
        """The tags of the batches that the application has marked as written."""
        mark = self.words[MARK] if self.words is not None else 0
        return [tag for tag, batch in self.batches.items() if batch.has_mark and tag <= mark]

    def places_read(self) -> set[bytes]:
        """The places that may not be overwritten."""
        found: set[bytes] = set()
        for body in self.leases.values():
            count = len(body) // ENTRY.size
            found.update(entry_places(split_entries(body, 0, count, len(body))))
        if self.words is not None:
            used = min(self.words[PINS_USED], PINS)
            pins = bytes(self.words[PINS_FIRST : PINS_FIRST + used])
            if pins != _NO_PINS[: len(pins)]:  # as a rule there are few
                places = set(memoryview(pins).cast("Q"))
                found.update([PLACE.pack(place) for place in places if place])
        return found

    def lend(self, places: Sequence[bytes], slot_bytes: int) -> None:
        """These slots are the connection's to write."""
        self.lent.update(dict.fromkeys(places, slot_bytes))
        self.lent_bytes += slot_bytes * len(places)

    def take_back(self, places: Sequence[bytes]) -> list[bytes]:
        """Those of `places` that were lent; they are no longer."""
        lent = self.lent
        slots = [lent.pop(place, 0) for place in places]
        self.lent_bytes -= sum(slots)
        return [place for place, slot in zip(places, slots, strict=True) if slot]

    def use(self, places: Sequence[bytes], size_bytes_max: int) -> None:
        """Takes slots for blocks of at most this size. Raises Corrupt unless each was lent, is
        named once, and is large enough."""
        lent = self.lent
        slots = [lent.pop(place, 0) for place in places]
        if slots and not 0 < size_bytes_max <= min(slots):
            # They are still its own, to be freed with it.
            lent.update((p, slot) for p, slot in zip(places, slots, strict=True) if slot)
            raise Corrupt("A connection writes where nothing, or too little, was lent to it.")
        self.lent_bytes -= sum(slots)
