"""Puts that nobody tells of: the mover's side of a connection's ring (`schema/block_ring.py`).

What an application wrote there is taken in before any question about blocks is answered, and by the
connection's own thread now and then. Nothing in it is believed before it was copied and checked.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence

from tensorcast.movers.blocks.session import Batch
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
    read_around,
)
from tensorcast.schema.block_wire import (
    HEAD,
    PRIORITY_SHIFT,
    Flag,
    Op,
    parse_head,
    split_entries,
    split_keys,
)
from tensorcast.schema.errors import Corrupt

_FLAGS = Flag.PROPOSED | Flag.WRITTEN
_KNOWN = (1 << PRIORITY_SHIFT) - 1


class PutRing:
    """Memory of one connection, which goes with it. Used under the store's lock, but for `has_told`
    and the properties. `fd` is the caller's to close once the application has it."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("kv-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, MEMORY_BYTES)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        memory = memoryview(mmap.mmap(self.fd, MEMORY_BYTES))
        self._words = memory[:RING_AT].cast("Q")
        self._ring = memory[RING_AT:]
        self._taken = 0
        self._lent = 0

    @property
    def has_told(self) -> bool:
        """Whether the application has told of something that was not taken in yet."""
        return self._words[WRITTEN] != self._taken

    @property
    def processor(self) -> int:
        """Where the application was running when it last put; any number."""
        return self._words[PROCESSOR]

    def set_watched(self, *, is_watched: bool) -> None:
        """Says whether the mover looks here by itself."""
        self._words[WATCHED] = is_watched

    def read(self) -> tuple[list[Batch], int]:
        """What the application has told of since, and up to where, for `take`. Raises Corrupt."""
        end = self._words[WRITTEN]
        size = end - self._taken
        if not 0 <= size <= RING_BYTES:
            raise Corrupt("A connection tells of more puts than its ring has room for.")
        frames = read_around(self._ring, self._taken, size)
        found: list[Batch] = []
        at = 0
        while at < size:
            batch, at = _parse_put(frames, at)
            found.append(batch)
        return found, end

    def take(self, end: int) -> None:
        """What was told up to there is taken in: its room is the application's again."""
        self._taken = self._words[TAKEN] = end

    def lend(self, places: Sequence[bytes], size_bytes: int) -> None:
        """Lends slots for blocks of this size. There must be room."""
        for number, place in enumerate(places, self._lent):
            at = SLOTS_FIRST + 2 * (number % SLOTS)
            self._words[at] = int.from_bytes(place, "little")
            self._words[at + 1] = size_bytes
        self._lent = self._words[LENT] = self._lent + len(places)

    @property
    def room(self) -> int:
        """For how many slots there is room. Raises Corrupt."""
        waiting = self._lent - self._words[LENT_TAKEN]
        if not 0 <= waiting <= SLOTS:
            raise Corrupt("A connection takes slots that it was not lent.")
        return SLOTS - waiting


def _parse_put(frames: bytes, at: int) -> tuple[Batch, int]:
    """The blocks of the frame that begins there, and where it ends. Raises Corrupt."""
    if len(frames) - at < HEAD.size:
        raise Corrupt("A ring holds a frame that is not whole.")
    head = parse_head(frames, at)
    at += HEAD.size
    end = at + head.size
    if end > len(frames) or head.op != Op.STORE or head.flags & _KNOWN != _FLAGS:
        raise Corrupt("A ring holds something else than whole puts.")
    keys, at = split_keys(frames, at, head)
    entries = split_entries(frames, at, len(keys), end)
    return Batch(keys, entries, head.flags >> PRIORITY_SHIFT), end
