"""Says whom a program waits for, once it has waited long enough to wonder."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")
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
