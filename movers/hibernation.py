"""What a mover does with its memory when it stops in good order: it writes it to the disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tensorcast.log.follower import Follower
from tensorcast.movers.core.holdings import is_stored_elsewhere
from tensorcast.movers.memory.hibernate import write_image
from tensorcast.movers.replicas import lose
from tensorcast.movers.reports import Life, Reporter
from tensorcast.movers.residents import Phase, Resident, Residents
from tensorcast.movers.threads import in_thread
from tensorcast.schema.errors import TensorCastError

STATUS_S: Final = 2.0

_logger = logging.getLogger(__name__)


class Hibernation:
    """Knows what of the memory is saved nowhere, and writes images of it below `folder`."""

    def __init__(
        self,
        residents: Residents,
        folder: Path,
        reporter: Reporter,
        follower: Follower,
        life: Life,
    ) -> None:
        self._residents = residents
        self._folder = folder
        self._reporter = reporter
        self._follower = follower
        self._life = life

    def unsaved_bytes(self) -> int:
        """The bytes that a stop must write so that nothing is lost."""
        return sum(r.manifest.size_bytes for r in self._wanted() if not self._is_safe(r))

    def _wanted(self) -> list[Resident]:
        """Every ready resident that is not on this node's disk anyway; first those that no other
        disk has either."""
        ready = [
            resident
            for resident in self._residents.all()
            if resident.phase is Phase.READY and not self._residents.is_on_disk(resident.id)
        ]
        return sorted(ready, key=self._is_safe)

    def _is_safe(self, resident: Resident) -> bool:
        return is_stored_elsewhere(self._follower.view, resident.id, self._life.node)

    async def write(self, status: Callable[[str], None]) -> None:
        """Writes the images. An artifact that cannot be written is reported lost; the others are
        still written. Replicas that are still filling are not kept: they are pulled again."""
        wanted = self._wanted()
        for count, resident in enumerate(wanted, 1):
            progress = f"writing {count} of {len(wanted)} artifacts from memory to disk"
            try:
                with self._residents.borrow(resident):
                    await _write_patiently(self._folder, resident, status, progress)
            except* TensorCastError as group:
                await self._give_up(resident, group.exceptions[0], status)

    async def _give_up(
        self, resident: Resident, error: BaseException, status: Callable[[str], None]
    ) -> None:
        sentence = f"Artifact {resident.id} is not kept, for its image cannot be written: {error}"
        _logger.error("%s", sentence)
        status(sentence)
        await self._reporter.report([lose(resident.replica, sentence, self._life)], None)


async def _write_patiently(
    folder: Path, resident: Resident, status: Callable[[str], None], progress: str
) -> None:
    """A supervisor gives up a process that says nothing for long."""
    async with asyncio.TaskGroup() as tasks:
        telling = tasks.create_task(_tell(status, progress))
        try:
            await in_thread(_write, folder, resident)
        finally:
            telling.cancel()


async def _tell(status: Callable[[str], None], progress: str) -> None:
    while True:
        status(progress)
        await asyncio.sleep(STATUS_S)


def _write(folder: Path, resident: Resident) -> None:
    write_image(folder, resident.id, resident.manifest, resident.segment.memory)
