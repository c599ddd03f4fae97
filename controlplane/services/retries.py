"""Failed operations are tried again after a while, or cancelled when nobody needs them any more.

Which retries are pending follows from the log: a scheduler that is started anew finds them all
again, in the view that it begins with and as it folds what came after.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from tensorcast.controlplane.core.decisions import is_right
from tensorcast.controlplane.core.view import next_try
from tensorcast.log.execute import Appender, execute
from tensorcast.log.follower import Follower
from tensorcast.log.port import Log
from tensorcast.schema.aggregates.operation import OperationStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.codec import decode
from tensorcast.schema.commands import CancelOperation, Command, RetryOperation
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import Conflict, TensorCastError
from tensorcast.schema.events import (
    OperationCancelled,
    OperationFailed,
    OperationRetried,
)
from tensorcast.schema.ids import EventId, OperationId

ACTOR = "policy:retry"
PAUSE_S = 0.5
_logger = logging.getLogger(__name__)


class Pending(msgspec.Struct, frozen=True):
    """A try to come: its number, when it is due on the clock of the loop, and the event of the
    failure."""

    attempt: int
    due_s: float
    cause: EventId


class Retries:
    """The tries to come. `note` keeps them, `run` carries them out."""

    def __init__(self, writer: Appender, follower: Follower) -> None:
        self.pending: dict[OperationId, Pending] = {}
        self._writer = writer
        self._follower = follower
        self._changed = asyncio.Event()

    async def recall(self, view: ClusterView, log: Log) -> None:
        """Takes up the failures that a view shows, as if each had been noted. Raises
        Unavailable."""
        for names in view.unsettled_by_artifact.values():
            for name in names:
                failed = view.operations[name]
                if next_try(failed) is None:
                    continue
                stored = await log.read_one(failed.version)
                if stored is not None:
                    self._take_up(view, name, decode(stored.payload, stored.seq).id)

    def note(self, view: ClusterView, recorded: Recorded) -> None:
        """Takes up a failure that a retry can help, and drops what has been settled."""
        match recorded.event:
            case OperationFailed(operation=name):
                self._take_up(view, name, recorded.id)
            case OperationRetried(operation=name) | OperationCancelled(operation=name):
                self.pending.pop(name, None)

    def _take_up(self, view: ClusterView, name: OperationId, cause: EventId) -> None:
        operation = view.operations.get(name)
        again = next_try(operation) if operation else None
        if operation is not None and again is not None:
            due_s = asyncio.get_running_loop().time() + again.delay_s
            self.pending[name] = Pending(operation.attempt + 1, due_s, cause)
            self._changed.set()

    async def run(self) -> None:
        """Carries out what is due, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            for name, due in list(self.pending.items()):
                if due.due_s <= loop.time() and self.pending.get(name) == due:
                    await self._carry_out(name, due)
            nearest_s = min((p.due_s for p in self.pending.values()), default=None)
            delay_s = None if nearest_s is None else max(0.0, nearest_s - loop.time())
            await _wait(self._changed, delay_s)

    async def _carry_out(self, name: OperationId, due: Pending) -> None:
        try:
            command = decide_retry(self._follower.view, name, due.attempt)
            if command is not None:
                await execute(
                    self._writer,
                    self._follower,
                    [command],
                    actor=ACTOR,
                    cause=due.cause,
                    derived=True,
                )
        except Conflict as error:
            _logger.info("operation %s is not retried: %s", name, error)
        except TensorCastError as error:
            _logger.warning("the retry of operation %s waits: %s", name, error)
            due_s = asyncio.get_running_loop().time() + PAUSE_S
            self.pending[name] = Pending(due.attempt, due_s, due.cause)
            return
        if self.pending.get(name) == due:
            del self.pending[name]


def decide_retry(view: ClusterView, name: OperationId, attempt: int) -> Command | None:
    """What becomes of a failed operation when its next try is due: it is tried again, or cancelled
    when it would be wrong or needless by now; nothing when somebody was faster. Pure."""
    operation = view.operations.get(name)
    if operation is None or operation.status is not OperationStatus.FAILED:
        return None
    if operation.attempt + 1 != attempt:
        return None
    again = RetryOperation(operation=name, attempt=attempt)
    if is_right(view, again):
        return again
    return CancelOperation(operation=name, reason="nobody needs it any more")


async def _wait(changed: asyncio.Event, timeout_s: float | None) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await changed.wait()
    except TimeoutError:
        return
