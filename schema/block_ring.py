"""The ring of a connection that puts blocks: it tells the mover what it has stored, and wakes
nobody.

Shared memory of one connection. A word has 64 bits and one writer:

    word 0     how many bytes the application has written, ever
    word 1     how many of them the mover has taken
    word 2     how many slots the mover has lent here, ever
    word 3     how many of them the application has taken
    word 4     on which processor the application last wrote
    word 5     1 while the mover looks here by itself, every few milliseconds
    words      SLOTS times: the place of a slot, and the size of the blocks that it is lent for
    bytes      RING_BYTES, written round and round: whole STORE frames (`schema/block_wire.py`) with
               the flags PROPOSED and WRITTEN, of blocks that lie in their slots already

Whoever writes bytes or slots writes its count after them; a reader believes no count that is
further ahead than there is room. Needs a machine whose stores are seen in order, as the board does.
"""

from __future__ import annotations

from typing import Final

WRITTEN: Final = 0
TAKEN: Final = 1
LENT: Final = 2
LENT_TAKEN: Final = 3
PROCESSOR: Final = 4
WATCHED: Final = 5

SLOTS_FIRST: Final = 8
SLOTS: Final = 4096
RING_AT: Final = 8 * (SLOTS_FIRST + 2 * SLOTS)
RING_BYTES: Final = 128 << 10
MEMORY_BYTES: Final = RING_AT + RING_BYTES


def read_around(ring: memoryview, position: int, size_bytes: int) -> bytes:
    """`size_bytes` (at most RING_BYTES) of the bytes from a position on, which is counted without
    end."""
    at = position % RING_BYTES
    first = bytes(ring[at : at + size_bytes])
    return first + bytes(ring[: size_bytes - len(first)])


def write_around(ring: memoryview, position: int, content: bytes) -> None:
    """Writes at most RING_BYTES from a position on, which is counted without end."""
    at = position % RING_BYTES
    first = min(len(content), RING_BYTES - at)
    ring[at : at + first] = content[:first]
    ring[: len(content) - first] = content[first:]
