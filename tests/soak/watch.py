"""What a node really takes, seen from outside, all the time."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import msgspec

from mover_nodes import MoverNode
from tensorcast.movers.durable import TEMPORARY_PREFIX
from tensorcast.movers.partial import PREFIX
from tensorcast.movers.tiers.disk import MODEL

LOOK_S = 0.03
SEGMENT = "/memfd:segment-"


class Seen(msgspec.Struct):
    """Segments of a node: how many, the sum of their sizes, and the memory that they really take,
    in bytes; the store's are included, each is counted once."""

    segments: int = 0
    size_bytes: int = 0
    taken_bytes: int = 0


class _Found(msgspec.Struct):
    """A segment by its inode: size, memory taken, and whether the mover has it open."""

    size_bytes: int
    taken_bytes: int
    is_own: bool


def look(node: MoverNode) -> Seen:
    """The segments that the node's mover has open, and those that its supervisor keeps. No look
    is a moment: only what two looks have seen was there at the same time for sure."""
    first, second = _find(node), _find(node)
    both = [(first[inode], second[inode]) for inode in first.keys() & second.keys()]
    own = [pair for pair in both if pair[0].is_own and pair[1].is_own]
    return Seen(
        segments=len(own),
        size_bytes=sum(one.size_bytes for one, _ in own),
        taken_bytes=sum(min(one.taken_bytes, other.taken_bytes) for one, other in both),
    )


def _find(node: MoverNode) -> dict[int, _Found]:
    found: dict[int, _Found] = {}
    for path in _descriptors(node.pid):
        with contextlib.suppress(OSError):
            if os.readlink(path).startswith(SEGMENT):
                _note(found, os.stat(path), is_own=True)
    for _, fd in node.store.named():
        with contextlib.suppress(OSError):
            _note(found, os.fstat(fd), is_own=False)
    return found


def _note(found: dict[int, _Found], stat: os.stat_result, *, is_own: bool) -> None:
    found.setdefault(stat.st_ino, _Found(stat.st_size, stat.st_blocks * 512, is_own))


def _descriptors(pid: int | None) -> list[str]:
    """Those of a mover; a process that is just being forked still has its parent's."""
    with contextlib.suppress(OSError):
        if b"movers.main" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
    return []


def disk_bytes(node: MoverNode) -> int:
    """The bytes of all replicas below the node's folder, whole or not."""
    total = 0
    for path in (node.folder / "data" / "disk").glob(f"*/{MODEL}"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


def leftovers(node: MoverNode) -> list[Path]:
    """Files and folders that somebody has begun and nobody finished."""
    data = node.folder / "data"
    return [
        path
        for prefix in (TEMPORARY_PREFIX, PREFIX)
        for folder in ("disk", "hibernate")
        for path in (data / folder).glob(f"{prefix}*")
    ]


class Watch:
    """Looks at the nodes in a thread, and keeps the most that it ever saw, and every breach."""

    def __init__(self, nodes: list[MoverNode], dram_bytes: int, disk_bytes: int) -> None:
        self.most = {node.name: Seen() for node in nodes}
        self.most_disk = dict.fromkeys(self.most, 0)
        self.looks = 0
        self.breaches: list[str] = []
        self._nodes = nodes
        self._dram_bytes = dram_bytes
        self._disk_bytes = disk_bytes
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(LOOK_S):
            self.looks += 1
            for node in self._nodes:
                self._look(node)

    def _look(self, node: MoverNode) -> None:
        seen, most = look(node), self.most[node.name]
        disk = disk_bytes(node)
        most.size_bytes = max(most.size_bytes, seen.size_bytes)
        most.taken_bytes = max(most.taken_bytes, seen.taken_bytes)
        most.segments = max(most.segments, seen.segments)
        self.most_disk[node.name] = max(self.most_disk[node.name], disk)
        if max(seen.size_bytes, seen.taken_bytes) > self._dram_bytes:
            self.breaches.append(f"{node.name} took {seen} of {self._dram_bytes} bytes")
        if disk > self._disk_bytes:
            self.breaches.append(f"{node.name} has {disk} of {self._disk_bytes} bytes on disk")
