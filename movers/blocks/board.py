"""The mover's side of the board (`schema/block_board.py`): blocks go on it and come off it.

Needs `membarrier` and a machine whose stores are seen in order (x86); elsewhere there is no board,
and applications ask.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
from collections.abc import Sequence
from typing import Final

from tensorcast.schema.block_board import (
    CELL_BYTES,
    EMPTY,
    ENTRY_END,
    NO_PRINT,
    PRINT_BYTES,
    ROW_BYTES,
    ROW_SHIFT,
    count_rows,
    key_print,
    row_numbers,
)

_SYSCALLS: Final = {"x86_64": 324}
_GLOBAL_EXPEDITED: Final = 2
_PADDING: Final = bytes(CELL_BYTES - ENTRY_END)
_libc = ctypes.CDLL(None, use_errno=True)


def put_barrier() -> bool:
    """Has every process that registered for it pass a full memory barrier; False where the kernel
    cannot. Takes a microsecond or a few."""
    number = _SYSCALLS.get(platform.machine())
    return number is not None and _libc.syscall(number, _GLOBAL_EXPEDITED, 0, 0) == 0


class BlockBoard:
    """Owns its memory until `close`. Only used under the store's lock. `fd` is -1 where there is
    no board: then nothing happens here."""

    def __init__(self, budget_bytes: int) -> None:
        self.fd = -1
        self.size_bytes = 0
        self._rows = count_rows(budget_bytes)
        if put_barrier():
            self._open((self._rows + 1) * ROW_BYTES)

    def _open(self, size_bytes: int) -> None:
        self.fd = os.memfd_create("kv-board", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size_bytes)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.size_bytes = size_bytes
        self._table = mmap.mmap(self.fd, size_bytes)
        self._removals = memoryview(self._table)[:8].cast("Q")

    def open_read_only(self) -> int:
        """A descriptor for an application; the caller closes it."""
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)

    def add(self, keys: Sequence[bytes], entries: Sequence[bytes]) -> None:
        """Blocks that can be read from now on. One whose row is full is left out."""
        if self.fd < 0:
            return
        table, mask = self._table, self._rows - 1
        prints = [key_print(key) for key in keys]
        for number, found, entry in zip(row_numbers(prints), prints, entries, strict=True):
            at = ((number & mask) + 1) << ROW_SHIFT
            if table[at : at + PRINT_BYTES] != NO_PRINT:
                at = self._free_cell(at)
            if at:  # one store for each half of a cell: a reader sees the place whole, or zeros
                table[at : at + CELL_BYTES] = found + entry + _PADDING

    def _free_cell(self, row: int) -> int:
        """A cell in a row whose first one is taken; 0 when all are."""
        for at in range(row + CELL_BYTES, row + ROW_BYTES, CELL_BYTES):
            if self._table[at : at + PRINT_BYTES] == NO_PRINT:
                return at
        return 0

    def remove(self, keys: Sequence[bytes]) -> None:
        """Takes blocks off. When it returns, whoever reads one of them has a pin that can be seen,
        or will find that the board has changed."""
        if self.fd < 0 or not keys:
            return
        table, mask = self._table, self._rows - 1
        self._removals[0] += 1
        prints = [key_print(key) for key in keys]
        for number, found in zip(row_numbers(prints), prints, strict=True):
            at = ((number & mask) + 1) << ROW_SHIFT
            cell = table[at : at + ROW_BYTES].find(found)
            if cell >= 0:
                table[at + cell : at + cell + CELL_BYTES] = EMPTY
        put_barrier()

    def close(self) -> None:
        """Gives the memory up; applications keep what they have mapped. Safe to repeat."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
