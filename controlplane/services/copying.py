"""The loop around every copier of a log into Postgres: it never ends and never gives up.

A copier has the position in the transaction that writes, so each try goes on where the last one
stood, whatever ended it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import asyncpg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from tensorcast.controlplane.services.progress import Progress
from tensorcast.controlplane.store.engine import brief, connecting, make_engine
from tensorcast.schema.errors import Conflict, Corrupt, TensorCastError

_PAUSE_S_FIRST: Final = 0.1
_PAUSE_S_MAX: Final = 2.0
_HOPELESS_PAUSE_S: Final = 10.0
_logger = logging.getLogger(__name__)

Copy = Callable[[AsyncConnection], Awaitable[None]]
"""One life of a copier: from getting its lock to the first trouble."""


async def keep_copying(name: str, postgres_url: str, progress: Progress, copy: Copy) -> None:
    """Calls `copy` with a connection, for ever. After trouble it waits, longer each time that
    nothing was copied meanwhile, and longest when only somebody can mend it. A Corrupt stays in
    `progress.refusal` until `copy` takes it away."""
    engine = make_engine(postgres_url, name=f"tensorcast {name}", pooled=False)
    pause_s = _PAUSE_S_FIRST
    try:
        while True:
            before = progress.committed_seq
            try:
                async with connecting(engine) as connection:
                    await copy(connection)
            except TensorCastError as error:
                _report(name, progress, error)
                is_hopeful = error.retryable or isinstance(error, Conflict)
                if isinstance(error, Corrupt):
                    progress.refusal, is_hopeful = error, False
                if not is_hopeful:
                    pause_s = _HOPELESS_PAUSE_S
            except (DBAPIError, asyncpg.PostgresError) as error:
                trouble = TensorCastError(f"Postgres refuses to write: {brief(error)}.")
                _report(name, progress, trouble)
                pause_s = _HOPELESS_PAUSE_S
            if progress.committed_seq > before:
                pause_s = _PAUSE_S_FIRST
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
    finally:
        await engine.dispose()


def _report(name: str, progress: Progress, error: TensorCastError) -> None:
    if progress.problem != str(error):
        _logger.warning("%s: %s", name, error)
    progress.problem = str(error)
    progress.is_active = False
