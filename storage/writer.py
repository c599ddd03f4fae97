"""One open file, written past the page cache: what a node keeps on its disk must not take memory
twice. Measured on a virtual disk, 1 GiB, with fsync (GB/s, CPU seconds):

    O_DIRECT, four threads of 2 MiB          3.2, 0.05
    pwritev with RWF_DONTCACHE               3.4, 0.25
    pwrite, sync_file_range, DONTNEED        2.2, 0.47
    pwrite                                   0.8, 1.1

So whole pages are written directly, their edges (and everything, where a file system has no direct
I/O) through the cache and dropped from it by `finish`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Sequence
from typing import Final

from tensorcast.storage.kernel import RWF_DONTCACHE, direct_alignment, open_direct
from tensorcast.storage.memory import address_of, allocate, copy
from tensorcast.storage.spans import BLOCK_BYTES, PAGE_BYTES

_NOT_SUPPORTED: Final = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)


class FileWriter:
    """Writes to an open file, which stays the caller's; from several threads, if none touches the
    bytes of another. Raises OSError."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        has_direct = direct_alignment(descriptor) is not None
        self._direct = open_direct(descriptor, os.O_WRONLY) if has_direct else None
        self._leaves_cache = True
        self._own = threading.local()

    def close(self) -> None:
        """Gives up what was opened for direct writes. Safe to repeat."""
        direct, self._direct = self._direct, None
        if direct is not None:
            os.close(direct)

    def write(self, parts: Sequence[memoryview], position: int) -> None:
        """Writes the parts one after another from `position` on; those that are read-only through
        the cache."""
        total = sum(part.nbytes for part in parts)
        first = min(-(-position // PAGE_BYTES) * PAGE_BYTES - position, total)
        last = max((position + total) // PAGE_BYTES * PAGE_BYTES - position, first)
        is_fixed = any(part.readonly for part in parts)
        if self._direct is None or first == last or is_fixed:
            self._write_cached(parts, position)
            return
        self._write_cached(_slice(parts, 0, first), position)
        try:
            self._write_pages(self._direct, _slice(parts, first, last), position + first)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
            self._write_cached(_slice(parts, first, last), position + first)
        self._write_cached(_slice(parts, last, total), position + last)

    def finish(self) -> None:
        """Makes everything durable, and leaves nothing of it in the page cache."""
        os.fsync(self._descriptor)
        with contextlib.suppress(OSError):
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def _write_pages(self, direct: int, parts: list[memoryview], position: int) -> None:
        if len(parts) == 1 and not address_of(parts[0]) % PAGE_BYTES:
            _write_all(direct, parts, position, 0)
            return
        buffer = self._buffer()
        total = sum(part.nbytes for part in parts)
        for start in range(0, total, BLOCK_BYTES):
            end = min(start + BLOCK_BYTES, total)
            at = 0
            for part in _slice(parts, start, end):
                copy(buffer[at : at + part.nbytes], part)
                at += part.nbytes
            _write_all(direct, [buffer[:at]], position + start, 0)

    def _buffer(self) -> memoryview:
        if not hasattr(self._own, "buffer"):
            self._own.buffer = allocate(BLOCK_BYTES)
        found: memoryview = self._own.buffer
        return found

    def _write_cached(self, parts: Sequence[memoryview], position: int) -> None:
        if self._leaves_cache and self._direct is None:
            try:
                _write_all(self._descriptor, parts, position, RWF_DONTCACHE)
                return
            except OSError as error:
                if error.errno not in _NOT_SUPPORTED:
                    raise
                self._leaves_cache = False
        _write_all(self._descriptor, parts, position, 0)


def _slice(parts: Sequence[memoryview], start: int, end: int) -> list[memoryview]:
    """The bytes from `start` to `end` of the parts taken together."""
    found = []
    at = 0
    for part in parts:
        low, high = max(start - at, 0), min(end - at, part.nbytes)
        if low < high:
            found.append(part[low:high])
        at += part.nbytes
    return found


def _write_all(descriptor: int, parts: Sequence[memoryview], position: int, flags: int) -> None:
    left = [part for part in parts if part.nbytes]
    while left:
        done = os.pwritev(descriptor, left, position, flags)
        position += done
        while left and done >= left[0].nbytes:
            done -= left.pop(0).nbytes
        if done:
            left[0] = left[0][done:]
