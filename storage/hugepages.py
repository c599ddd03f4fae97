"""Shared memory in huge pages, made where nothing was before.

New shared memory costs more than the copy into it: the kernel makes, counts and later frees
262,144 pages for a GiB. Huge pages cost a fraction of that, but Linux gives none to a memfd by
itself unless the administrator sets `shmem_enabled`. Asked for ranges (`MADV_COLLAPSE`, Linux 6.1)
it does so whatever that says, except with `deny`. A range that has no page at all is refused, so
its first page is made before; the rest of the huge page is then zeros, and nothing is copied.

Where huge pages cannot be had, or cost more than the others (memory is in pieces, or a hypervisor
has to fetch it first), no more are asked for, and the memory is as it was: some first pages are
there.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Final, Self

from tensorcast.schema.errors import OutOfCapacity
from tensorcast.storage.memory import HUGE_BYTES, address_of, collapse, is_mapped, populate

PAGE_S_MAX: Final = 0.0005
"""What a huge page may take: 512 others take more (0.7 ms, measured)."""
EXCESS_S_MAX: Final = 0.01
"""So much is lost, all pages together, before no more are asked for."""
_WAITING_SHARE: Final = 0.25
"""Of the time in which a thread does not run: it may wait for memory, or only for a core."""

_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000  # Python has names for them from 3.13 on
_FAILED = ctypes.c_void_p(-1).value
_UNKNOWN, _HUGE, _ORDINARY = 0, 1, 2


class AlignedMapping:
    """The first `size_bytes` of a file, mapped shared and writable, from a huge page on: only so
    can its huge pages be mapped whole. `memory` is it. Does not keep the descriptor. Raises
    OutOfCapacity, and OSError for what cannot be mapped."""

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        try:
            self._reserved = mmap.mmap(-1, size_bytes + HUGE_BYTES, flags=flags)
        except OSError as error:
            raise OutOfCapacity(
                f"{size_bytes} bytes cannot be mapped: {error.strerror}.",
                hint="See `ulimit -v` and vm.max_map_count.",
            ) from error
        with memoryview(self._reserved) as whole:
            skip = -address_of(whole) % HUGE_BYTES
            _map_over(address_of(whole) + skip, size_bytes, descriptor)
            self.memory = whole[skip : skip + size_bytes]

    def close(self) -> None:
        """Ends the mapping. Raises BufferError while somebody holds a view of it; then it lives as
        long as the view. Safe to repeat."""
        self.memory.release()
        self._reserved.close()

    def __enter__(self) -> memoryview:
        return self.memory

    def __exit__(self, *_: object) -> None:
        self.close()


def _map_over(address: int, size_bytes: int, descriptor: int) -> None:
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED
    if _system().mmap(address, size_bytes, protection, flags, descriptor, 0) == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@cache
def _system() -> ctypes.CDLL:
    system = ctypes.CDLL(None, use_errno=True)
    system.mmap.restype = ctypes.c_void_p
    system.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    return system


class HugePages:
    """The huge pages of a segment behind `descriptor`, whose mapping is `memory` (as
    AlignedMapping gives it; `collapse` asks the kernel for them). No byte is ever changed; several
    threads may use it, and some may write meanwhile."""

    def __init__(
        self,
        descriptor: int,
        memory: memoryview,
        collapse: Callable[[memoryview], bool] = collapse,
    ) -> None:
        self._descriptor = descriptor
        self._memory = memory
        self._ask = collapse
        self._states = bytearray(memory.nbytes // HUGE_BYTES)
        self._excess_s = 0.0
        self._pagemap = -1
        with contextlib.suppress(OSError):
            self._pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pagemap >= 0:
            os.close(self._pagemap)
            self._pagemap = -1

    def make(self, start: int, end: int) -> bool:
        """Whether all bytes from `start` to `end` lie in huge pages now. Those that have no pages
        get some if that is cheap; what has pages keeps them. Blocks: 0.1 ms for each."""
        numbers = range(start // HUGE_BYTES, -(-end // HUGE_BYTES))
        if numbers.stop > len(self._states):
            return False
        for run in self._new_runs(numbers):
            state = _HUGE if self._collapse(run) else _ORDINARY
            self._states[run.start : run.stop] = bytes([state]) * len(run)
        return all(self._states[number] == _HUGE for number in numbers)

    def _new_runs(self, numbers: range) -> Iterator[range]:
        """What has no pages yet, in runs; notes of the others what they are."""
        first = numbers.start
        for number in numbers:
            if self._states[number] != _UNKNOWN or not self._is_hole(number):
                if first < number:
                    yield range(first, number)
                first = number + 1
                if self._states[number] == _UNKNOWN:
                    self._states[number] = self._look(number)
        if first < numbers.stop:
            yield range(first, numbers.stop)

    def _is_hole(self, number: int) -> bool:
        at = number * HUGE_BYTES
        try:
            return os.lseek(self._descriptor, at, os.SEEK_DATA) != at
        except OSError:  # there is nothing from there on
            return True

    def _look(self, number: int) -> int:
        """One touch maps a huge page to its end, and others not."""
        at = number * HUGE_BYTES
        populate(self._memory[at : at + 1])
        is_whole = is_mapped(self._pagemap, self._memory[at + HUGE_BYTES - 1 : at + HUGE_BYTES])
        return _HUGE if is_whole else _ORDINARY

    def _collapse(self, run: range) -> bool:
        if self._excess_s > EXCESS_S_MAX:
            return False
        begun, begun_cpu = time.perf_counter(), time.thread_time()
        for number in run:
            populate(self._memory[number * HUGE_BYTES : number * HUGE_BYTES + 1])
        is_made = self._ask(self._memory[run.start * HUGE_BYTES : run.stop * HUGE_BYTES])
        spent_s = max(
            time.thread_time() - begun_cpu, _WAITING_SHARE * (time.perf_counter() - begun)
        )
        # Failures count as much as what is too slow, the first few of them at once.
        spent_s += 0 if is_made else EXCESS_S_MAX / 2
        self._excess_s = max(0.0, self._excess_s + spent_s - len(run) * PAGE_S_MAX)
        return is_made
