"""Messages of a JetStream consumer, pulled: what stands behind readers of signals.

The server keeps where a durable reader is, hands each message out until it is acknowledged, and
sends only what was asked for. A request for more is always under way while the reader waits (the
next one is sent when half of a batch has come), so a signal arrives as soon as it is in the log.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec

from tensorcast.schema.errors import (
    Conflict,
    InvalidArgument,
    NotFound,
    TensorCastError,
    Unavailable,
)

if TYPE_CHECKING:
    from nats.aio.client import Client as Nats
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

REQUEST_S: Final = 30.0
HEARTBEAT_S: Final = 2.0
SILENCE_S_MAX: Final = 2.5 * HEARTBEAT_S
LOOK_S: Final = 0.25
API_S_MAX: Final = 5.0
NANOSECONDS: Final = 1_000_000_000
GIVE_BACK_S_MAX: Final = 2.0
_ACK: Final = "$JS.ACK."
_NO_STREAM: Final = 10059
_NO_CONSUMER: Final = 10014
_EXISTS: Final = frozenset({10105, 10148})
_ENDED: Final = frozenset({"404", "408", "409", "503"})
_logger = logging.getLogger(__name__)


class ConsumerConfig(msgspec.Struct, frozen=True):
    """What is of interest of how a consumer was made."""

    filter_subject: str = ""
    description: str = ""
    ack_wait: int = 0
    durable_name: str = ""


class _Delivered(msgspec.Struct, frozen=True):
    stream_seq: int


class ConsumerInfo(msgspec.Struct, frozen=True):
    """What the server says of a consumer: `num_pending` messages come, `num_ack_pending` are handed
    out; `delivered` and `ack_floor` are positions in the log."""

    name: str
    created: str
    config: ConsumerConfig
    delivered: _Delivered
    ack_floor: _Delivered
    num_pending: int = 0
    num_ack_pending: int = 0
    num_redelivered: int = 0


class _ApiError(msgspec.Struct, frozen=True):
    code: int
    err_code: int = 0
    description: str = ""


class _Answer(msgspec.Struct, frozen=True):
    error: _ApiError | None = None


class _Page(msgspec.Struct, frozen=True):
    consumers: tuple[ConsumerInfo, ...] = ()
    total: int = 0


async def ask_api(nats: Nats, verb: str, request: object = None) -> bytes:
    """A request to the JetStream API. Raises Unavailable, NotFound, Conflict, InvalidArgument."""
    from nats.errors import Error

    payload = b"" if request is None else json.dumps(request).encode()
    try:
        reply = await nats.request(f"$JS.API.{verb}", payload, timeout=API_S_MAX)
    except (Error, TimeoutError, OSError) as error:
        raise Unavailable(
            "The NATS server does not answer.", hint="`tcctl status` shows what is wrong."
        ) from error
    refusal = msgspec.json.decode(reply.data, type=_Answer).error
    if refusal is not None:
        _refuse(refusal)
    return reply.data


def _refuse(error: _ApiError) -> NoReturn:
    if error.err_code == _NO_STREAM:
        raise NotFound("This cluster has no log.", hint="Start its control plane.")
    if error.err_code == _NO_CONSUMER:
        raise NotFound("There is no such reader.", hint="`tcctl signal readers` shows them.")
    if error.err_code in _EXISTS:
        raise Conflict("A reader of this name was made otherwise.", hint="Choose another name.")
    if error.code >= 500:
        raise Unavailable(f"JetStream is not there: {error.description}.", hint="Is its disk full?")
    raise InvalidArgument(f"JetStream refuses: {error.description} (code {error.err_code}).")


async def read_consumer(nats: Nats, log: str, name: str) -> ConsumerInfo:
    """What there is of this name. Raises NotFound, Unavailable."""
    return msgspec.json.decode(
        await ask_api(nats, f"CONSUMER.INFO.{log}.{name}"), type=ConsumerInfo
    )


async def make_consumer(nats: Nats, log: str, config: dict[str, object]) -> ConsumerInfo:
    """Makes a consumer; one that is there and is the same is as good. Raises Conflict,
    InvalidArgument, NotFound, Unavailable."""
    request = {"stream_name": log, "config": config, "action": "create"}
    # What is read is part of the subject: so a key may be allowed to read signals alone.
    answer = await ask_api(
        nats, f"CONSUMER.CREATE.{log}.{config['name']}.{config['filter_subject']}", request
    )
    return msgspec.json.decode(answer, type=ConsumerInfo)


async def drop_consumer(nats: Nats, log: str, name: str) -> None:
    """Forgets a consumer and where it stands. Raises NotFound, Unavailable."""
    await ask_api(nats, f"CONSUMER.DELETE.{log}.{name}")


async def list_consumers(nats: Nats, log: str) -> tuple[ConsumerInfo, ...]:
    """All consumers of the log. Raises NotFound, Unavailable."""
    found: list[ConsumerInfo] = []
    while True:
        answer = await ask_api(nats, f"CONSUMER.LIST.{log}", {"offset": len(found)})
        page = msgspec.json.decode(answer, type=_Page)
        found.extend(page.consumers)
        if not page.consumers or len(found) >= page.total:
            return tuple(found)


class Feed:
    """The messages of one consumer. `connect` gives the connection, `ensure` makes the consumer
    anew when it is gone (or raises what ends the feed) and returns its name. For one task at a
    time."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Nats]],
        ensure: Callable[[Nats], Awaitable[str]],
        log: str,
        *,
        batch: int,
    ) -> None:
        self._connect = connect
        self._ensure = ensure
        self._log = log
        self._batch = batch
        self._arrived: deque[Msg] = deque()
        self._news = asyncio.Event()
        self._subscription: Subscription | None = None
        self._nats: Nats | None = None
        self._name = ""
        self._due = 0
        self._reconnects = 0
        self._heard_s = 0.0

    @property
    def waiting(self) -> tuple[Msg, ...]:
        """Messages that have arrived and were not taken yet."""
        return tuple(self._arrived)

    async def open(self) -> None:
        """Makes the consumer and asks for messages; one that fetches nothing ahead asks when one is
        wanted. Raises what `connect` and `ensure` raise."""
        await self._renew()
        if self._batch > 1:
            await self._request()

    async def aclose(self, *, give_back: bool = False) -> None:
        """Ends delivery; what was taken and not acknowledged will be delivered again. `give_back`:
        what has come and was not taken, or is on its way, goes to the next one at once and in its
        order; without it, once the time to acknowledge it is over. Safe to repeat."""
        from nats.errors import Error

        nats = self._nats
        if not give_back or self._subscription is None or nats is None or not nats.is_connected:
            await self._unsubscribe()
            return
        subscription, self._subscription = self._subscription, None
        try:
            async with asyncio.timeout(GIVE_BACK_S_MAX):
                await subscription.drain()  # type: ignore[no-untyped-call]  # nats-py says no types
                # So it looks who still waits. Else it finds nobody for the first one that is given
                # back, and puts that behind the others.
                await read_consumer(nats, self._log, self._name)
                while self._arrived:
                    message = self._arrived.popleft()
                    if message.reply.startswith(_ACK):
                        await nats.publish(message.reply, b"-NAK")
                await nats.flush()
        except (Error, TimeoutError, OSError, TensorCastError) as error:
            _logger.debug("signals that were fetched ahead come again by themselves: %s", error)

    async def _unsubscribe(self) -> None:
        from nats.errors import Error

        subscription, self._subscription = self._subscription, None
        if subscription is not None and self._nats is not None and not self._nats.is_closed:
            try:
                await subscription.unsubscribe()
            except Error as error:
                _logger.debug("a reader's subscription is left to its server: %s", error)

    async def take(self, timeout_s: float | None) -> Msg | None:
        """The next message; None when there was none in time. Waits through outages of the server.
        Raises what `ensure` raises but Unavailable."""
        clock = asyncio.get_running_loop().time
        deadline = None if timeout_s is None else clock() + timeout_s
        while True:
            while self._arrived:
                message = self._arrived.popleft()
                if not self._is_status(message):
                    return message
            left = LOOK_S if deadline is None else min(LOOK_S, deadline - clock())
            try:
                if 2 * self._due <= self._batch or self._is_broken():
                    await self._request()
            except Unavailable as error:
                _logger.info("signals are waited for: %s", error)
            if left <= 0:
                return None
            await self._wait(left)

    async def _wait(self, timeout_s: float) -> None:
        if self._arrived:
            return
        self._news.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return

    def _is_broken(self) -> bool:
        """Whether an answer to the request can no longer come."""
        nats = self._nats
        if nats is None or nats.is_closed or self._subscription is None:
            return True
        if nats.stats["reconnects"] != self._reconnects:
            return True
        return asyncio.get_running_loop().time() - self._heard_s > SILENCE_S_MAX

    async def _request(self) -> None:
        """Asks for so many of the next messages that a whole batch of them is due, after whatever
        was wrong is mended."""
        if self._is_broken():
            await self._renew()
        assert self._nats is not None
        assert self._subscription is not None
        request = {
            "batch": self._batch - self._due,
            "expires": int(REQUEST_S * NANOSECONDS),
            "idle_heartbeat": int(HEARTBEAT_S * NANOSECONDS),
        }
        await self._nats.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{self._log}.{self._name}",
            json.dumps(request).encode(),
            reply=self._subscription.subject,
        )
        self._due = self._batch
        self._heard_s = asyncio.get_running_loop().time()

    async def _renew(self) -> None:
        """A connection, a consumer and an address of its own for what is asked from now on: late
        answers to older requests are acknowledged by nobody, and so come again."""
        await self._unsubscribe()
        self._nats = await self._connect()
        self._reconnects = self._nats.stats["reconnects"]
        self._name = await self._ensure(self._nats)
        inbox = self._nats.new_inbox()
        self._subscription = await self._nats.subscribe(inbox, cb=self._on_message)
        self._due = 0
        self._heard_s = asyncio.get_running_loop().time()

    def _is_status(self, message: Msg) -> bool:
        """Whether it is the server's word instead of a message; notes what it says."""
        status = message.headers.get("Status") if message.headers else None
        if status is None:
            self._due = max(0, self._due - 1)
            return False
        if status in _ENDED:
            self._due = max(0, self._due - _count_unmet(message.headers or {}, self._due))
            if status in ("409", "503"):  # the consumer is gone, or JetStream is
                self._heard_s = float("-inf")
        return True

    async def _on_message(self, message: Msg) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        self._arrived.append(message)
        self._news.set()


def _count_unmet(headers: Mapping[str, str], due: int) -> int:
    """How many of the messages that are `due` do not come by what the server says: those that one
    request did not get in its time (408), else all."""
    left = headers.get("Nats-Pending-Messages", "")
    return int(left) if headers.get("Status") == "408" and left.isdecimal() else due
