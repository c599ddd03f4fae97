"""What a supervisor that died without a `down` has left behind, and how it is cleared away."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Final

import msgspec

from tensorcast.deploy.home import Layout
from tensorcast.deploy.processes import Child, end, wait_gone

FORMER_TIMEOUT_S: Final = 60.0


def clear_former(layout: Layout, progress: Callable[[str], None]) -> None:
    """Wait for what a dead supervisor has left behind to end, and make it end."""
    left = wait_gone(read_children(layout), timeout_s=FORMER_TIMEOUT_S, progress=progress)
    for child in left:
        progress(f"{child.name} of the former run (pid {child.pid}) does not end: killing it")
        end(child, signal.SIGKILL)
    wait_gone(left, timeout_s=5.0)
    layout.children.unlink(missing_ok=True)


def died_badly(layout: Layout) -> bool:
    """Whether the last supervisor has ended without being told to. Only when none runs."""
    return read_supervisor_pid(layout) != 0


def read_supervisor_pid(layout: Layout) -> int:
    """The pid of the last supervisor; 0 when there was none or it has ended well."""
    try:
        return int(layout.supervisor_lock.read_text().strip() or 0)
    except (FileNotFoundError, ValueError):
        return 0


def read_children(layout: Layout) -> tuple[Child, ...]:
    """The processes that the last supervisor has started."""
    try:
        return msgspec.json.decode(layout.children.read_bytes(), type=tuple[Child, ...])
    except (FileNotFoundError, msgspec.DecodeError):
        return ()
