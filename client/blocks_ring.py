"""Puts that wake nobody: the application's side of a connection's ring (`schema/block_ring.py`).

A put copies its blocks into slots that were lent ahead, writes down which they are, and is done:
whoever asks the mover for a block has it take in first what stands there. So a put costs its copy,
whatever the mover is doing, and wherever the kernel would have woken it.
"""

from __future__ import annotations

import ctypes
import mmap
from collections import deque
from collections.abc import Collection
from typing import Final

from tensorcast.schema.block_ring import (
    LENT,
    LENT_TAKEN,
    MEMORY_BYTES,
    PROCESSOR,
    RING_AT,
    RING_BYTES,
    SLOTS,
    SLOTS_FIRST,
    TAKEN,
    WATCHED,
    WRITTEN,
    write_around,
)
from tensorcast.schema.errors import Corrupt

_find_processor: Final = ctypes.CDLL(None).sched_getcpu

RECENT_KEYS: Final = 4096
_SLOTS_END: Final = SLOTS_FIRST + 2 * SLOTS


class RecentKeys:
    """The keys that were put last: RECENT_KEYS, up to twice as many. For any number of threads."""

    def __init__(self) -> None:
        self._new: set[bytes] = set()
        self._old: set[bytes] = set()

    def add(self, keys: Collection[bytes]) -> None:
        """These were put just now."""
        if len(self._new) >= RECENT_KEYS:
            self._old, self._new = self._new, set()
        self._new.update(keys)

    def has_any(self, keys: Collection[bytes]) -> bool:
        """Whether one of these is among them."""
        return not (self._new.isdisjoint(keys) and self._old.isdisjoint(keys))


class PutRing:
    """One for each connection that puts; used by the one thread that uses the connection, but for
    `tells_of`, which any thread may ask."""

    def __init__(self, descriptor: int) -> None:
        self._memory = memoryview(mmap.mmap(descriptor, MEMORY_BYTES))
        self._words = self._memory[:RING_AT].cast("Q")
        self._ring = self._memory[RING_AT:]
        self._written = 0
        self._lent_taken = 0
        self._waiting: deque[tuple[int, Collection[bytes]]] = deque()
        self._told: set[bytes] = set()

    @property
    def is_watched(self) -> bool:
        """Whether the mover looks here by itself within some milliseconds."""
        return bool(self._words[WATCHED])

    def has_room(self, size_bytes: int) -> bool:
        """Whether a frame of this size can be written."""
        return self._written + size_bytes - self._words[TAKEN] <= RING_BYTES

    def write(self, frame: bytes, keys: Collection[bytes]) -> None:
        """Tells of blocks that are in their slots. There must be room."""
        write_around(self._ring, self._written, frame)
        self._written += len(frame)
        self._waiting.append((self._written, keys))
        self._told.update(keys)
        self._words[PROCESSOR] = _find_processor()
        self._words[WRITTEN] = self._written  # from now on they are stored

    def tidy(self) -> None:
        """Forgets the blocks that the mover has taken in."""
        taken, waiting = self._words[TAKEN], self._waiting
        while waiting and waiting[0][0] <= taken:
            self._told.difference_update(waiting.popleft()[1])

    def tells_of(self, keys: Collection[bytes]) -> bool:
        """Whether a block of these was told of here, and not forgotten since."""
        return not self._told.isdisjoint(keys)

    def take_lent(self) -> tuple[list[int], list[int]]:
        """Slots that were lent since: their places, and the sizes of the blocks that they are for.
        Raises Corrupt."""
        words, taken = self._words, self._lent_taken
        count = words[LENT] - taken
        if not 0 <= count <= SLOTS:
            raise Corrupt(f"The mover lends {count} slots at once.")
        start = SLOTS_FIRST + 2 * (taken % SLOTS)
        flat = words[start : min(start + 2 * count, _SLOTS_END)].tolist()
        flat += words[SLOTS_FIRST : SLOTS_FIRST + 2 * count - len(flat)].tolist()
        self._lent_taken = words[LENT_TAKEN] = taken + count
        return flat[::2], flat[1::2]
