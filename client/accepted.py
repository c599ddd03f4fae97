"""A put that the mover has accepted: it is safe, and its id is known once it is sealed."""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from typing import Protocol

from tensorcast.client.naming import check_timeout
from tensorcast.client.position import Position
from tensorcast.client.socket import MoverSockets
from tensorcast.schema.errors import TensorCastError, Timeout, Unavailable
from tensorcast.schema.socket import AwaitPut, PutSealed

ASK_S = 60.0
OUTAGE_S_MAX = 60.0
RETRY_S = 0.2

_logger = logging.getLogger(__name__)


class _Client(Protocol):
    @property
    def mover(self) -> MoverSockets: ...

    @property
    def position(self) -> Position: ...


class Accepted:
    """The seal of an accepted put, followed in the background. For one event loop; after a fork,
    or in another loop, it is asked for anew."""

    def __init__(self, client: _Client, ticket: str) -> None:
        self._client = client
        self._ticket = ticket
        self._news = _News()
        weakref.finalize(self, self._news.tell)  # also at the end of the process
        self._following = self._follow()

    @property
    def sealed(self) -> PutSealed | None:
        """What it became; None as long as it is not sealed, and when that failed."""
        found = self._following
        return found.result() if found.done() and _has_succeeded(found) else None

    async def wait(self, timeout: float | None = None) -> PutSealed:
        """Waits for the seal. Raises what it failed with, Timeout, Unavailable."""
        check_timeout(timeout)
        if self._following.get_loop() is not asyncio.get_running_loop():
            self._following = self._follow()
        try:
            async with asyncio.timeout(timeout):
                return await self._hear()
        except TimeoutError:
            raise Timeout(
                f"The put is not sealed in {timeout} s.", hint="It goes on: wait again."
            ) from None

    async def _hear(self) -> PutSealed:
        try:
            return await asyncio.shield(self._following)
        except TensorCastError:
            self._news.is_heard = True
            raise

    def _follow(self) -> asyncio.Task[PutSealed]:
        following = asyncio.ensure_future(self._ask())
        following.add_done_callback(self._news.note)
        done = asyncio.get_running_loop().create_future()
        following.add_done_callback(lambda _: None if done.done() else done.set_result(None))
        self._client.position.expect(done)
        return following

    async def _ask(self) -> PutSealed:
        """A mover that is killed goes on with it in its next life."""
        clock = asyncio.get_running_loop().time
        heard_at = clock()
        request = AwaitPut(ticket=self._ticket)
        while True:
            asked_at = clock()
            try:
                answer, _ = await self._client.mover.ask(request, PutSealed, timeout=ASK_S)
            except Timeout:
                heard_at = asked_at  # it is there, and works
            except Unavailable:
                if clock() - heard_at > OUTAGE_S_MAX:
                    raise
            else:
                self._client.position.advance(answer.seq)
                return answer
            await asyncio.sleep(RETRY_S)


def _has_succeeded(following: asyncio.Task[PutSealed]) -> bool:
    return not following.cancelled() and following.exception() is None


class _News:
    """How a put failed. Who never waits for it shall hear of it all the same, once: when nobody can
    wait any more."""

    def __init__(self) -> None:
        self.failure = ""  # text: the error itself would keep the put alive
        self.is_heard = False
        self._pid = os.getpid()

    def note(self, following: asyncio.Task[PutSealed]) -> None:
        """Takes the end of the put."""
        error = None if following.cancelled() else following.exception()
        if isinstance(error, TensorCastError):
            self.failure = str(error)

    def tell(self) -> None:
        """Logs the failure that nobody was told; not in a child that was forked."""
        if self.failure and not self.is_heard and os.getpid() == self._pid:
            _logger.warning("A put that was accepted failed: %s", self.failure)
