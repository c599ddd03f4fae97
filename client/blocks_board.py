"""Looking blocks up without asking: the application's side of the board and of its pins
(`schema/block_board.py`).
"""

from __future__ import annotations

import ctypes
import mmap
import platform
from array import array
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from operator import contains
from struct import Struct
from typing import Final

from tensorcast.schema.block_board import (
    ENTRY_END,
    MARK,
    PIN_BYTES,
    PINS,
    PINS_FIRST,
    PINS_USED,
    PRINT_BYTES,
    ROW_BYTES,
    ROW_SHIFT,
    key_print,
    row_numbers,
)

_SYSCALLS: Final = {"x86_64": 324}
_REGISTER_GLOBAL_EXPEDITED: Final = 4
SCRATCH: Final = 1024
"""The first pins are for reads that end within one call."""
CHUNK: Final = 16
CHUNKS: Final = (PINS - SCRATCH) // CHUNK
_NO_CELL: Final = bytes(ENTRY_END)
_NOTHING: Final = array("Q", bytes(8 * SCRATCH))
_libc = ctypes.CDLL(None, use_errno=True)


def register_for_barriers() -> bool:
    """Lets the mover put barriers into this process; False where the kernel cannot."""
    number = _SYSCALLS.get(platform.machine())
    return number is not None and _libc.syscall(number, _REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0


class Board:
    """The mover's table of blocks, mapped to read."""

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self._rows = mmap.mmap(descriptor, size_bytes, prot=mmap.PROT_READ)
        self._mask = (size_bytes >> ROW_SHIFT) - 2
        self._removals = memoryview(self._rows)[:8].cast("Q")

    @property
    def removals(self) -> int:
        """Rises before anything is taken off."""
        return int(self._removals[0])

    def shows_none(self, keys: Sequence[bytes]) -> bool:
        """Whether none of the blocks is on the board."""
        rows, mask = self._rows, self._mask
        prints = tuple(map(key_print, keys))
        starts = [((number & mask) + 1) << ROW_SHIFT for number in row_numbers(prints)]
        return not any(map(contains, [rows[at : at + ROW_BYTES] for at in starts], prints))

    def look_up(self, keys: Sequence[bytes]) -> tuple[Sequence[int], Sequence[int]] | None:
        """The places and the sizes of the blocks; None unless all are on the board."""
        rows, mask = self._rows, self._mask
        prints = tuple(map(key_print, keys))
        starts = [((number & mask) + 1) << ROW_SHIFT for number in row_numbers(prints)]
        cells = [rows[at : at + ENTRY_END] for at in starts]  # as a rule a row's first one
        form = _cells(len(keys))
        flat = form.unpack(b"".join(cells))
        if flat[::3] != prints:
            for n, (shown, print_) in enumerate(zip(flat[::3], prints, strict=True)):
                if shown != print_:
                    cells[n] = self._find_cell(starts[n], print_)
            flat = form.unpack(b"".join(cells))
        places, sizes = flat[1::3], flat[2::3]
        if 0 in sizes:  # not there, or just being written: then its place is 0, too
            return None
        return places, sizes

    def _find_cell(self, start: int, print_: bytes) -> bytes:
        """The cell of a block in the row that begins there; zeros when it has none."""
        row = self._rows[start : start + ROW_BYTES]
        at = row.find(print_)
        return row[at : at + ENTRY_END] if at >= 0 else _NO_CELL


@lru_cache(maxsize=64)
def _cells(count: int) -> Struct:
    return Struct("<" + f"{PRINT_BYTES}sQI" * count)


class Pins:
    """The memory in which one connection says what it reads, and how far it has written. Pins of
    views are given back by any thread; everything else by the one that uses the connection."""

    def __init__(self, descriptor: int) -> None:
        self._words = memoryview(mmap.mmap(descriptor, PIN_BYTES)).cast("Q")
        self._words[PINS_USED] = SCRATCH
        self._free: deque[int] = deque()
        self._chunks = 0
        self._held: dict[int, list[int]] = {}

    def set_mark(self, tag: int) -> None:
        """The blocks of this STORE, and of all before it, are written."""
        self._words[MARK] = tag

    def pin_shortly(self, places: array[int]) -> None:
        """Pins blocks until `unpin_shortly`; at most SCRATCH."""
        self._words[PINS_FIRST : PINS_FIRST + len(places)] = places

    def unpin_shortly(self, count: int) -> None:
        """Ends `pin_shortly` of so many."""
        self._words[PINS_FIRST : PINS_FIRST + count] = _NOTHING[:count]

    def hold(self, tag: int, places: array[int]) -> bool:
        """Pins blocks until `let_go(tag)`; False when there are no pins left."""
        wanted = -(-len(places) // CHUNK)
        if wanted > len(self._free) + CHUNKS - self._chunks:
            return False
        chunks = [self._take_chunk() for _ in range(wanted)]
        words = self._words
        words[PINS_USED] = SCRATCH + self._chunks * CHUNK
        for number, chunk in enumerate(chunks):
            part = places[number * CHUNK : (number + 1) * CHUNK]
            at = PINS_FIRST + SCRATCH + chunk * CHUNK
            words[at : at + len(part)] = part
        self._held[tag] = chunks
        return True

    def let_go(self, tag: int) -> bool:
        """Ends the pins of a `hold`; False when there was none of this tag."""
        chunks = self._held.pop(tag, None)
        if chunks is None:
            return False
        for chunk in chunks:
            at = PINS_FIRST + SCRATCH + chunk * CHUNK
            self._words[at : at + CHUNK] = _NOTHING[:CHUNK]
            self._free.append(chunk)
        return True

    def _take_chunk(self) -> int:
        if self._free:
            return self._free.popleft()
        self._chunks += 1
        return self._chunks - 1
