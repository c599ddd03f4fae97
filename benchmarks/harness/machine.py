"""What machine it is, without saying which one: no names of hosts, no paths."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def describe() -> dict[str, str]:
    """Processor, memory, kernel and the settings that matter, as text by name."""
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "processor": read_field("/proc/cpuinfo", "model name") or platform.machine(),
        "memory": f"{memory_bytes('MemTotal') / 2**30:.0f} GiB",
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
        "congestion control": read_text("/proc/sys/net/ipv4/tcp_congestion_control"),
        "huge pages": chosen(read_text("/sys/kernel/mm/transparent_hugepage/enabled")),
        "huge pages of shared memory": chosen(
            read_text("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
        ),
    }


def read_text(path: str) -> str:
    """A small file of the kernel; "" when it is not there."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def read_field(path: str, name: str) -> str:
    """The first `name : value` of a file; "" when it has none."""
    for line in read_text(path).splitlines():
        found, _, value = line.partition(":")
        if found.strip() == name:
            return value.strip()
    return ""


def chosen(text: str) -> str:
    """What stands in brackets in a list of choices."""
    return text.partition("[")[2].partition("]")[0]


def memory_bytes(field: str) -> int:
    """A field of /proc/meminfo, for example MemAvailable, in bytes."""
    return int((read_field("/proc/meminfo", field) or "0").split()[0]) * 1024


def load() -> float:
    """How many processes wanted a core, on the average of the last minute."""
    return os.getloadavg()[0]


def busy_seconds() -> float:
    """What all processes together used of the cores since the machine started."""
    fields = read_text("/proc/stat").splitlines()[0].split()[1:]
    user, nice, system, _, _, irq, softirq = (int(field) for field in fields[:7])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
