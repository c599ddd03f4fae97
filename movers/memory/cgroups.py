"""Whether two processes share a limit of memory. Shared memory counts as that of the process that
touches it first: an application in a container of its own must not pay for what its node keeps."""

from __future__ import annotations

from pathlib import Path

_MEMORY = "memory"


def shares_memory_limit(pid: int) -> bool:
    """Whether the process is in the memory control group of this one. False when that cannot be
    told, as for a process of a namespace that is not seen from here."""
    try:
        other = Path(f"/proc/{pid}/cgroup").read_text()
        own = Path("/proc/self/cgroup").read_text()
    except OSError:
        return False
    return memory_group(other) == memory_group(own)


def memory_group(text: str) -> str:
    """The control group that counts memory, of a `/proc/PID/cgroup`: that of the memory controller
    where it has a hierarchy of its own (version 1), else that of the unified one."""
    unified = ""
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if _MEMORY in controllers.split(","):
            return path
        if not controllers:
            unified = path
    return unified
