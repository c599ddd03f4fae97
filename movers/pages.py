"""Making pages present before bytes arrive in them.

A socket that receives into a page that is not mapped yet takes a fault for each 4 KiB with its
lock held. Asking for a run of pages at once is cheaper, and happens outside of the socket. But
asking for pages that are present costs as much as a fifth of receiving them, so it looks first.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
from collections import deque
from typing import Final

_MADV_POPULATE_WRITE = 23
STEP_BYTES: Final = 2 << 20
"""So much is made present at once, in the background."""

_ENTRY_BYTES: Final = 8  # of /proc/self/pagemap, one entry a page (Linux, admin-guide/mm/pagemap)
_PRESENT: Final = 0x80  # bit 63: the highest of the entry's last byte

_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


_pagemap = -1
with contextlib.suppress(OSError):
    _pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)


def prefault(memory: memoryview) -> None:
    """Makes the pages under writable `memory` present. Only a hint: does nothing where the kernel
    cannot (before Linux 5.14), nor when the first and the last page are present: memory that was
    filled before is present as a whole."""
    if is_present(memory):
        return
    start = _address(memory)
    first = start - start % mmap.PAGESIZE
    _libc.madvise(first, start + memory.nbytes - first, _MADV_POPULATE_WRITE)


def is_present(memory: memoryview) -> bool:
    """Whether the first and the last page under writable `memory` are present; False when that
    cannot be known."""
    if not memory.nbytes:
        return True
    start = _address(memory)
    return _is_mapped(start) and _is_mapped(start + memory.nbytes - 1)


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _is_mapped(address: int) -> bool:
    try:
        entry = os.pread(_pagemap, _ENTRY_BYTES, address // mmap.PAGESIZE * _ENTRY_BYTES)
    except OSError:
        return False
    return len(entry) == _ENTRY_BYTES and bool(entry[-1] & _PRESENT)


class Prefaulter:
    """Makes pages present in the background, before bytes arrive in them: that takes as long as the
    bytes do, and another CPU may have the time. Owns one thread, which begins when it is needed."""

    def __init__(self) -> None:
        self._waiting: deque[memoryview] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def ahead(self, memory: memoryview) -> None:
        """Begins with writable `memory`, unless it is present. Never blocks for long."""
        if is_present(memory):
            return
        with self._changed:
            if self._is_closed:
                return
            self._waiting.append(memory)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tcp-pages", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Ends what is under way; blocks for a moment. Then it holds no memory any more. Safe to
        repeat."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if self._is_closed:
                    return
                memory = self._waiting.popleft()
            for at in range(0, memory.nbytes, STEP_BYTES):
                if self._is_closed:
                    return
                prefault(memory[at : at + STEP_BYTES])
            del memory
