"""One connection to NATS that outlives its server: reconnects for ever, and says at once when an
answer can no longer come."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError, NoRespondersError

from tensorcast.access.nats import distrust, make_signer, make_tls
from tensorcast.log.port import NoRoom
from tensorcast.schema.access import Access
from tensorcast.schema.errors import InvalidArgument, PermissionDenied, TensorCastError, Unavailable
from tensorcast.schema.servers import name_servers, split_servers

ANSWER_S_MAX: Final = 10.0
FULL_DISK: Final = "Is its disk full? Make room, then restart it: until then it stores nothing."
"""After a write that failed, JetStream keeps refusing, silently, until the server starts anew."""
RECONNECT_PAUSE_S: Final = 0.1
_CONNECT_S_MAX: Final = 2
_FIRST: Final = asyncio.FIRST_COMPLETED
_logger = logging.getLogger(__name__)
T = TypeVar("T")
KEY_LOOK_S: Final = 0.5
"""So often it is looked whether the key was rotated."""
MOVE_S_MAX: Final = 3.0
_NOBODY: Final = Access()
_NOT_ALLOWED: Final = re.compile(r'permissions violation for publish to "(.*)"', re.IGNORECASE)


class ApiError(msgspec.Struct, frozen=True):
    """What JetStream says when it refuses; `err_code` is the exact reason."""

    code: int
    err_code: int = 0
    description: str = ""


class Refused(Exception):
    """JetStream said no. Never leaves this room."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(f"{error.description} ({error.err_code})")
        self.error = error


class _Answer(msgspec.Struct, frozen=True):
    error: ApiError | None = None


Sink = Callable[[bytes, bytes, bytes], None]
"""Takes the subject, the reply subject and the bytes of a message."""
_DELIVERED: Final = b"$JS.ACK."
"""So begins the reply subject of what a consumer delivers; its headers tell the reader nothing."""


class _Client(Client):
    """nats-py, with headers read in one pass, and a short way for what consumers deliver: its own
    ways take longer than all else that is done for a message. (A release that calls these no more
    is as right, and slower.)"""

    def __init__(self) -> None:
        super().__init__()
        self.sinks: dict[int, Sink] = {}

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        sink = self.sinks.get(sid)
        if sink is not None and reply.startswith(_DELIVERED):
            sink(bytes(subject), bytes(reply), bytes(data))
            return
        await super()._process_msg(sid, subject, reply, data, headers)

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        lines = raw.decode("utf-8", "replace").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return {name.strip(): value.strip() for name, colon, value in pairs if colon}


class _Refusal:
    """Those who wait for an answer on a subject, and the word that none may be asked for."""

    def __init__(self) -> None:
        self.told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting = 0


class Connection:
    """A NATS client and the facts about its life that it does not tell by itself. `url` may name
    several servers of one cluster."""

    def __init__(self, url: str, access: Access = _NOBODY) -> None:
        self._client = _Client()
        self.nats: Client = self._client
        self.access = access
        self.place = name_servers(url)
        self._url = url
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._denied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._distrusted: PermissionDenied | None = None
        self._last_error = ""
        self._listeners: set[Callable[[], None]] = set()
        self.pauses: list[Callable[[bool], Awaitable[None]]] = []
        self._refusals: dict[str, _Refusal] = {}
        self._asking = 0
        self._answered, self._connected = asyncio.Event(), asyncio.Event()
        self._answered.set()
        self._may_ask = asyncio.Event()
        self._may_ask.set()
        self._watching: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[None] | None = None

    def begin(self, name: str) -> None:
        """Connects as soon as a server answers; until then it is as when the connection is lost.
        `last_error` says why not yet. Owned: `aclose` ends it."""
        self._lost.set_result(None)

        async def connect() -> None:
            await self._connect(name)
            await self._on_found()
            self._watching = asyncio.ensure_future(self._watch_key())

        self._opening = asyncio.ensure_future(connect())

    @property
    def last_error(self) -> str:
        """The last trouble with the servers, in their words."""
        return self._last_error

    async def open(self, name: str, timeout_s: float) -> None:
        """Connects. Raises Unavailable when no server answers in time, PermissionDenied when it
        refuses the user."""
        connecting = asyncio.ensure_future(self._connect(name))
        try:
            await asyncio.wait((connecting, self._denied), timeout=timeout_s, return_when=_FIRST)
            if connecting.done():
                failure = connecting.exception()
                if failure is None:
                    self._watching = asyncio.ensure_future(self._watch_key())
                    return
                if isinstance(failure, TensorCastError):
                    raise failure
                self._last_error = str(failure)
        finally:
            connecting.cancel()
        await self.nats.close()
        if self._distrusted is not None:
            raise self._distrusted
        if self._denied.done():
            raise PermissionDenied(
                f"The NATS server at {self.place} refuses this user: its password or key.",
                hint="Check the URL and TENSORCAST_NATS_CREDENTIALS.",
            )
        raise Unavailable(
            f"The NATS server at {self.place} cannot be reached"
            f" ({self._last_error or 'no answer in time'}).",
            hint="Is it running? `tcctl status` says.",
        )

    async def _connect(self, name: str) -> None:
        signer = make_signer(self.nats, self.access)
        await self.nats.connect(
            servers=list(split_servers(self._url)),
            name=name,
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_PAUSE_S,  # type: ignore[arg-type]  # it only sleeps
            connect_timeout=_CONNECT_S_MAX,
            ping_interval=10,
            max_outstanding_pings=2,
            disconnected_cb=self._on_lost,
            reconnected_cb=self._on_found,
            closed_cb=self._on_lost,
            error_cb=self._on_error,
            inbox_prefix=self.access.inbox,
            tls=make_tls(self.access),
            signature_cb=signer.sign if signer else None,
            user_jwt_cb=signer.jwt if signer and signer.has_jwt else None,
        )

    async def aclose(self) -> None:
        """Gives the connection up. Safe to repeat."""
        for task in (self._opening, self._watching):
            if task is not None:
                task.cancel()
        await self.nats.close()

    async def _watch_key(self) -> None:
        """Connects anew when the key was rotated, before the server takes the old one no more."""
        path = self.access.credentials
        known = _changed_at(path)
        while path:
            await asyncio.sleep(KEY_LOOK_S)
            changed = _changed_at(path)
            if changed is not None and changed != known and self.nats.is_connected:
                known = changed
                _logger.info("the NATS key was rotated: connecting anew")
                await self._move()

    async def _move(self) -> None:
        """Leaves the connection when nobody waits for an answer on it, and makes another one.
        `pauses` are called with True before, with False after."""
        self._may_ask.clear()
        try:
            for pause in self.pauses:
                await pause(True)
            with suppress(NatsError, TimeoutError):
                async with asyncio.timeout(MOVE_S_MAX):
                    await self._answered.wait()
                    await self.nats.flush()
            self._connected.clear()
            await self.nats.force_reconnect()
            with suppress(TimeoutError):
                async with asyncio.timeout(ANSWER_S_MAX):
                    await self._connected.wait()
            for pause in self.pauses:
                await pause(False)
        finally:
            self._may_ask.set()

    def set_sink(self, subscription: Subscription, sink: Sink | None) -> None:
        """Has what a consumer delivers to the subscription go to the sink, not to its callback; to
        the callback again without one. Set it before the consumer is made."""
        if sink is None:
            self._client.sinks.pop(subscription._id, None)
        else:
            self._client.sinks[subscription._id] = sink

    def listen(self, callback: Callable[[], None]) -> None:
        """Calls back after each loss, reconnection and the end."""
        self._listeners.add(callback)

    def unlisten(self, callback: Callable[[], None]) -> None:
        self._listeners.discard(callback)

    async def ask(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = ANSWER_S_MAX,
    ) -> bytes:
        """The answer to a request. Raises Unavailable as soon as the connection is lost, or when
        nobody answers in time; what was asked for may have happened all the same."""
        await self._may_ask.wait()
        self.check_connected()
        lost, refused = self._lost, self._refusals.setdefault(subject, _Refusal())
        answer = asyncio.ensure_future(
            self.nats.request(subject, payload, timeout=timeout_s, headers=dict(headers or {}))
        )
        refused.waiting += 1
        self._asking += 1
        self._answered.clear()
        try:
            await asyncio.wait((answer, lost, refused.told), return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return _data_of(answer, self.place)
            if refused.told.done():
                raise PermissionDenied(
                    f"The NATS server at {self.place} does not let this process send to {subject}.",
                    hint="Its key has too few rights: `tcctl keys ls` shows what there is.",
                )
            raise self.unavailable("the connection was lost")
        finally:
            answer.cancel()
            self._asking -= 1
            if not self._asking:
                self._answered.set()
            refused.waiting -= 1
            if not refused.waiting:
                self._refusals.pop(subject, None)

    async def send(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
        """Sends a message that nobody answers. Raises Unavailable."""
        try:
            await self.nats.publish(subject, payload, headers=dict(headers))
        except (NatsError, OSError) as error:
            raise self.unavailable(str(error)) from error

    async def api(self, subject: str, request: object, answer: type[T]) -> T:
        """Asks the JetStream API. Raises Refused and Unavailable."""
        payload = b"" if request is None else json.dumps(request).encode()
        return parse_answer(await self.ask(f"$JS.API.{subject}", payload), answer)

    def check_connected(self) -> None:
        """Raises Unavailable while there is no connection."""
        if not self.nats.is_connected:
            raise self.unavailable("not connected")

    def unavailable(self, why: str) -> Unavailable:
        """The error that says that this server cannot be reached."""
        return Unavailable(
            f"The NATS server at {self.place} cannot be reached ({why}).",
            hint="It is tried again by itself; `tcctl status` says more.",
        )

    async def _on_lost(self) -> None:
        if not self._lost.done():
            self._lost.set_result(None)
        self._notify()

    async def _on_found(self) -> None:
        self._lost = asyncio.get_running_loop().create_future()
        self._connected.set()
        self._notify()

    def _notify(self) -> None:
        for callback in tuple(self._listeners):
            callback()

    async def _on_error(self, error: Exception) -> None:
        _logger.debug("NATS at %s: %s", self.place, error)
        self._last_error = str(error) or type(error).__name__
        self._distrusted = distrust(error, self.place) or self._distrusted
        if self._distrusted is not None and not self._denied.done():
            self._denied.set_result(None)
        if found := _NOT_ALLOWED.search(self._last_error):
            # nats-py writes it in capitals or not, by its version.
            for subject, refusal in self._refusals.items():
                if subject.lower() == found.group(1).lower() and not refusal.told.done():
                    refusal.told.set_result(None)
            return
        if "authorization" in self._last_error.lower() and not self._denied.done():
            self._denied.set_result(None)


def _changed_at(path: str) -> int | None:
    """When a file was written; None when there is none."""
    try:
        return Path(path).stat().st_mtime_ns if path else None
    except OSError:
        return None


def parse_answer(payload: bytes, answer: type[T]) -> T:
    """A JetStream answer. Raises Refused."""
    error = msgspec.json.decode(payload, type=_Answer).error
    if error is not None:
        raise Refused(error)
    return msgspec.json.decode(payload, type=answer)


def explain(error: ApiError) -> TensorCastError:
    """The error that users see for a refusal that nobody handles."""
    text = f"JetStream refuses: {error.description} (code {error.err_code})."
    if error.err_code in _NO_ROOM or "no space" in error.description:
        return NoRoom(
            f"The NATS server has no room for more events: {error.description}"
            f" (code {error.err_code}).",
            hint="Make room on its disk and restart it, or raise its JetStream limits.",
        )
    if error.code >= 500 or error.err_code == _BATCH_INCOMPLETE:
        return Unavailable(text, hint=FULL_DISK)
    return InvalidArgument(text, hint="See the log of the NATS server.")


_NO_ROOM: Final = frozenset({10002, 10023, 10028, 10047})
"""Resources of the account, of the server, memory, storage."""
_BATCH_INCOMPLETE: Final = 10176
"""A part of an atomic batch was lost on its way; nothing of it was stored."""


def _data_of(answer: asyncio.Future[Msg], place: str) -> bytes:
    try:
        return answer.result().data
    except MaxPayloadError as error:
        raise InvalidArgument(
            f"The NATS server at {place} takes no message of this size.",
            hint="Raise its max_payload to 8 MB.",
        ) from error
    except (NatsError, TimeoutError, OSError) as error:
        why = (
            "JetStream is not there: is its disk full?"
            if isinstance(error, NoRespondersError)
            else str(error)
        )
        raise Unavailable(
            f"The NATS server at {place} does not answer ({why or 'no answer in time'}).",
            hint="It is tried again by itself; `tcctl status` says more.",
        ) from error
