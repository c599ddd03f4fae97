"""The board: a table of blocks in shared memory that applications of the node read by themselves.

The mover alone writes it. A row has four cells; a cell names one block by a print of its key, and
says where it is. All zeros: no block. What is not on the board may be there all the same: ask.

    row 0      removals: 64 bits, rises before anything is taken off the board
    row 1 ...  CELLS times: print (16 bytes), place (8), size (4), nothing (4)

And the pins of each connection, in memory that only it writes:

    word 0     the tag of the last STORE that is written (the mark)
    word 1     how many of the next words may hold pins
    word 2 ... the places of blocks that it reads, or 0

A reader looks at `removals`, reads its cells, writes its pins, and looks at `removals` again: if it
is the same number, its blocks are pinned. The mover takes blocks off the board, has a barrier put
into every reader (membarrier), and only then looks for pins: either it sees a pin, or the reader
sees the new number (hazard pointers: Michael, 2004; with the asymmetric barrier of Dice et al.,
2016). Pure arithmetic here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import xxhash

CELLS: Final = 4
CELL_BYTES: Final = 32
ROW_BYTES: Final = CELLS * CELL_BYTES
PRINT_BYTES: Final = 16
ENTRY_END: Final = PRINT_BYTES + 12
ROW_SHIFT: Final = ROW_BYTES.bit_length() - 1
NO_PRINT: Final = bytes(PRINT_BYTES)
EMPTY: Final = bytes(CELL_BYTES)

ROWS_MIN: Final = 64
BYTES_A_ROW: Final = 32 << 10
"""One row for so many bytes of the budget: blocks of 8 KiB fill the board."""

MARK: Final = 0
PINS_USED: Final = 1
PINS_FIRST: Final = 2
PINS: Final = 8190
PIN_BYTES: Final = (PINS_FIRST + PINS) * 8

key_print = xxhash.xxh3_128_digest
"""The print of a packed key: XXH3-128. Nobody can find two keys with one by chance."""


def count_rows(budget_bytes: int) -> int:
    """How many rows there are for a budget, beside the first one: a power of two."""
    wanted = max(ROWS_MIN, -(-budget_bytes // BYTES_A_ROW))
    return 1 << (wanted - 1).bit_length()


def row_numbers(prints: Sequence[bytes]) -> tuple[int, ...]:
    """For each print a number; its row is that modulo the number of rows, plus one."""
    return _numbers(len(prints)).unpack(b"".join(prints))


@lru_cache(maxsize=64)
def _numbers(count: int) -> struct.Struct:
    return struct.Struct("<" + "I12x" * count)
