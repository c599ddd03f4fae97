"""Facts about this machine: memory, disk, limits, devices. Reads only."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path

_MIB = 1024 * 1024
_CGROUP = Path("/sys/fs/cgroup")
_CAP_IPC_LOCK = 14


def parse_meminfo(text: str, field: str) -> int:
    """Bytes of one field of /proc/meminfo; 0 when it is not there."""
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return int(rest.split()[0]) * 1024
    return 0


def parse_limit(text: str) -> int | None:
    """A cgroup limit in bytes; None for `max`."""
    return int(text) if text.strip().isdigit() else None


def read_memory_limit() -> int | None:
    """The memory limit of our container in bytes; None when there is none."""
    try:
        return parse_limit((_CGROUP / "memory.max").read_text())
    except OSError:
        return None


def total_memory_bytes() -> int:
    """Memory that this machine (or container) has."""
    total = parse_meminfo(Path("/proc/meminfo").read_text(), "MemTotal")
    return min(total, read_memory_limit() or total)


def available_memory_bytes() -> int:
    """Memory that can be had now without swapping."""
    free = parse_meminfo(Path("/proc/meminfo").read_text(), "MemAvailable")
    limit = read_memory_limit()
    if limit is None:
        return free
    try:
        used = int((_CGROUP / "memory.current").read_text())
    except OSError:
        used = 0
    return min(free, max(0, limit - used))


def suggest_dram_bytes(total_bytes: int, *, nodes: int) -> int:
    """The DRAM tier of one node when the user names none: an eighth of the memory (all nodes
    together at most a half), 256 MiB to 64 GiB."""
    share = total_bytes // max(8, 2 * nodes) // (64 * _MIB) * (64 * _MIB)
    return max(256 * _MIB, min(64 * 1024 * _MIB, share))


def open_files_limit() -> tuple[int, int]:
    """Soft and hard limit of open files of this process."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_open_files_limit() -> None:
    """Raise our soft limit of open files to the hard one; children inherit it."""
    _, hard = open_files_limit()
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def lockable_bytes() -> int:
    """How much memory a mover of ours may lock (it raises its soft limit to the hard one); -1 is
    any amount: no limit holds for who has CAP_IPC_LOCK, unless a user namespace gave it."""
    if _has_capability(_CAP_IPC_LOCK):
        return resource.RLIM_INFINITY
    return resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]


def _has_capability(number: int) -> bool:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        is_initial = Path("/proc/self/uid_map").read_text().split() == ["0", "0", str(2**32 - 1)]
    except OSError:
        return False
    held = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    return is_initial and bool(held >> number & 1)


def free_disk_bytes(path: Path) -> int:
    """Free bytes of the file system that holds `path` or its nearest existing parent."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def rdma_devices() -> tuple[str, ...]:
    """Names of the RDMA devices that the kernel knows."""
    try:
        return tuple(sorted(os.listdir("/sys/class/infiniband")))
    except OSError:
        return ()


def nvidia_devices() -> tuple[str, ...]:
    """Device files of NVIDIA GPUs (`/dev/nvidia0`, ...)."""
    names = (path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    return tuple(sorted(f"/dev/{name}" for name in names))


def supports_memfd() -> bool:
    """Whether anonymous shared memory can be made here (some sandboxes forbid it)."""
    try:
        os.close(os.memfd_create("tensorcast-probe", os.MFD_CLOEXEC))
    except OSError:
        return False
    return True


def format_bytes(size_bytes: int) -> str:
    """A size for people: `1.5 GiB`, `12 MiB`."""
    if size_bytes >= 1024 * _MIB:
        return f"{size_bytes / (1024 * _MIB):.1f} GiB"
    if size_bytes >= _MIB:
        return f"{size_bytes // _MIB} MiB"
    return f"{size_bytes // 1024} KiB" if size_bytes >= 1024 else f"{size_bytes} bytes"
