"""Both ends of a transfer inside a worker, and sums of latencies. Standard library only."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping

from harness.memory import address_of, cut, map_memory
from harness.remote import Remote


class Ends:
    """The source and the target of the harness, mapped, and cut as each work wants it."""

    def __init__(self, options: Mapping[str, object]) -> None:
        self.options = options
        self.works = options["works"]
        self.source_fd = options["source_fd"]
        self.source = map_memory(self.source_fd, options["source_bytes"])
        self.target = map_memory(options["target_fd"], options["target_bytes"])
        self.source_address = address_of(self.source)
        self.target_address = address_of(self.target)

    def size(self, work: str) -> int:
        """Bytes of a work."""
        return self.works[work]["size"]

    def places(self, work: str) -> list[tuple[int, int]]:
        """(offset, size) of each piece of a work, the same on both sides."""
        return cut(self.size(work), self.works[work]["count"])

    def source_views(self, work: str) -> list[memoryview]:
        """The pieces to send."""
        return [self.source[at : at + size] for at, size in self.places(work)]

    def target_views(self, work: str) -> list[memoryview]:
        """Where the pieces have to arrive."""
        return [self.target[at : at + size] for at, size in self.places(work)]


def start_other(worker: str, options: Mapping[str, object]) -> tuple[Remote, dict]:
    """The other side of a pair, a process with the same interpreter; and its facts."""
    log = os.path.join(str(options["folder"]), f"{worker.replace(':', '-')}.log")
    descriptors = (options["source_fd"], options["target_fd"])
    other = Remote(worker, python=sys.executable, descriptors=descriptors, log=log)
    return other, other.call("start", options=options)


def timed(work: Callable[[], object]) -> dict[str, float]:
    """Seconds of one call, as an answer of `run`."""
    begun = time.perf_counter()
    work()
    return {"seconds": time.perf_counter() - begun}


def summarize(latencies_s: list[float], blocks: int = 1) -> dict[str, float]:
    """An answer of `run` for many calls in a row, each for `blocks` blocks."""
    ordered = sorted(latencies_s)
    last = len(ordered) - 1
    return {
        "seconds": sum(ordered),
        "p50_us": ordered[last // 2] / blocks * 1e6,
        "p99_us": ordered[int(last * 0.99)] / blocks * 1e6,
    }


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


def find_program(name: str, options: Mapping[str, object]) -> str:
    """A program on the path, or among the unpacked Debian packages. Raises FileNotFoundError."""
    folders = [*os.environ.get("PATH", "").split(":"), f"{options['cache']}/debian/usr/bin"]
    for folder in folders:
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK):
            return path
    raise FileNotFoundError(f"{name} is not installed; scripts/bench --install fetches it")
