"""One open file, each block read by the quickest way. Measured on a virtual disk, 1 GiB into fresh
private memory (GB/s, CPU seconds; `docs/data-plane.md` has the table):

    cached          preadv by two threads 9.7, 0.17
    not cached      O_DIRECT by four threads 2.5, 0.12; the same through a small buffer 2.4, 0.22
                    preadv with RWF_DONTCACHE 1.7, 0.33; plain preadv 1.2, 0.6

So a block that lies in the page cache is copied from there, and one that does not is read past it:
straight into its place when memory and file are aligned alike, else through a small buffer. Where a
file system has no direct I/O the pages that a read brings in are dropped again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from tensorcast.storage.kernel import (
    RWF_DONTCACHE,
    SAFE_ALIGNMENT,
    cached_bytes,
    direct_alignment,
    open_direct,
    sample_cached,
)
from tensorcast.storage.memory import address_of, allocate, copy, view_at
from tensorcast.storage.spans import BLOCK_BYTES, GAP_BYTES_MAX, PAGE_BYTES, Block

DIRECT_BYTES_MIN: Final = 64 << 10
"""Less than this is not worth a direct read."""
_NOT_SUPPORTED: Final = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)
_JUNK: Final = memoryview(bytearray(GAP_BYTES_MAX))

Part = memoryview | int
"""Bytes of a read that are wanted, or how many are passed over (at most GAP_BYTES_MAX)."""


class Source(Protocol):
    """Something whose bytes can be read from several threads."""

    @property
    def name(self) -> str:
        """What errors call it: a path or a URL."""
        ...

    @property
    def size_bytes(self) -> int:
        """Its size when it was opened."""
        ...

    def read(self, parts: Sequence[Part], position: int) -> int:
        """Reads from `position` on into the parts, in order; returns how many bytes of them there
        were: fewer than asked for only where the file ends."""
        ...


class FileReader:
    """A `Source` over an open file, which stays the caller's. Close it before that. Raises OSError
    for what the disk cannot read."""

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor = descriptor
        self._name = name
        self._size_bytes = os.fstat(descriptor).st_size
        self._alignment = direct_alignment(descriptor) or SAFE_ALIGNMENT
        self._direct = self._open_direct(descriptor)
        self._leaves_cache = True
        self._sampled: float | None = None
        self._own = threading.local()

    def _open_direct(self, descriptor: int) -> int | None:
        if self._size_bytes < DIRECT_BYTES_MIN or direct_alignment(descriptor) is None:
            return None
        return open_direct(descriptor, os.O_RDONLY)

    @property
    def name(self) -> str:
        return self._name

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @property
    def descriptor(self) -> int:
        return self._descriptor

    def close(self) -> None:
        """Gives up what was opened for direct reads. Safe to repeat."""
        direct, self._direct = self._direct, None
        if direct is not None:
            os.close(direct)

    def is_cached(self, position: int = 0, size: int | None = None) -> bool:
        """Whether most of a range lies in the page cache. False when nobody can tell."""
        size = self._size_bytes if size is None else size
        found = cached_bytes(self._descriptor, position, size)
        if found is not None:
            return 2 * found >= size
        if self._sampled is None:
            self._sampled = sample_cached(self._descriptor, self._size_bytes) or 0.0
        return self._sampled >= 0.5

    def read(self, parts: Sequence[Part], position: int) -> int:
        total = sum(_size(part) for part in parts)
        if self.is_cached(position, total):
            return _read_buffered(self._descriptor, parts, position, 0)
        if self._direct is not None and total >= DIRECT_BYTES_MIN:
            try:
                return self._read_direct(self._direct, parts, position, total)
            except OSError as error:
                if error.errno not in _NOT_SUPPORTED:
                    raise
        return self._read_and_drop(parts, position, total)

    # ---- past the page cache ---------------------------------------------------------------

    def _read_direct(self, direct: int, parts: Sequence[Part], position: int, total: int) -> int:
        only = parts[0] if len(parts) == 1 else 0
        if isinstance(only, int) or not self._is_alike(only, position):
            return self._read_through_buffer(direct, parts, position, total)
        step = max(self._alignment)
        first = -(-position // step) * step - position
        last = (position + total) // step * step - position
        if first >= last:
            return self._read_through_buffer(direct, parts, position, total)
        done = self._read_edge(direct, only, position, 0, first)
        if done == first:
            done += _read_aligned(direct, only[first:last], position + first, step)
        if done == last:
            done += self._read_edge(direct, only, position, last, total)
        return done

    def _is_alike(self, target: memoryview, position: int) -> bool:
        """Whether memory and file are aligned alike, so that the disk can write into it."""
        return not (address_of(target) - position) % self._alignment.memory_bytes

    def _read_edge(
        self, direct: int, target: memoryview, position: int, start: int, end: int
    ) -> int:
        if start == end:
            return 0
        edge: list[Part] = [target[start:end]]
        return self._read_through_buffer(direct, edge, position + start, end - start)

    def _read_through_buffer(
        self, direct: int, parts: Sequence[Part], position: int, total: int
    ) -> int:
        """Reads whole pages into a buffer of this thread and copies from there."""
        buffer = self._buffer()
        step = max(self._alignment.position_bytes, PAGE_BYTES)
        left = list(parts)
        done = 0
        while done < total:
            base = (position + done) // step * step
            skipped = position + done - base
            window = buffer[: min(len(buffer), -(-(skipped + total - done) // step) * step)]
            got = _read_aligned(direct, window, base, self._alignment.position_bytes)
            fresh = min(got - skipped, total - done)
            if fresh <= 0:
                break
            left = _scatter(window[skipped : skipped + fresh], left)
            done += fresh
            if got < len(window):
                break
        return done

    def _buffer(self) -> memoryview:
        if not hasattr(self._own, "buffer"):
            self._own.buffer = allocate(BLOCK_BYTES + 2 * PAGE_BYTES)
        found: memoryview = self._own.buffer
        return found

    def _read_and_drop(self, parts: Sequence[Part], position: int, total: int) -> int:
        """For file systems without direct I/O, and for small reads."""
        if self._leaves_cache and total >= DIRECT_BYTES_MIN:
            try:
                return _read_buffered(self._descriptor, parts, position, RWF_DONTCACHE)
            except OSError as error:
                if error.errno not in _NOT_SUPPORTED:
                    raise
                self._leaves_cache = False
        done = _read_buffered(self._descriptor, parts, position, 0)
        if total >= DIRECT_BYTES_MIN:
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._descriptor, position, total, os.POSIX_FADV_DONTNEED)
        return done


def read_block(source: Source, block: Block, address: int) -> bool:
    """Reads one block; the targets of its spans count from `address` in memory that the caller
    keeps. Returns whether all of its bytes were there. Raises as the source."""
    parts: list[Part] = []
    at = block[0].position
    for span in block:
        if span.position > at:
            parts.append(span.position - at)
        parts.append(view_at(address + span.target, span.size))
        at = span.end
    return source.read(parts, block[0].position) == at - block[0].position


@contextlib.contextmanager
def open_reader(path: str | Path) -> Iterator[FileReader]:
    """A file that is open until the end of the block. Raises OSError."""
    # O_NONBLOCK: opening a pipe must not wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        with contextlib.closing(FileReader(descriptor, str(path))) as reader:
            yield reader
    finally:
        os.close(descriptor)


def _size(part: Part) -> int:
    return part if isinstance(part, int) else part.nbytes


def _read_buffered(descriptor: int, parts: Sequence[Part], position: int, flags: int) -> int:
    """Scatters one range of a file; what is passed over goes to memory that nobody looks at."""
    left = [_JUNK[:part] if isinstance(part, int) else part for part in parts if _size(part)]
    done = 0
    while left:
        got = os.preadv(descriptor, left, position + done, flags)
        if not got:
            break
        done += got
        while left and got >= left[0].nbytes:
            got -= left.pop(0).nbytes
        if got:
            left[0] = left[0][got:]
    return done


def _read_aligned(descriptor: int, target: memoryview, position: int, step: int) -> int:
    done = 0
    while done < target.nbytes:
        got = os.preadv(descriptor, [target[done:]], position + done)
        done += got
        if not got or got % step:
            break  # the file ends here
    return done


def _scatter(source: memoryview, parts: list[Part]) -> list[Part]:
    """Copies `source` into the parts in order; returns what is left of them."""
    at = 0
    for number, part in enumerate(parts):
        taken = min(_size(part), source.nbytes - at)
        if not isinstance(part, int):
            copy(part[:taken], source[at : at + taken])
        at += taken
        if taken < _size(part):
            rest: Part = part - taken if isinstance(part, int) else part[taken:]
            return [rest, *parts[number + 1 :]]
    return []
