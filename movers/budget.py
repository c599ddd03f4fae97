"""How much of the machine a node may take: checked at the start, and the disk's share always."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from tensorcast.movers.memory.limits import total_bytes
from tensorcast.schema.errors import InvalidArgument

RESERVE_BYTES_MAX: Final = 4 << 30
RESERVE_SHARE: Final = 0.05
GIB: Final = 1 << 30


class DiskSpace(msgspec.Struct, frozen=True):
    """A file system: its size, and the bytes of it that this user could still take."""

    size_bytes: int
    free_bytes: int


def read_space(folder: Path) -> DiskSpace:
    """The file system of a folder that exists."""
    found = os.statvfs(folder)
    return DiskSpace(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


class DiskBudget:
    """The budget of the disk tier in `folder`: `limit_bytes`, or (None) what is free, less a
    reserve. It changes as others fill the disk."""

    def __init__(self, folder: Path, limit_bytes: int | None) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes

    def capacity(self, used_bytes: int) -> int:
        """How much the tier may hold in all now that it holds so much."""
        return disk_capacity(read_space(self._folder), used_bytes, self._limit_bytes)

    def most(self) -> int:
        """How much it could hold at the very best."""
        size_bytes = read_space(self._folder).size_bytes
        return size_bytes if self._limit_bytes is None else min(size_bytes, self._limit_bytes)


def disk_capacity(space: DiskSpace, used_bytes: int, limit_bytes: int | None) -> int:
    """What a node's disk tier may hold in all, of which it holds `used_bytes` now. A twentieth of
    the disk (4 GiB at most) is left to others: servers write their logs there, and a stop saves
    memory there. A `limit_bytes` of the user's replaces this reserve, but not what is free."""
    if limit_bytes is not None:
        return min(limit_bytes, used_bytes + space.free_bytes)
    reserve = min(RESERVE_BYTES_MAX, int(space.size_bytes * RESERVE_SHARE))
    return used_bytes + max(0, space.free_bytes - reserve)


def check_budgets(dram_bytes: int, disk_bytes: int | None, folder: Path) -> None:
    """Raises InvalidArgument for budgets that this machine could never give."""
    memory = total_bytes()
    if dram_bytes > memory:
        raise InvalidArgument(
            f"A memory budget of {dram_bytes} bytes ({dram_bytes / GIB:.1f} GiB) is more than the "
            f"{memory} bytes ({memory / GIB:.1f} GiB) that this machine, or its control group, "
            "has.",
            hint="Give less with `--dram` (TENSORCAST_DRAM_BYTES).",
        )
    size = read_space(folder).size_bytes
    if disk_bytes is not None and disk_bytes > size:
        raise InvalidArgument(
            f"A disk budget of {disk_bytes} bytes ({disk_bytes / GIB:.1f} GiB) is more than the "
            f"{size} bytes ({size / GIB:.1f} GiB) of the disk of {folder}.",
            hint="Give less with `--disk` (TENSORCAST_DISK_BYTES), or another data folder.",
        )
