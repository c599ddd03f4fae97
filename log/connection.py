"""One connection to NATS that outlives its server: reconnects for ever, and says at once when an
answer can no longer come."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError, NoRespondersError

from tensorcast.log.port import NoRoom
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


class _Client(Client):
    """nats-py, with headers read in one pass: its own way takes longer than all else that is done
    for a message. (A release that calls this no more is as right, and slower.)"""

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        lines = raw.decode("utf-8", "replace").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return {name.strip(): value.strip() for name, colon, value in pairs if colon}


class Connection:
    """A NATS client and the facts about its life that it does not tell by itself. `url` may name
    several servers of one cluster."""

    def __init__(self, url: str) -> None:
        self.nats: Client = _Client()
        self.place = name_servers(url)
        self._url = url
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._denied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last_error = ""
        self._listeners: set[Callable[[], None]] = set()

    async def open(self, name: str, timeout_s: float) -> None:
        """Connects. Raises Unavailable when no server answers in time, PermissionDenied when it
        refuses the user."""
        connecting = asyncio.ensure_future(self._connect(name))
        try:
            await asyncio.wait((connecting, self._denied), timeout=timeout_s, return_when=_FIRST)
            if connecting.done():
                failure = connecting.exception()
                if failure is None:
                    return
                self._last_error = str(failure)
        finally:
            connecting.cancel()
        await self.nats.close()
        if self._denied.done():
            raise PermissionDenied(
                f"The NATS server at {self.place} refuses this user and password.",
                hint="Check the URL.",
            )
        raise Unavailable(
            f"The NATS server at {self.place} cannot be reached"
            f" ({self._last_error or 'no answer in time'}).",
            hint="Is it running? `tcctl status` says.",
        )

    async def _connect(self, name: str) -> None:
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
        )

    async def aclose(self) -> None:
        """Gives the connection up. Safe to repeat."""
        await self.nats.close()

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
        self.check_connected()
        lost = self._lost
        answer = asyncio.ensure_future(
            self.nats.request(subject, payload, timeout=timeout_s, headers=dict(headers or {}))
        )
        try:
            await asyncio.wait((answer, lost), return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return _data_of(answer, self.place)
            raise self.unavailable("the connection was lost")
        finally:
            answer.cancel()

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
        self._notify()

    def _notify(self) -> None:
        for callback in tuple(self._listeners):
            callback()

    async def _on_error(self, error: Exception) -> None:
        _logger.debug("NATS at %s: %s", self.place, error)
        self._last_error = str(error) or type(error).__name__
        if "authorization" in self._last_error.lower() and not self._denied.done():
            self._denied.set_result(None)


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
