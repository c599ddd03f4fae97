"""Waits for a control plane that is away, and says whom a program waits for, once it has waited
long enough to wonder."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from tensorcast.client.position import Position
from tensorcast.schema.errors import Timeout, Unavailable

T = TypeVar("T")
AWAY_S = 30.0
"""So long engines and trainers wait for a control plane that is away."""
AGAIN_S = 0.2
SILENCE_S = 2.0
"""An answer that takes longer is told to be waited for."""
_logger = logging.getLogger(__name__)


class Patience:
    """Tells, by a warning of the log, that somebody does not answer: once for each silence."""

    def __init__(self, whom: str) -> None:
        self._whom = whom
        self._is_told = False

    async def wait(self, answer: Awaitable[T], after_s: float = SILENCE_S) -> T:
        """The answer; `after_s` tells how long it may take before anybody wonders. Raises what it
        raises."""
        handle = asyncio.get_running_loop().call_later(after_s, self._tell, after_s)
        try:
            found = await answer
        finally:
            handle.cancel()
        self._is_told = False
        return found

    def _tell(self, after_s: float) -> None:
        if not self._is_told:
            self._is_told = True
            _logger.warning("Waiting for %s, which has not answered for %g s.", self._whom, after_s)


class Plane(Protocol):
    """What `outlast` needs of a `ControlPlane`."""

    @property
    def cluster(self) -> str: ...

    @property
    def position(self) -> Position: ...

    async def connect(self) -> object: ...


async def outlast(plane: Plane, ask: Callable[[], Awaitable[T]], limit_s: float = AWAY_S) -> T:
    """The answer to what may be asked again, though the control plane is away, for `limit_s`
    seconds. Raises what `ask` raises; Unavailable at once when nothing was ever reached."""
    if not plane.position.seq:
        await plane.connect()
    deadline = asyncio.get_running_loop().time() + limit_s
    patience = Patience(f"the control plane of cluster {plane.cluster}")
    return await patience.wait(_ask_until(ask, deadline))


async def _ask_until(ask: Callable[[], Awaitable[T]], deadline: float) -> T:
    while True:
        try:
            return await ask()
        except (Unavailable, Timeout):
            if asyncio.get_running_loop().time() + AGAIN_S >= deadline:
                raise
        await asyncio.sleep(AGAIN_S)
