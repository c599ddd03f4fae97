"""Trees of processes: who belongs to one, what it has used of the CPU, how it is stopped.

Standard library only; Linux.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_SCHEDULER_CLOCK = 2  # CPUCLOCK_SCHED in the kernel's posix-timers.h


def find_tree(root: int) -> list[int]:
    """The process and all its descendants, parents first; [] when it is gone."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                children.setdefault(int(_read_stat(int(name))[1]), []).append(int(name))
    found = [root] if os.path.exists(f"/proc/{root}") else []
    for pid in found:
        found += children.get(pid, [])
    return found


def _read_stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may hold anything."""
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()


def cpu_seconds(pids: list[int]) -> float:
    """What these processes and their children that have ended used so far, in user and kernel."""
    return sum(_cpu_of(pid) for pid in pids)


def _cpu_of(pid: int) -> float:
    try:
        fields = _read_stat(pid)
        ended = (int(fields[13]) + int(fields[14])) * TICK_S
        # The clock of a process counts its live and ended threads in nanoseconds, not in ticks.
        return ended + time.clock_gettime(((~pid) << 3) | _SCHEDULER_CLOCK)
    except (OSError, IndexError):
        return 0.0


def tree_cpu_seconds(root: int) -> float:
    """What a whole tree has used so far; what ended is counted by its parent."""
    return cpu_seconds(find_tree(root))


def memory_bytes(pid: int, field: str = "VmRSS") -> int:
    """One field of /proc/PID/status, for example RssAnon, in bytes; 0 when it is not there."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as lines:
        for line in lines:
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return 0


def signal_tree(root: int, number: int) -> None:
    """Sends a signal to the whole tree."""
    for pid in find_tree(root):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_tree(root: int) -> None:
    """Ends a whole tree at once; what is started meanwhile, too."""
    for _ in range(3):
        signal_tree(root, signal.SIGKILL)
        if len(find_tree(root)) <= 1:
            return
