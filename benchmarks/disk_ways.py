"""The ways in which a file of 1 GiB can get from a disk into private memory, and back: what
`storage/reader.py` and `storage/writer.py` chose from, measured in turns, each in a fresh fork.

PYTHONPATH=benchmarks .venv/bin/python benchmarks/disk_ways.py [--rounds N] [--folder F]

Cold reads drop the page cache of the whole machine first, which takes root; without it they are
left out. A hypervisor may still hold the file.
"""

from __future__ import annotations

import argparse
import mmap
import os
import resource
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tensorcast.storage.crew import spread
from tensorcast.storage.kernel import RWF_DONTCACHE
from tensorcast.storage.memory import address_of, allocate, copy, populate, populate_from_file

SIZE = 1 << 30
BLOCK = 2 << 20
MAPPED = 8 << 20
Way = Callable[[Path, memoryview], None]


def blocks(step: int = BLOCK) -> range:
    return range(0, SIZE, step)


def opened(path: Path, flags: int, do: Callable[[int], None]) -> None:
    descriptor = os.open(path, flags, 0o600)
    try:
        do(descriptor)
    finally:
        os.close(descriptor)


# ---- reads -------------------------------------------------------------------------------------


def buffered(threads: int, flags: int = 0, step: int = 8 << 20) -> Way:
    def read(path: Path, memory: memoryview) -> None:
        def block(fd: int, at: int) -> None:
            os.preadv(fd, [memory[at : at + step]], at, flags)

        opened(
            path, os.O_RDONLY, lambda fd: spread(lambda at: block(fd, at), blocks(step), threads)
        )

    return read


def direct(threads: int) -> Way:
    def read(path: Path, memory: memoryview) -> None:
        def block(fd: int, at: int) -> None:
            os.preadv(fd, [memory[at : at + BLOCK]], at)

        flags = os.O_RDONLY | os.O_DIRECT
        opened(path, flags, lambda fd: spread(lambda at: block(fd, at), blocks(), threads))

    return read


def direct_through_buffer(path: Path, memory: memoryview) -> None:
    buffers = [allocate(BLOCK) for _ in range(4)]

    def block(fd: int, at: int) -> None:
        buffer = buffers.pop()
        os.preadv(fd, [buffer], at)
        copy(memory[at : at + BLOCK], buffer)
        buffers.append(buffer)

    flags = os.O_RDONLY | os.O_DIRECT
    opened(path, flags, lambda fd: spread(lambda at: block(fd, at), blocks(), 4))


def mapped(path: Path, memory: memoryview) -> None:
    """Into the page cache, and from there nowhere."""

    def populate_all(fd: int) -> None:
        pages = memoryview(mmap.mmap(fd, SIZE, flags=mmap.MAP_PRIVATE))
        for at in blocks(MAPPED):
            populate_from_file(pages[at : at + MAPPED])

    opened(path, os.O_RDONLY, populate_all)


def small_pages(way: Way) -> Way:
    """The same into memory of 4 KiB pages."""

    def read(path: Path, memory: memoryview) -> None:
        way(path, memoryview(mmap.mmap(-1, SIZE)))

    return read


READS: dict[str, Way] = {
    "preadv, 2 threads": buffered(2),
    "preadv, 2 threads, small pages": small_pages(buffered(2)),
    "preadv with RWF_DONTCACHE, 4 threads": buffered(4, RWF_DONTCACHE, BLOCK),
    "O_DIRECT, 1 thread": direct(1),
    "O_DIRECT, 4 threads": direct(4),
    "O_DIRECT, 4 threads, small pages": small_pages(direct(4)),
    "O_DIRECT, 8 threads": direct(8),
    "O_DIRECT, 4 threads, through a buffer": direct_through_buffer,
    "mmap, populated": mapped,
}


# ---- writes ------------------------------------------------------------------------------------


def write(threads: int, flags: int = 0, write_flags: int = 0) -> Way:
    def run(path: Path, memory: memoryview) -> None:
        def everything(fd: int) -> None:
            os.posix_fallocate(fd, 0, SIZE)
            spread(
                lambda at: os.pwritev(fd, [memory[at : at + BLOCK]], at, write_flags),
                blocks(),
                threads,
            )
            os.fsync(fd)

        new = path.with_name("written")
        opened(new, os.O_WRONLY | os.O_CREAT | flags, everything)
        new.unlink()

    return run


WRITES: dict[str, Way] = {
    "pwrite, 2 threads": write(2),
    "pwritev with RWF_DONTCACHE, 2 threads": write(2, write_flags=RWF_DONTCACHE),
    "O_DIRECT write, 1 thread": write(1, os.O_DIRECT),
    "O_DIRECT write, 4 threads": write(4, os.O_DIRECT),
}


# ---- how ---------------------------------------------------------------------------------------


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(way: Way, path: Path, is_touched: bool) -> tuple[float, float]:
    """Seconds and CPU seconds, in a fork that has no memory yet."""
    ends = os.pipe()
    child = os.fork()
    if not child:
        memory = allocate(SIZE)
        if is_touched:
            populate(memory)
        assert address_of(memory)
        cpu, begin = cpu_s(), time.perf_counter()
        way(path, memory)
        os.write(ends[1], struct.pack("2d", time.perf_counter() - begin, cpu_s() - cpu))
        os._exit(0)
    os.close(ends[1])
    took, used = struct.unpack("2d", os.read(ends[0], 16))
    os.close(ends[0])
    os.waitpid(child, 0)
    return took, used


def prepare(state: str, path: Path) -> None:
    if state == "cold":
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
    elif state == "warm":
        path.read_bytes()
    else:
        os.sync()


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--folder", type=Path, default=None)
    given = options.parse_args()
    can_drop = os.access("/proc/sys/vm/drop_caches", os.W_OK)
    work = [("warm", READS), *((("cold", READS),) if can_drop else ()), ("write", WRITES)]
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        path = Path(folder) / "file"
        path.write_bytes(os.urandom(SIZE >> 4) * 16)
        for state, ways in work:
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
            for _ in range(given.rounds):
                for name, way in ways.items():
                    prepare(state, path)
                    found[name].append(measure(way, path, is_touched=state == "write"))
            for name, results in found.items():
                took = statistics.median(result[0] for result in results)
                used = statistics.median(result[1] for result in results)
                print(f"{state:5}  {name:38} {SIZE / took / 1e9:6.2f} GB/s  {used:.2f} CPU s/GiB")
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs, Linux {os.uname().release}")


if __name__ == "__main__":
    main()
