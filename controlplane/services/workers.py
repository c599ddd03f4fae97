"""Processes that work on the database for minutes, so that nobody here waits for them."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL
from typing import Final

from tensorcast.controlplane.store.jobs import ARCHIVE, REBUILD

MODULES: Final = {
    REBUILD: "tensorcast.controlplane.rebuilder",
    ARCHIVE: "tensorcast.controlplane.archiver",
}
"""What does the work of each name."""


class Workers:
    """Starts them."""

    def __init__(self, postgres_url: str) -> None:
        self._environ = {**os.environ, "TENSORCAST_POSTGRES_URL": postgres_url}
        self._waiting: set[asyncio.Task[int]] = set()

    async def start(self, name: str, *arguments: str) -> asyncio.Task[int]:
        """A process at the work of that name; its exit code. It goes on when this one ends."""
        command = (sys.executable, "-m", MODULES[name], *arguments)
        process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, env=self._environ)
        waiting = asyncio.create_task(process.wait())
        self._waiting.add(waiting)
        waiting.add_done_callback(self._waiting.discard)
        return waiting
