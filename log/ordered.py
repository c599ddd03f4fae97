"""Reading the log in order: an ack-less push consumer that is made anew whenever anything is odd.

Every message must follow the one before it. A gap, a lost connection or silence beyond the
heartbeats leads to a new consumer from the next position, so a reader never sees a hole, a repeat
or another order, and never more than the server's flow-control window waits in memory.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from tensorcast.log.connection import Connection, Refused, explain
from tensorcast.log.creation import State
from tensorcast.log.port import Stored
from tensorcast.schema.errors import Corrupt, Unavailable
from tensorcast.schema.ids import Seq

HEARTBEAT_S: Final = 2.0
_SILENCE_S_MAX: Final = 2.5 * HEARTBEAT_S
_IDLE_S_MAX: Final = 60
_NANOSECONDS: Final = 1_000_000_000
_DOUBT_S: Final = 3.0
"""For so long a server that has just become the leader may not know all that it has."""
_PAUSE_S_FIRST: Final = 0.05
_PAUSE_S_MAX: Final = 1.0
_logger = logging.getLogger(__name__)
Check = Callable[[], Awaitable[State]]


class _Broken(Exception):
    """This consumer cannot go on; a new one can."""


async def read_ordered(
    connection: Connection,
    name: str,
    after: Seq,
    batch_max: int,
    check: Check,
    *,
    may_forget: bool = False,
) -> AsyncGenerator[tuple[Stored, ...], None]:
    """Every message after `after`, for ever. `check` says, before each new consumer, how far the
    log goes. With `may_forget` the log drops its oldest messages: those are skipped. Raises Corrupt
    when it ends before `after`, Unavailable when the connection is closed for good."""
    pause_s = _PAUSE_S_FIRST
    while True:
        consumer = _Consumer(connection, name, after)
        try:
            state = await _check_surely(name, after, check)
            if may_forget and state.first_seq > after + 1:
                after = Seq(state.first_seq - 1)
                consumer = _Consumer(connection, name, after)
            await consumer.open()
            while True:
                batch = await consumer.take(batch_max)
                if batch:
                    after = batch[-1].seq
                    pause_s = _PAUSE_S_FIRST
                    yield batch
        except (_Broken, Unavailable) as error:
            if connection.nats.is_closed:
                raise Unavailable("The log is closed.", hint="Connect again.") from error
            _logger.info("reading %s after %d begins anew: %s", name, after, error)
        finally:
            await consumer.aclose()
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_S_MAX)


async def _check_surely(name: str, after: Seq, check: Check) -> State:
    """How far the log goes. Raises Corrupt when something is wrong with it, and stays wrong."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + _DOUBT_S
    while True:
        try:
            state = await check()
            _check_reach(name, state.last_seq, after)
            return state
        except Corrupt:
            if clock() > deadline:
                raise
        await asyncio.sleep(_PAUSE_S_FIRST)


def _check_reach(name: str, last: int, after: Seq) -> None:
    if last < after:
        raise Corrupt(
            f"The log {name} ends at {last}, but event {after} of it has been read.",
            hint="It has lost events. Restore it from a backup of the NATS server.",
        )


class _Consumer:
    """One life of a consumer at the server, with the messages that have arrived from it."""

    def __init__(self, connection: Connection, name: str, after: Seq) -> None:
        self._connection = connection
        self._name = name
        self._after = after
        self._id = "r" + secrets.token_hex(8)
        self._arrived: deque[Msg | tuple[bytes, bytes, bytes]] = deque()
        self._news = asyncio.Event()
        self._interrupted = False
        self._subscription: Subscription | None = None

    async def open(self) -> None:
        """Starts delivery. Raises Unavailable."""
        self._connection.check_connected()
        self._connection.listen(self._interrupt)
        nats = self._connection.nats
        inbox = nats.new_inbox()
        try:
            self._subscription = await nats.subscribe(inbox, cb=self._on_status)
            self._connection.set_sink(self._subscription, self._on_message)
        except NatsError as error:
            raise self._connection.unavailable(str(error)) from error
        request = {"stream_name": self._name, "config": self._config(inbox)}
        try:
            await self._connection.api(
                f"CONSUMER.CREATE.{self._name}.{self._id}", request, msgspec.Raw
            )
        except Refused as refusal:
            raise explain(refusal.error) from refusal

    def _config(self, inbox: str) -> dict[str, object]:
        return {
            "name": self._id,
            "deliver_subject": inbox,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._after + 1,
            "ack_policy": "none",
            "max_deliver": 1,
            "replay_policy": "instant",
            "flow_control": True,
            "idle_heartbeat": int(HEARTBEAT_S * _NANOSECONDS),
            "inactive_threshold": _IDLE_S_MAX * _NANOSECONDS,
            "mem_storage": True,
            "num_replicas": 1,
        }

    async def aclose(self) -> None:
        """Ends delivery. The server forgets the consumer by itself when it cannot be told."""
        self._connection.unlisten(self._interrupt)
        subscription, self._subscription = self._subscription, None
        if subscription is None:
            return
        self._connection.set_sink(subscription, None)
        if self._connection.nats.is_closed:
            return
        try:
            await subscription.unsubscribe()
            if self._connection.nats.is_connected and not self._connection.access.is_mover:
                await self._connection.nats.publish(
                    f"$JS.API.CONSUMER.DELETE.{self._name}.{self._id}"
                )
        except NatsError as error:
            _logger.debug("consumer %s is left to its server: %s", self._id, error)

    async def take(self, count_max: int) -> tuple[Stored, ...]:
        """The next messages, once there are any; () when there was only a sign of life. Raises
        _Broken."""
        await self._wait()
        batch: list[Stored] = []
        while self._arrived and len(batch) < count_max:
            message = self._arrived.popleft()
            if isinstance(message, Msg):
                await self._answer(message)
                continue
            subject, reply, payload = message
            seq = _seq_of(reply)
            if seq != self._after + 1:
                raise _Broken(f"event {seq} came after {self._after}")
            self._after = Seq(seq)
            batch.append(Stored(Seq(seq), subject.decode(), payload))
        return tuple(batch)

    async def _wait(self) -> None:
        if not self._arrived and not self._interrupted:
            self._news.clear()
            try:
                async with asyncio.timeout(_SILENCE_S_MAX):
                    await self._news.wait()
            except TimeoutError:
                raise _Broken("the server is silent") from None
        if self._interrupted:
            raise _Broken("the connection changed")

    async def _answer(self, status: Msg) -> None:
        """Answers flow control: so the server sends more only as it is consumed. A heartbeat tells
        how far the server has got."""
        headers = status.headers or {}
        target = status.reply or headers.get("Nats-Consumer-Stalled")
        if target:
            await self._connection.nats.publish(target)
        last = headers.get("Nats-Last-Stream")
        if last is not None and int(last) > self._after and not self._arrived:
            raise _Broken(f"events after {self._after} got lost on their way")

    def _on_message(self, subject: bytes, reply: bytes, payload: bytes) -> None:
        self._arrived.append((subject, reply, payload))
        self._news.set()

    async def _on_status(self, message: Msg) -> None:
        self._arrived.append(message)
        self._news.set()

    def _interrupt(self) -> None:
        self._interrupted = True
        self._news.set()


def _seq_of(reply: bytes) -> int:
    """The position in the log, from the reply subject that JetStream gives a message."""
    parts = reply.split(b".")
    return int(parts[5] if len(parts) == 9 else parts[7])
