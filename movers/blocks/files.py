"""The parts of a spill of KV blocks: its files, what lies where in them, buffers to write from."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import xxhash

from tensorcast.movers.core.block_records import WINDOW_BYTES, Record, parse_head


class File:
    """One file. `keys` are all that were ever stored in it; `readers` keep it open."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd
        self.size = 0
        self.keys: list[bytes] = []
        self.readers = 0
        self.is_dropped = False


class Where(NamedTuple):
    """Where a block lies, its size and digest."""

    file: File
    position: int
    size: int
    digest: bytes


class Waiting(NamedTuple):
    """A block that waits to be written."""

    digest: bytes
    content: bytearray


class Spare:
    """Buffers that were written, for the next blocks of their size: memory that was touched once
    is several times faster than fresh memory."""

    def __init__(self) -> None:
        self._size = 0
        self._buffers: list[bytearray] = []

    def take(self, size: int) -> bytearray | None:
        """A buffer of this size, if there is one."""
        return self._buffers.pop() if size == self._size and self._buffers else None

    def give(self, buffers: Iterable[bytearray]) -> None:
        """Keeps buffers, as long as blocks of their size come."""
        for buffer in buffers:
            if len(buffer) != self._size:
                self._size, self._buffers = len(buffer), []
            self._buffers.append(buffer)


def read_records(fd: int) -> Iterator[tuple[int, Record]]:
    """The records of a file and where they begin, up to the first that is not whole."""
    end = os.fstat(fd).st_size
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # only the heads are read
    position = 0
    while position < end:
        record = parse_head(os.pread(fd, WINDOW_BYTES, position))
        if record is None or position + record.end > end:
            return
        yield position, record
        position += record.end


def write_buffers(fd: int, buffers: Sequence[bytes | bytearray], position: int) -> None:
    """Writes all buffers one after the other. Raises OSError."""
    left = [memoryview(one) for one in buffers]
    while left:
        written = os.pwritev(fd, left[:1024], position)
        position += written
        while left and written >= left[0].nbytes:
            written -= left.pop(0).nbytes
        if written:
            left[0] = left[0][written:]


def copy_waiting(waiting: Waiting, target: memoryview) -> bool:
    """Whether the block could be copied and is what was given: its buffer may just have been used
    for another one."""
    if len(waiting.content) != target.nbytes:
        return False
    target[:] = waiting.content
    return xxhash.xxh3_64_digest(target) == waiting.digest


def read_block(where: Where, target: memoryview) -> bool:
    """Whether the block could be read and is what was written."""
    got = 0
    try:
        while got < where.size:
            count = os.preadv(where.file.fd, [target[got:]], where.position + got)
            if not count:
                return False
            got += count
    except OSError:
        return False
    return xxhash.xxh3_64_digest(target) == where.digest
