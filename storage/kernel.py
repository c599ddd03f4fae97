"""What the kernel knows of an open file: which of its pages are cached, and how it can be read past
the cache. Everything degrades on older kernels: the answer is then None, "not known".

`cachestat(2)` is Linux 6.5, `STATX_DIOALIGN` 6.1, `RWF_DONTCACHE` 6.14, `RWF_NOWAIT` 4.14.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from functools import cache
from typing import Final, NamedTuple

RWF_DONTCACHE: Final = 0x80
"""For preadv2 and pwritev2: pages that were not cached before are dropped after use."""

_CACHESTAT: Final = 451  # the same number on every architecture that has the shared table
_SHARED_TABLE: Final = ("x86_64", "aarch64", "riscv64", "ppc64le", "s390x")
_STATX_DIOALIGN: Final = 0x2000
_AT_EMPTY_PATH: Final = 0x1000
_STATX_BYTES: Final = 256
_DIO_ALIGN_AT: Final = 0x98
_SAMPLES: Final = 16
_REMOTE: Final = (
    "nfs",
    "cifs",
    "smb",
    "lustre",
    "ceph",
    "9p",
    "virtiofs",
    "beegfs",
    "gpfs",
    "fuse",
)
"""How the kinds of file systems begin that bring files over a network, or page by page."""


class DirectAlignment(NamedTuple):
    """Multiples of which addresses and file positions must be for direct I/O, in bytes."""

    memory_bytes: int
    position_bytes: int


SAFE_ALIGNMENT: Final = DirectAlignment(4096, 4096)
"""What every file system with direct I/O takes."""


@cache
def _system() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def cached_bytes(descriptor: int, offset: int, size: int) -> int | None:
    """How many bytes of a range of a file lie in the page cache, in whole pages (so perhaps more
    than `size`). None when the kernel does not tell."""
    if platform.machine() not in _SHARED_TABLE or not size:
        return None
    span = (ctypes.c_uint64 * 2)(offset, size)
    counts = (ctypes.c_uint64 * 5)()
    failed = _system().syscall(
        ctypes.c_long(_CACHESTAT),
        ctypes.c_uint(descriptor),
        ctypes.byref(span),
        ctypes.byref(counts),
        ctypes.c_uint(0),
    )
    return None if failed else int(counts[0]) * os.sysconf("SC_PAGE_SIZE")


def sample_cached(descriptor: int, size: int) -> float | None:
    """The part of a file that is cached, from 0 to 1, by samples that do not wait for the disk.
    For kernels without `cachestat`. None when the file system cannot tell."""
    if not size:
        return None
    found = 0
    for n in range(_SAMPLES):
        try:
            found += bool(
                os.preadv(descriptor, [bytearray(1)], n * size // _SAMPLES, os.RWF_NOWAIT)
            )
        except BlockingIOError:
            continue
        except OSError:
            return None
    return found / _SAMPLES


def direct_alignment(descriptor: int) -> DirectAlignment | None:
    """What direct I/O on this file asks for; None when the file system has none. A kernel that does
    not tell gets the safe answer: opening the file shows whether it is true."""
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    failed = _system().statx(
        ctypes.c_int(descriptor), b"", _AT_EMPTY_PATH, ctypes.c_uint(_STATX_DIOALIGN), answer
    )
    (mask,) = struct.unpack_from("<I", answer, 0)
    if failed or not mask & _STATX_DIOALIGN:
        return SAFE_ALIGNMENT
    memory, position = struct.unpack_from("<II", answer, _DIO_ALIGN_AT)
    return DirectAlignment(memory, position) if memory and position else None


def open_direct(descriptor: int, flags: int) -> int | None:
    """The same file opened again for direct I/O; None where it cannot be. The caller closes it."""
    try:
        return os.open(f"/proc/self/fd/{descriptor}", flags | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:
        return None


def is_remote(descriptor: int) -> bool:
    """Whether the file comes over a network: mapping it would read it page by page."""
    device = os.fstat(descriptor).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    kind = _mounted().get(wanted, "")
    return kind.startswith(_REMOTE)


def readahead_bytes(descriptor: int) -> int | None:
    """How much the kernel reads at once when a mapped file is touched; None when it does not
    tell."""
    device = os.fstat(descriptor).st_dev
    place = f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb"
    try:
        with open(place) as file:
            return int(file.read()) << 10
    except (OSError, ValueError):
        return None


def _mounted() -> dict[str, str]:
    """The kinds of the mounted file systems by device."""
    try:
        with open("/proc/self/mountinfo") as file:
            return parse_mounts(file.read())
    except OSError:
        return {}


def parse_mounts(text: str) -> dict[str, str]:
    """From the text of /proc/self/mountinfo: {"major:minor": kind of file system}."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        fields = before.split()
        if dash and len(fields) > 2 and after:
            found[fields[2]] = after.split()[0]
    return found


def available_bytes() -> int | None:
    """Memory that can be had without swapping; None when the kernel does not tell."""
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name == "MemAvailable":
                    return int(value.split()[0]) << 10
    except (OSError, ValueError, IndexError):
        return None
    return None
