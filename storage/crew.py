"""The few threads that carry blocks: they take the next item when they are done with one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Final, TypeVar

from tensorcast.schema.errors import Cancelled

T = TypeVar("T")
R = TypeVar("R")

COPIES_MAX: Final = 8
"""Threads that copy from the page cache: they use cores."""
READS_MIN, READS_MAX = 8, 16
"""Threads that wait for a disk: they use hardly any."""


class _End:
    """What stands after the last item."""


_END = _End()


def choose_copies() -> int:
    """How many threads copy at once: one for each core that this process may use, to a limit."""
    return min(COPIES_MAX, count_cores())


def choose_reads() -> int:
    """How many reads a disk gets at once. Measured on a virtual disk: 1 read of 2 MiB 1.9 GB/s, 2
    reads 2.1, 4 reads 2.4, 8 reads 2.5. On a busy machine a thread waits for a core between two
    reads, and more of them keep the disk busy; larger machines have disks that want more."""
    return min(READS_MAX, max(READS_MIN, count_cores()))


def count_cores() -> int:
    """The CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def spread(
    do: Callable[[T], R], items: Iterable[T], threads: int, stop: threading.Event | None = None
) -> list[R]:
    """`do` for every item, in any order, in several threads; the results in any order. After the
    first error no new item is begun, and that error is raised once all threads have ended. Raises
    Cancelled once `stop` is set."""
    source = iter(items)
    lock = threading.Lock()
    failed = threading.Event()

    def work() -> list[R]:
        found: list[R] = []
        for item in _take(source, lock, failed):
            if stop is not None and stop.is_set():
                raise Cancelled("The work was cancelled.")
            try:
                found.append(do(item))
            except BaseException:
                failed.set()
                raise
        return found

    if isinstance(items, Sized):
        threads = min(threads, len(items))
    if threads <= 1:
        return work()
    with ThreadPoolExecutor(threads, thread_name_prefix="tensorcast storage") as pool:
        futures = [pool.submit(work) for _ in range(threads)]
        wait(futures)
    failure = next(filter(None, (future.exception() for future in futures)), None)
    if failure is None:
        return [result for future in futures for result in future.result()]
    try:
        raise failure
    finally:
        # The error holds this frame, and those of the callers: nothing here may hold the error.
        del failure, futures


def _take(source: Iterator[T], lock: threading.Lock, failed: threading.Event) -> Iterator[T]:
    while not failed.is_set():
        with lock:
            item = next(source, _END)
        if isinstance(item, _End):
            return
        yield item
