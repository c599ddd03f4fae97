"""How much memory there is for this process: of the machine, and of the control groups it is in.

Reads `/proc` and the cgroup file systems, of version 2 and of version 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import msgspec

CGROUPS = Path("/sys/fs/cgroup")


class Limit(msgspec.Struct, frozen=True):
    """A control group's limit, and how much of it is taken by what cannot be given up, in bytes."""

    limit_bytes: int
    taken_bytes: int


def total_bytes() -> int:
    """The memory that this process could have at most."""
    found = _meminfo("MemTotal")
    return min([found, *(limit.limit_bytes for limit in read_limits())])


def available_bytes() -> int:
    """The memory that can be had now. Files in the page cache give way, so they do not count."""
    left = [limit.limit_bytes - limit.taken_bytes for limit in read_limits()]
    return max(0, min([_meminfo("MemAvailable"), *left]))


def _meminfo(field: str) -> int:
    return parse_fields(Path("/proc/meminfo").read_text().replace(":", ""))[field] * 1024


def parse_fields(text: str) -> dict[str, int]:
    """The numbers of a file with a name and a number on each line."""
    rows = (line.split() for line in text.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def read_limits(groups: str | None = None, root: Path = CGROUPS) -> tuple[Limit, ...]:
    """The limits of the groups that this process is in, and of those above. `groups` is what
    `/proc/self/cgroup` says."""
    try:
        text = Path("/proc/self/cgroup").read_text() if groups is None else groups
        return tuple(_limits(text, root))
    except OSError:
        return ()


def _limits(text: str, root: Path) -> Iterator[Limit]:
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _climb(root, path, _read_v2)
        elif "memory" in controllers.split(","):
            yield from _climb(root / "memory", path, _read_v1)


def _climb(root: Path, path: str, read: Callable[[Path], Limit | None]) -> Iterator[Limit]:
    place = PurePosixPath(path.lstrip("/"))
    for folder in (place, *place.parents):
        found = read(root / folder)
        if found is not None:
            yield found


def _read_v2(folder: Path) -> Limit | None:
    limit = _number(folder / "memory.max")
    used = _number(folder / "memory.current")
    if limit is None or used is None:
        return None
    fields = parse_fields((folder / "memory.stat").read_text())
    cached = fields.get("file", 0) - fields.get("shmem", 0)
    return Limit(limit, max(0, used - cached))


def _read_v1(folder: Path) -> Limit | None:
    limit = _number(folder / "memory.limit_in_bytes")
    used = _number(folder / "memory.usage_in_bytes")
    if limit is None or used is None:
        return None
    fields = parse_fields((folder / "memory.stat").read_text())
    cached = fields.get("total_cache", 0) - fields.get("total_shmem", 0)
    return Limit(limit, max(0, used - cached))


def _number(path: Path) -> int | None:
    """The number in a file; None when there is none (`max`), or no such file."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
