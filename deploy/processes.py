"""What /proc says about a process: is the one that we started still the one with this pid?

A pid alone is no identity: it is used again after the process is gone, and a zombie still has it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

POLL_S: Final = 0.02


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """A process that we started: `started` is its start time in clock ticks since `boot`."""

    name: str
    pid: int
    started: int
    boot: str


def read_boot_id() -> str:
    """The id of this boot of the machine ("" where the kernel does not tell)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def parse_stat(text: str) -> tuple[str, int]:
    """State letter and start time of a line of /proc/PID/stat."""
    # The command name may hold spaces and brackets: fields are counted from its last bracket.
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[19])


def read_stat(pid: int) -> tuple[str, int] | None:
    """State letter and start time of a process; None when there is none."""
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_text())
    except (OSError, ValueError):
        return None


def identify(name: str, pid: int) -> Child:
    """The identity of a process that was just started."""
    stat = read_stat(pid)
    return Child(name=name, pid=pid, started=stat[1] if stat else 0, boot=read_boot_id())


def is_alive(child: Child) -> bool:
    """Whether this very process still runs (a zombie does not)."""
    stat = read_stat(child.pid)
    if stat is None or child.boot != read_boot_id():
        return False
    return stat[0] not in "ZX" and stat[1] == child.started


def wait_gone(
    children: Iterable[Child],
    *,
    timeout_s: float,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[Child, ...]:
    """Wait until the processes have ended; returns those that have not in time."""
    deadline = time.monotonic() + timeout_s
    left = tuple(child for child in children if is_alive(child))
    if left:
        progress(f"waiting for {', '.join(child.name for child in left)} to end")
    while left and time.monotonic() < deadline:
        time.sleep(POLL_S)
        left = tuple(child for child in left if is_alive(child))
    return left


def end(child: Child, number: signal.Signals) -> None:
    """Send a signal to this very process; nothing happens when it is gone."""
    if not is_alive(child):
        return
    try:
        os.kill(child.pid, number)
    except ProcessLookupError:
        return
