"""Whether this process hears what is said: what it says itself comes back through the server.

A connection that is open proves nothing: a server that is suspended, or a network that swallows,
leaves it open.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError


class Echo:
    """Talks to itself. Use it as a context."""

    def __init__(self, nats: Client) -> None:
        self._nats = nats
        self._subject = nats.new_inbox()
        self._subscription: Subscription | None = None
        self._said = 0
        self._returned = asyncio.Event()

    async def __aenter__(self) -> Echo:
        self._subscription = await self._nats.subscribe(self._subject, cb=self._on_return)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._subscription is not None and self._nats.is_connected:
            await self._subscription.unsubscribe()

    async def returns(self, timeout_s: float) -> bool:
        """Whether a word comes back in time."""
        self._said += 1
        self._returned.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._nats.publish(self._subject, str(self._said).encode())
                await self._returned.wait()
        except (NatsError, OSError):  # TimeoutError is an OSError
            return False
        return True

    async def _on_return(self, message: Msg) -> None:
        if message.data == str(self._said).encode():
            self._returned.set()
