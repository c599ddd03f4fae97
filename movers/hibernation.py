"""What a mover does with its memory when it stops in good order: it writes it to the disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tensorcast.movers.memory.hibernate import write_image
from tensorcast.movers.residents import Phase, Resident, Residents
from tensorcast.movers.threads import in_thread
from tensorcast.schema.errors import TensorCastError

STATUS_S: Final = 2.0

_logger = logging.getLogger(__name__)


async def hibernate(residents: Residents, folder: Path, status: Callable[[str], None]) -> None:
    """Writes an image of every ready resident that is not on this node's disk anyway. One that
    cannot be written is logged and lost; the others are still written."""
    wanted = [
        resident
        for resident in residents.all()
        if resident.phase is Phase.READY and not residents.is_on_disk(resident.id)
    ]
    for count, resident in enumerate(wanted, 1):
        progress = f"writing {count} of {len(wanted)} artifacts from memory to disk"
        try:
            with residents.borrow(resident):
                await _write_patiently(folder, resident, status, progress)
        except* TensorCastError as group:
            _logger.error("artifact %s is not kept: %s", resident.id, group.exceptions[0])


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
