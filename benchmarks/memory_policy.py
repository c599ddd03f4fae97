"""How memory is best touched, mapped and copied on this machine: the measurements behind the
defaults of puts and gets on one node (docs/data-plane.md, "Same node").

    python benchmarks/memory_policy.py [--mib 512] [--rounds 5]

Needs no cluster. Ways are measured in turns; CPU seconds and times are those of one GiB, medians.
A machine that gets its memory from a host that takes it back (free page reporting) pays for every
page once more when it is new to it: so free memory is touched before each measurement.
"""

from __future__ import annotations

import argparse
import mmap
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from tensorcast.client.arena import Arena
from tensorcast.client.memory import Mapping
from tensorcast.client.socket import Connection
from tensorcast.movers.memory.digesting import Digester
from tensorcast.movers.memory.memfd import Segment
from tensorcast.storage.crew import spread
from tensorcast.storage.hugepages import AlignedMapping, HugePages
from tensorcast.storage.memory import allocate, copy, populate, populate_from_file

UNIT = 4 << 20
HUGE_SIZE_KB = 2048
Way = tuple[str, Callable[[], None]]


class Bench:
    """The bytes that are put and got, in memory that was touched before."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.source = allocate(size_bytes)
        self.target = allocate(size_bytes)
        for memory in (self.source, self.target):
            for start in range(0, size_bytes, UNIT):
                memory[start : start + UNIT] = os.urandom(1 << 12) * (UNIT >> 12)

    @contextmanager
    def segment(self, how: str = "", flags: int = os.MFD_CLOEXEC) -> Iterator[int]:
        """A new memfd: untouched, "allocated" or "written"."""
        fd = os.memfd_create("memory-policy", flags)
        try:
            os.ftruncate(fd, self.size_bytes)
            if how == "allocated":
                os.posix_fallocate(fd, 0, self.size_bytes)
            elif how == "written":
                self.write(fd)
            yield fd
        finally:
            os.close(fd)

    def write(self, fd: int, unit: int = UNIT) -> None:
        for start in range(0, self.size_bytes, unit):
            os.pwrite(fd, self.source[start : start + unit], start)

    def units(self) -> range:
        return range(0, self.size_bytes, UNIT)

    def copy_all(self, target: memoryview, source: memoryview, threads: int) -> None:
        spread(
            lambda at: copy(target[at : at + UNIT], source[at : at + UNIT]), self.units(), threads
        )


def ways_to_write(bench: Bench) -> Iterator[Way]:
    """Into memory that nobody touched before."""

    def pwrite() -> None:
        with bench.segment() as fd:
            bench.write(fd)

    def allocate_and_pwrite() -> None:
        with bench.segment("allocated") as fd:
            bench.write(fd)

    def mapped(threads: int, advice: int | None, populates: bool) -> None:
        with bench.segment() as fd, mmap.mmap(fd, bench.size_bytes) as mapping:
            if advice is not None:
                mapping.madvise(advice)

            def fill(at: int) -> None:
                with memory[at : at + UNIT] as part:
                    if populates:
                        populate(part)
                    copy(part, bench.source[at : at + UNIT])

            with memoryview(mapping) as memory:
                spread(fill, bench.units(), threads)

    yield "new memfd: one pwrite of all", pwrite
    yield "new memfd: fallocate, then pwrite", allocate_and_pwrite
    yield "new memfd: mapped, populated, 1 thread", lambda: mapped(1, None, True)
    yield "new memfd: mapped, populated, 2 threads", lambda: mapped(2, None, True)
    yield (
        "new memfd: mapped, MADV_HUGEPAGE, 2 threads",
        lambda: mapped(2, mmap.MADV_HUGEPAGE, False),
    )


def ways_to_write_used(bench: Bench) -> Iterator[Way]:
    """Into memory that was used before, or reserved."""
    used = os.memfd_create("memory-policy", os.MFD_CLOEXEC)
    bench.write(used)

    def over() -> None:
        bench.write(used)

    def over_mapped() -> None:
        with mmap.mmap(used, bench.size_bytes) as mapping, memoryview(mapping) as memory:
            bench.copy_all(memory, bench.source, 1)

    yield "used memfd: pwrite", over
    yield "used memfd: mapped, 1 thread", over_mapped
    if free_huge_pages() * HUGE_SIZE_KB << 10 >= bench.size_bytes:

        def huge() -> None:
            flags = os.MFD_CLOEXEC | os.MFD_HUGETLB
            with (
                bench.segment("", flags) as fd,
                mmap.mmap(fd, bench.size_bytes) as mapping,
                memoryview(mapping) as memory,
            ):
                bench.copy_all(memory, bench.source, 1)

        yield "new memfd of reserved huge pages, mapped", huge


def ways_to_write_huge(bench: Bench) -> Iterator[Way]:
    """Into huge pages that are asked for, as segments do, and into those used before."""

    def made_huge(threads: int) -> None:
        with (
            bench.segment() as fd,
            AlignedMapping(fd, bench.size_bytes) as memory,
            HugePages(fd, memory) as pages,
        ):

            def fill(at: int) -> None:
                with memory[at : at + UNIT] as part:
                    if pages.make(at, at + UNIT):
                        copy(part, bench.source[at : at + UNIT])
                    else:
                        os.pwrite(fd, bench.source[at : at + UNIT], at)

            spread(fill, bench.units(), threads)

    yield "new memfd: huge pages asked for, mapped, 1 thread", lambda: made_huge(1)
    yield "new memfd: huge pages asked for, mapped, 2 threads", lambda: made_huge(2)
    used_huge = os.memfd_create("memory-policy", os.MFD_CLOEXEC)
    os.ftruncate(used_huge, bench.size_bytes)
    with (
        AlignedMapping(used_huge, bench.size_bytes) as memory,
        HugePages(used_huge, memory) as pages,
    ):
        pages.make(0, bench.size_bytes)

    def over_huge() -> None:
        with AlignedMapping(used_huge, bench.size_bytes) as memory:
            bench.copy_all(memory, bench.source, 1)

    yield "used memfd in huge pages: mapped, 1 thread", over_huge


def back_pages(size_bytes: int) -> None:
    """Free memory that a hypervisor took back is fetched again before anything is measured."""
    with mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
        pages.madvise(mmap.MADV_HUGEPAGE)
        with memoryview(pages) as memory:
            populate(memory)


def ways_to_read(bench: Bench, fd: int) -> Iterator[Way]:
    """Out of a segment."""

    def mapped(threads: int, populates: bool) -> None:
        read, lifeline = os.pipe()
        os.close(read)
        mapping = Mapping(fd, bench.size_bytes, lifeline)
        with memoryview(mapping) as memory:
            if populates:
                spread(
                    lambda at: populate_from_file(memory[at : at + UNIT]), bench.units(), threads
                )
            bench.copy_all(bench.target, memory, threads)

    def pread(threads: int) -> None:
        spread(lambda at: os.preadv(fd, [bench.target[at : at + UNIT]], at), bench.units(), threads)

    def fresh(is_huge: bool) -> None:
        pages = mmap.mmap(-1, bench.size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.madvise(mmap.MADV_HUGEPAGE if is_huge else mmap.MADV_NOHUGEPAGE)
        with memoryview(pages) as memory:
            spread(lambda at: os.preadv(fd, [memory[at : at + UNIT]], at), bench.units(), 2)
        pages.close()

    def map_only() -> None:
        read, lifeline = os.pipe()
        os.close(read)
        Mapping(fd, bench.size_bytes, lifeline)

    yield "memcpy, 1 thread", lambda: bench.copy_all(bench.target, bench.source, 1)
    yield "memcpy, 2 threads", lambda: bench.copy_all(bench.target, bench.source, 2)
    yield "get_into: mapped, faults, 2 threads", lambda: mapped(2, False)
    yield "get_into: mapped, populated, 2 threads", lambda: mapped(2, True)
    yield "get_into: preadv, 2 threads", lambda: pread(2)
    yield "copy into new private memory, pages of 4 KiB", lambda: fresh(False)
    yield "copy into new private memory, huge pages", lambda: fresh(True)
    yield "get: mapped, nothing populated", map_only


def ways_to_seal(bench: Bench, fd: int) -> Iterator[Way]:
    """What the mover does, and what becomes of an arena."""
    segment = Segment("memory-policy", os.dup(fd), bench.size_bytes)

    def digest() -> None:
        Digester(segment, bench.size_bytes).finish()

    yield "digest (XXH3-64 and BLAKE3), all cores", digest


class _Wire:
    def close(self) -> None:
        pass


def time_arena(bench: Bench, fd: int) -> dict[str, float]:
    """Seconds for each step of giving an arena's memory a private mapping in place."""
    read, lifeline = os.pipe()
    readable = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    descriptors = (os.dup(fd), readable, lifeline)
    arena = Arena.over(descriptors, cast("Connection", _Wire()), 1, (), bench.size_bytes)
    with memoryview(arena) as memory:
        populate(memory)
    before = time.perf_counter()
    arena.make_private()
    between = time.perf_counter()
    arena.give_up()
    after = time.perf_counter()
    os.close(read)
    return {"arena: replaced in place": between - before, "arena: given up": after - between}


def free_huge_pages() -> int:
    with open("/proc/meminfo") as lines:
        return next(
            (int(line.split()[1]) for line in lines if line.startswith("HugePages_Free")), 0
        )


def measure(ways: list[Way], rounds: int, size_bytes: int) -> None:
    """Each way in turn, `rounds` times; prints medians for a GiB."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name, _ in ways}
    for _ in range(rounds):
        for name, way in ways:
            back_pages(size_bytes + size_bytes // 4)
            wall, cpu = time.perf_counter(), time.process_time()
            way()
            found[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    per_gib = (1 << 30) / size_bytes
    for name, pairs in found.items():
        wall_s = statistics.median(wall for wall, _ in pairs) * per_gib
        cpu_s = statistics.median(cpu for _, cpu in pairs) * per_gib
        print(f"| {name} | {wall_s:.3f} | {cpu_s:.3f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    bench = Bench(arguments.mib << 20)
    print(f"cores {os.cpu_count()}, load {os.getloadavg()[0]:.1f}")
    print("| way | s/GiB | CPU s/GiB |\n|---|---|---|")
    with bench.segment("written") as fd:
        for ways in (
            ways_to_write(bench),
            ways_to_write_huge(bench),
            ways_to_write_used(bench),
            ways_to_read(bench, fd),
            ways_to_seal(bench, fd),
        ):
            measure(list(ways), arguments.rounds, bench.size_bytes)
        steps = [time_arena(bench, fd) for _ in range(arguments.rounds)]
        for name in steps[0]:
            wall_s = statistics.median(step[name] for step in steps)
            print(f"| {name} ({arguments.mib} MiB) | {wall_s:.4f} | |")


if __name__ == "__main__":
    main()
