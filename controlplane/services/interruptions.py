"""Policies that do not come back, in a control plane that runs.

A decision that takes longer than its limit is interrupted by a signal, in the thread that takes it:
`Overdue` is raised wherever the policy is, also where it sleeps or waits, and the policy is stopped
like one that raises. One that catches this too is interrupted again. If it is still there after
`LIMITS_MAX` limits, the thread that looks on says in the log that the policy is stopped, over a
connection of its own, and ends the process: its supervisor starts it anew, without this policy.

Only code that never lets go of the interpreter (an endless loop in C) is beyond this: nothing in
its process runs any more.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Final

from tensorcast.controlplane.core.catalog import BUILT_IN, Catalog
from tensorcast.controlplane.core.guard import SLOW, Overdue, stop
from tensorcast.controlplane.services.watchdog import Pending, Watchdog
from tensorcast.schema.commands import StopPolicy
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.ids import EventId

SIGNAL: Final = signal.SIGUSR2
LIMITS_MAX: Final = 3
STUCK: Final = 75
"""The exit status of a control plane that a policy held up."""
LAST_WORDS_S: Final = 10.0
LastWords = Callable[[StopPolicy, EventId | None], Awaitable[None]]
"""Puts the end of a policy into the log, from another thread than that of all else; the cause is
the event that it did not answer."""
_logger = logging.getLogger(__name__)


def interrupt_policies(catalog: Catalog, limit_s: float, last_words: LastWords) -> Catalog:
    """The same policies; those that are not built in have `limit_s` seconds for a decision. To be
    called once in a process, in its main thread, which takes all decisions."""
    if all(kind.origin == BUILT_IN for kind in catalog.kinds.values()):
        return catalog
    return _Interrupter(limit_s, last_words).watch(catalog)


class _Interrupter:
    def __init__(self, limit_s: float, last_words: LastWords) -> None:
        self._dog = Watchdog(limit_s, self._bark)
        self._last_words = last_words
        self._overdue: tuple[Pending, str] | None = None
        self._thread_id = threading.get_ident()

    def watch(self, catalog: Catalog) -> Catalog:
        signal.signal(SIGNAL, self._interrupt)
        self._dog.start()
        return self._dog.watch(catalog, built_in=False)

    def _bark(self, pending: Pending, times: int, told: str) -> None:
        if times > LIMITS_MAX:
            self._end(pending, told)
        self._overdue = (pending, told)
        signal.pthread_kill(self._thread_id, SIGNAL)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """In the thread of the policy: unless it has come back just now."""
        overdue = self._overdue
        if overdue is not None and self._dog.pending is overdue[0]:
            raise Overdue(overdue[1])

    def _end(self, pending: Pending, told: str) -> None:
        detail = f"{told} It could not be interrupted: the control plane was started anew."
        _logger.critical("%s", detail)
        command = stop(pending.policy, SLOW, detail)
        cause = pending.recorded.id if pending.recorded is not None else None

        async def say() -> None:
            async with asyncio.timeout(LAST_WORDS_S):
                await self._last_words(command, cause)

        try:
            asyncio.run(say())
        except (TensorCastError, OSError, TimeoutError) as error:
            _logger.error("that could not be put into the log: %s", error)
        finally:
            os._exit(STUCK)
