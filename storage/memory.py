"""Memory to read into. First touch is the hidden cost of every read: with pages of 4 KiB it takes
0.4 CPU seconds for a GiB, with huge pages a quarter of that.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from functools import cache
from typing import Final

from tensorcast.schema.errors import OutOfCapacity

HUGE_BYTES: Final = 2 << 20
_POPULATE_READ: Final = 22
_POPULATE_WRITE: Final = 23
_COLLAPSE: Final = 25
_ENTRY_BYTES: Final = 8  # of /proc/self/pagemap, one entry a page (Linux, admin-guide/mm/pagemap)
_PRESENT: Final = 0x80  # bit 63: the highest of the entry's last byte
_UNKNOWN: Final = 22  # EINVAL: the kernel (before Linux 5.14) does not know the advice


@cache
def _system() -> ctypes.CDLL:
    system = ctypes.CDLL(None, use_errno=True)
    system.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return system


def address_of(memory: memoryview) -> int:
    """Where writable, contiguous memory lies. It must not be empty."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def allocate(size_bytes: int) -> memoryview:
    """Zeroed private memory that starts at a huge page; it lives as long as it is referred to.
    Nothing is touched yet. Raises OutOfCapacity."""
    whole = -(-size_bytes // HUGE_BYTES) * HUGE_BYTES
    try:
        pages = mmap.mmap(-1, whole + HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as error:
        raise OutOfCapacity(
            f"{size_bytes} bytes of memory cannot be had.", hint="See `ulimit -v` and `free`."
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    start = -address_of(memoryview(pages)) % HUGE_BYTES
    return memoryview(pages)[start : start + size_bytes]


def populate(memory: memoryview) -> None:
    """Makes the pages under writable memory present. Only a hint: before Linux 5.14 it does
    nothing."""
    if memory.nbytes:
        _advise(memory, _POPULATE_WRITE)


def populate_from_file(memory: memoryview) -> bool:
    """Reads the pages of a mapped file before anything touches them. Returns False when they cannot
    be read, which would be a signal later. Does nothing before Linux 5.14."""
    return not memory.nbytes or _advise(memory, _POPULATE_READ) in (0, _UNKNOWN)


def collapse(memory: memoryview) -> bool:
    """Makes huge pages of the pages under writable memory that starts and ends at one. Returns
    False when some could not be made (before Linux 6.1: none); no byte changes."""
    return _advise(memory, _COLLAPSE) == 0


def is_mapped(pagemap: int, memory: memoryview) -> bool:
    """Whether the first page under writable memory is mapped, by a descriptor of
    `/proc/self/pagemap`; False when that cannot be known."""
    at = address_of(memory) // mmap.PAGESIZE * _ENTRY_BYTES
    try:
        entry = os.pread(pagemap, _ENTRY_BYTES, at)
    except OSError:
        return False
    return len(entry) == _ENTRY_BYTES and bool(entry[-1] & _PRESENT)


def _advise(memory: memoryview, advice: int) -> int:
    start = address_of(memory)
    first = start - start % mmap.PAGESIZE
    failed = _system().madvise(first, start + memory.nbytes - first, advice)
    return ctypes.get_errno() if failed else 0


def copy(target: memoryview, source: memoryview) -> None:
    """Copies between contiguous memory of the same size; other threads run meanwhile. Both must be
    writable."""
    if target.nbytes:
        ctypes.memmove(address_of(target), address_of(source), target.nbytes)


def view_at(address: int, size: int) -> memoryview:
    """The bytes at an address, writable. The caller keeps what lies there alive."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")
