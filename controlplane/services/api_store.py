"""Verbs about the store itself: what is parked in it."""

from __future__ import annotations

import asyncio
from typing import Final

from tensorcast.controlplane.services.api_desk import Desk
from tensorcast.schema.api_store import DeadPage, DeadQuery, RetryDead
from tensorcast.schema.errors import Unavailable

RETRY_S_MAX: Final = 60.0
_POLL_S: Final = 0.1


async def list_dead(desk: Desk, request: DeadQuery) -> DeadPage:
    """The events that a projection could not take."""
    return await desk.history.find_letters(request)


async def retry_dead(desk: Desk, request: RetryDead) -> DeadPage:
    """Has the writers try all of them again; what still waits. Raises Unavailable when no writer
    does."""
    await desk.history.want_retry()
    deadline = asyncio.get_running_loop().time() + RETRY_S_MAX
    while await desk.history.count_wanted():
        if asyncio.get_running_loop().time() > deadline:
            raise Unavailable(
                f"Nobody has tried the parked events again in {RETRY_S_MAX:g} s.",
                hint="Does the persister run? `tcctl status` says.",
            )
        await asyncio.sleep(_POLL_S)
    return await desk.history.find_letters(DeadQuery())
