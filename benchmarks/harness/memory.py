"""Memory that contenders share with the harness: where bytes come from, and where they must arrive.

Every contender moves the same bytes out of one memfd into another, so that all have the same kind
of pages, none needs a gigabyte of its own, and the harness itself can clear the target before each
turn and compare all of it after. Standard library only (`compare` alone needs numpy).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random

MIB = 1 << 20
_STAMP_EVERY = 4096
_MAP_POPULATE = 0x8000
_MADV_POPULATE_WRITE = 23


def create_memory(size: int) -> int:
    """A descriptor of `size` bytes of memory, all pages there."""
    fd = os.memfd_create("benchmark")
    os.posix_fallocate(fd, 0, size)
    return fd


def map_memory(fd: int, size: int, *, is_populated: bool = True) -> memoryview:
    """The bytes, shared and writable; all their pages mapped at once, unless told otherwise."""
    flags = mmap.MAP_SHARED | (_MAP_POPULATE if is_populated else 0)
    return memoryview(mmap.mmap(fd, size, flags=flags))


def address_of(memory: memoryview) -> int:
    """Where it lies; it must be writable."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def back_pages(size: int) -> None:
    """Has the machine back so much of its free memory with real memory. Hypervisors take free pages
    back after some seconds, and the next to touch them pays for it, whoever that is: before a turn
    that needs fresh memory nobody should."""
    with mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        memory.madvise(_MADV_POPULATE_WRITE)


def fill(memory: memoryview, seed: int) -> None:
    """Noise that no compression shrinks; no page equals another, so that a swap is seen."""
    noise = random.Random(seed).randbytes(16 * MIB)
    for at in range(0, len(memory), len(noise)):
        memory[at : at + len(noise)] = noise[: len(memory) - at]
    for at in range(0, len(memory) - 8, _STAMP_EVERY):
        memory[at : at + 8] = (at + seed + 1).to_bytes(8, "little")


def clear(memory: memoryview) -> None:
    """Zeros everywhere."""
    ctypes.memset(address_of(memory), 0, len(memory))


def compare(found: memoryview, expected: memoryview) -> None:
    """Raises ValueError unless both are equal, byte for byte; tells where they differ first."""
    import numpy

    if len(found) != len(expected):
        raise ValueError(f"{len(found)} bytes came instead of {len(expected)}.")
    step = 64 * MIB
    for at in range(0, len(found), step):
        left = numpy.frombuffer(found[at : at + step], dtype=numpy.uint8)
        right = numpy.frombuffer(expected[at : at + step], dtype=numpy.uint8)
        if not numpy.array_equal(left, right):
            where = at + int(numpy.argmax(left != right))
            raise ValueError(f"The bytes differ, the first one at {where}.")


def cut(size: int, count: int) -> list[tuple[int, int]]:
    """(offset, size) of `count` tensors that fill `size` bytes: the mix of a transformer's layer
    (attention, feed-forward, two small norms), in multiples of 64 bytes."""
    if count == 1:
        return [(0, size)]
    weights = (4, 1, 1, 4, 11, 11, 11, 0.004, 0.004)
    total = sum(weights[n % len(weights)] for n in range(count))
    sizes = [max(64, int(size * weights[n % 9] / total) // 64 * 64) for n in range(count)]
    sizes[sizes.index(max(sizes))] += size - sum(sizes)
    places, at = [], 0
    for each in sizes:
        places.append((at, each))
        at += each
    return places
