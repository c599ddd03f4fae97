"""Segments: anonymous shared memory (memfd) that other processes map through a descriptor.

Every descriptor that leaves the mover is an open file description of its own with a shared lock on
it. The kernel drops that lock when the last descriptor *and the last mapping* of that description
are gone, however the reader ended. So `is_mapped` is exact, and still is for a segment that came
back from the descriptor store after the mover was killed. Those that can be written through have a
second lock, of the other kind that the kernel has (`F_OFD_SETLK`), which tells writers from
readers.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from contextlib import suppress

from tensorcast.movers.memory.limits import available_bytes
from tensorcast.schema.errors import Corrupt, OutOfCapacity
from tensorcast.storage.hugepages import AlignedMapping, HugePages
from tensorcast.storage.memory import HUGE_BYTES

SEGMENT_BYTES_STEP = HUGE_BYTES
"""Sizes of segments are multiples of this, so that huge pages take no more than is counted."""

_STEP = 16 << 20
"""So much is asked for at once."""
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_libc = ctypes.CDLL(None, use_errno=True)
_F_OFD_GETLK, _F_OFD_SETLK = 36, 37  # Python has no names for them before 3.13
_FLOCK = struct.Struct("@hhqqi4x")
"""`struct flock` of 64-bit Linux: type, whence, start, length (0: to the end), process."""
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Segment:
    """One memfd with a writable shared mapping of all of it. Owns both until `close`."""

    def __init__(self, name: str, fd: int, capacity_bytes: int) -> None:
        self.name = name
        self.fd = fd
        self.capacity_bytes = capacity_bytes
        self._mapping = AlignedMapping(fd, capacity_bytes)
        self.memory = self._mapping.memory

    def open_read_only(self) -> int:
        """A new descriptor that can only be read and mapped privately; the caller closes it. As
        long as it, a copy of it or a mapping through it lives, `is_mapped` is true."""
        return self._open(os.O_RDONLY)

    def open_writable(self) -> int:
        """As `open_read_only`, for one who fills the segment: as long as it, a copy of it or a
        mapping through it lives, `has_writers` is true as well."""
        fd = self._open(os.O_RDWR)
        fcntl.fcntl(fd, _F_OFD_SETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
        return fd

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

    def has_writers(self) -> bool:
        """Whether anybody outside this object can still write to the memory."""
        question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(self.fd, _F_OFD_GETLK, question)
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def written_bytes(self, start: int) -> int:
        """How far the memory was ever written from the page of `start` on: up to the first page
        that nobody has touched. A segment that was used before is written everywhere."""
        try:
            return os.lseek(self.fd, start, os.SEEK_HOLE)
        except OSError:  # there is nothing from there on
            return start

    def touch(self, start: int) -> None:
        """Has the kernel make all pages from `start` on that are not there yet, huge ones where it
        can. Blocks. Raises OutOfCapacity."""
        try:
            with HugePages(self.fd, self.memory) as pages:
                for at in range(-(-start // HUGE_BYTES) * HUGE_BYTES, self.capacity_bytes, _STEP):
                    pages.make(at, min(at + _STEP, self.capacity_bytes))
            os.posix_fallocate(self.fd, start, self.capacity_bytes - start)
        except OSError as error:
            raise _exhausted(self.capacity_bytes, error) from error

    def discard(self) -> None:
        """As `close`, but its memory goes back to the machine now, whoever else still keeps a
        descriptor of it (the descriptor store hears of it only later)."""
        if self.fd >= 0:
            with suppress(OSError):
                _punch(self.fd, self.capacity_bytes)
            self.close()

    def close(self) -> None:
        """Gives up mapping and descriptor; the memory goes with its last reader. Views of `memory`
        should be released before: one that an error still holds keeps the mapping until the error
        is forgotten. Safe to repeat."""
        if self.fd < 0:
            return
        with suppress(BufferError):
            self._mapping.close()
        os.close(self.fd)
        self.fd = -1


def _punch(fd: int, size_bytes: int) -> None:
    """Frees the pages of a memfd; sealed as it is, it cannot be cut. Raises OSError."""
    done = _libc.fallocate(
        fd, _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(size_bytes)
    )
    if done != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def round_up(size_bytes: int) -> int:
    """The capacity of a segment that holds `size_bytes`."""
    steps = max(1, -(-size_bytes // SEGMENT_BYTES_STEP))
    return steps * SEGMENT_BYTES_STEP


def create_segment(
    name: str, capacity_bytes: int, *, is_touched: bool = True, owed_bytes: int = 0
) -> Segment:
    """New memory, all zero and really there: running out is an error now and no SIGBUS later.

    Not `is_touched`: whoever writes it makes its pages, which costs less than to make them before,
    but counts as that process' memory. `owed_bytes` were promised so to others and are not there
    yet. Blocks for about 0.06 s per GiB in huge pages, 0.25 s in others, untouched not at all.
    Raises OutOfCapacity.
    """
    _check_available(capacity_bytes + owed_bytes)
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, capacity_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        segment = Segment(name, fd, capacity_bytes)
    except OSError as error:
        os.close(fd)
        raise _exhausted(capacity_bytes, error) from error
    except OutOfCapacity:
        os.close(fd)
        raise
    if is_touched:
        try:
            segment.touch(0)
        except OutOfCapacity:
            segment.close()
            raise
    return segment


def _exhausted(capacity_bytes: int, error: OSError) -> OutOfCapacity:
    return OutOfCapacity(
        f"The machine has no {capacity_bytes} bytes of memory left: {error.strerror}.",
        hint="Evict artifacts, or lower the mover's memory budget.",
    )


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
    except (OSError, OutOfCapacity) as error:
        os.close(fd)
        raise Corrupt(f"Descriptor {name!r} holds no segment: {error}") from error
    except Corrupt:
        os.close(fd)
        raise


def _check_available(needed_bytes: int) -> None:
    """Memory of a memfd is not limited by itself: asking for too much would wake the OOM killer."""
    found = available_bytes()
    if found < needed_bytes:
        raise OutOfCapacity(
            f"The machine has {found} bytes of memory left; {needed_bytes} are needed.",
            hint="Evict artifacts, or lower the mover's memory budget.",
        )
