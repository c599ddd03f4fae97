"""Making pages present before bytes arrive in them.

A socket that receives into a page that is not mapped yet takes a fault for each 4 KiB with its
lock held. Asking for a run of pages at once is cheaper, and happens outside of the socket.
"""

from __future__ import annotations

import ctypes
import mmap

_MADV_POPULATE_WRITE = 23
_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def prefault(memory: memoryview) -> None:
    """Makes the pages under writable `memory` present. Only a hint: does nothing where the kernel
    cannot (before Linux 5.14). Costs nothing to speak of when they are present."""
    if not memory.nbytes:
        return
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    first = start - start % mmap.PAGESIZE
    _libc.madvise(first, start + memory.nbytes - first, _MADV_POPULATE_WRITE)
