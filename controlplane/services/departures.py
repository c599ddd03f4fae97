"""Engines that have stopped hold nothing: what was told of their blocks goes after a while.

Any number may run: the same clearing has the same id. An engine that somebody still watches is left
alone, whatever the log says of it.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta
from typing import Final

from tensorcast.controlplane.services.api_desk import Desk
from tensorcast.controlplane.services.api_engine_blocks import has_stopped, last_heard
from tensorcast.log.identity import now
from tensorcast.schema.block_events import BlockDraft
from tensorcast.schema.engine_blocks import EngineBlocksCleared
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.ids import EngineId, derive_event_id

ACTOR: Final = "controlplane"
LOOK_S: Final = 60.0
FORGET_S: Final = 600.0
REASON: Final = "The engine has stopped."
_logger = logging.getLogger(__name__)


async def run_departures(desk: Desk) -> None:
    """Looks for ever. `desk` is run by the caller."""
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            await clear_departed(desk, now())
        except TensorCastError as error:  # the next look tries again
            _logger.info("blocks of engines that have stopped are not cleared yet: %s", error)


async def clear_departed(desk: Desk, at: datetime) -> None:
    """One look. Raises Unavailable while Postgres or the KV log is away."""
    view = desk.follower.view
    for name, (told, _) in (await desk.blocks.engine_views()).items():
        engine = EngineId(name)
        is_silent = at - last_heard(view, name, told) > timedelta(seconds=FORGET_S)
        if not (told.blocks and is_silent and has_stopped(view, engine)):
            continue
        event = EngineBlocksCleared(
            engine=engine, life=told.life, batch=told.batch, is_exact=False, reason=REASON
        )
        once = derive_event_id(f"engine_blocks/{engine}/{told.life}", REASON, told.seq)
        await desk.block_log.append([BlockDraft(id=once, at=at, actor=ACTOR, event=event)])
        _logger.info("the blocks of %s, which has stopped, are cleared", engine)
