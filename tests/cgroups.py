"""Control groups with a limit of memory, for tests; skipped clearly where none can be made."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tensorcast.movers.memory.limits import CGROUPS, parse_fields


class Group:
    """A group below ours (version 1) or beside it (version 2), with a memory controller."""

    def __init__(self, folder: Path, *, is_v2: bool) -> None:
        self._folder = folder
        self._limit = "memory.max" if is_v2 else "memory.limit_in_bytes"
        self._usage = "memory.current" if is_v2 else "memory.usage_in_bytes"
        self._events = "memory.events" if is_v2 else "memory.oom_control"

    def take(self, pid: int) -> None:
        """What the process takes from now on counts in this group."""
        (self._folder / "cgroup.procs").write_text(str(pid))

    def limit(self, size_bytes: int) -> None:
        (self._folder / self._limit).write_text(str(size_bytes))

    def usage(self) -> int:
        return int((self._folder / self._usage).read_text())

    def kills(self) -> int:
        """How many processes the kernel has killed for want of memory."""
        return parse_fields((self._folder / self._events).read_text()).get("oom_kill", 0)

    def remove(self) -> None:
        """When its processes have ended."""
        for _ in range(100):
            with suppress(OSError):
                self._folder.rmdir()
                return
            time.sleep(0.05)


@contextmanager
def memory_group() -> Iterator[Group]:
    """A new group without a limit; skips the test when this user can make none."""
    name = f"tensorcast-test-{os.getpid()}"
    for folder, is_v2 in _places():
        try:
            (folder / name).mkdir()
        except OSError:
            continue
        group = Group(folder / name, is_v2=is_v2)
        try:
            yield group
        finally:
            group.remove()
        return
    pytest.skip("no control group with a limit of memory can be made here (needs root and cgroups)")


def _places() -> Iterator[tuple[Path, bool]]:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            beside = (CGROUPS / path.lstrip("/")).parent if path != "/" else CGROUPS
            control = beside / "cgroup.subtree_control"
            if control.exists() and "memory" in control.read_text().split():
                yield beside, True
        elif "memory" in controllers.split(","):
            yield CGROUPS / "memory" / path.lstrip("/"), False
