"""Segments: anonymous shared memory (memfd) that other processes map through a descriptor.

Every descriptor that leaves the mover is an open file description of its own with a shared lock on
it. The kernel drops that lock when the last descriptor *and the last mapping* of that description
are gone, however the reader ended. So `is_mapped` is exact, and still is for a segment that came
back from the descriptor store after the mover was killed.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
from contextlib import suppress
from pathlib import Path

from tensorcast.schema.errors import Corrupt, OutOfCapacity

SEGMENT_BYTES_STEP = 2 << 20
"""Sizes of segments are multiples of this."""

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)


class Segment:
    """One memfd with a writable shared mapping of all of it. Owns both until `close`."""

    def __init__(self, name: str, fd: int, capacity_bytes: int) -> None:
        self.name = name
        self.fd = fd
        self.capacity_bytes = capacity_bytes
        self._mapping = mmap.mmap(fd, capacity_bytes)
        self.memory = memoryview(self._mapping)

    def open_read_only(self) -> int:
        """A new descriptor that can only be read and mapped privately; the caller closes it. As
        long as it, a copy of it or a mapping through it lives, `is_mapped` is true."""
        return self._open(os.O_RDONLY)

    def open_writable(self) -> int:
        """As `open_read_only`, for one who fills the segment."""
        return self._open(os.O_RDWR)

    def _open(self, mode: int) -> int:
        fd = os.open(f"/proc/self/fd/{self.fd}", mode | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_SH)
        return fd

    def is_mapped(self) -> bool:
        """Whether anybody outside this object can still see the memory."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self.fd, fcntl.LOCK_UN)
        return False

    def close(self) -> None:
        """Gives up mapping and descriptor; the memory goes with its last reader. Views of `memory`
        should be released before: one that an error still holds keeps the mapping until the error
        is forgotten. Safe to repeat."""
        if self.fd < 0:
            return
        with suppress(BufferError):
            self.memory.release()
            self._mapping.close()
        os.close(self.fd)
        self.fd = -1


def round_up(size_bytes: int) -> int:
    """The capacity of a segment that holds `size_bytes`."""
    steps = max(1, -(-size_bytes // SEGMENT_BYTES_STEP))
    return steps * SEGMENT_BYTES_STEP


def create_segment(name: str, capacity_bytes: int) -> Segment:
    """New memory, all zero and really there: running out is an error now and no SIGBUS later.

    Blocks for about 0.25 s per GiB. Raises OutOfCapacity.
    """
    _check_available(capacity_bytes)
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(fd, 0o600)
        os.posix_fallocate(fd, 0, capacity_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        return Segment(name, fd, capacity_bytes)
    except OSError as error:
        os.close(fd)
        raise OutOfCapacity(
            f"The machine has no {capacity_bytes} bytes of memory left: {error.strerror}.",
            hint="Evict artifacts, or lower the mover's memory budget.",
        ) from error


def adopt_segment(name: str, fd: int) -> Segment:
    """The segment behind a descriptor from the descriptor store; takes the descriptor over, also
    when it raises. Raises Corrupt when it is no sealed segment of ours."""
    try:
        size_bytes = os.fstat(fd).st_size
        is_sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS
        if not is_sealed or size_bytes == 0 or size_bytes % SEGMENT_BYTES_STEP:
            raise Corrupt(f"Descriptor {name!r} holds no segment.")
        os.set_inheritable(fd, False)
        return Segment(name, fd, size_bytes)
    except OSError as error:
        os.close(fd)
        raise Corrupt(f"Descriptor {name!r} holds no segment: {error.strerror}.") from error
    except Corrupt:
        os.close(fd)
        raise


def _check_available(needed_bytes: int) -> None:
    """Memory of a memfd is not limited by itself: asking for too much would wake the OOM killer."""
    found = _AVAILABLE.search(Path("/proc/meminfo").read_text())
    available_bytes = int(found.group(1)) * 1024 if found else needed_bytes
    if available_bytes < needed_bytes:
        raise OutOfCapacity(
            f"The machine has {available_bytes} bytes of memory left; {needed_bytes} are needed.",
            hint="Evict artifacts, or lower the mover's memory budget.",
        )
