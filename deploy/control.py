"""How `up`, `down` and `status` talk with the supervisor: JSON lines over a private unix socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from tensorcast.schema.errors import Unavailable
from tensorcast.schema.wording import end_sentence

LINE_BYTES_MAX: Final = 1024 * 1024
REPLY_TIMEOUT_S: Final = 10.0
CONTROL_SOCKET: Final = "control.sock"
EXTERNAL: Final = "external: "
"""How the detail of a server that somebody else runs begins."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """`status` asks, `reload` reads cluster.json again (for new nodes) and tries at once what
    fails, `stop` ends all, `discard` as well, but nobody saves what is in memory."""

    do: Literal["status", "reload", "stop", "discard"]


class ServiceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One service: `state` is up, starting, waiting, restarting, stopping or down.

    `restarts` counts the deaths of a ready service, `failures` its failed starts in a row.
    `refusal` is why it will not run, however often it is started: it gave up twice with that.
    """

    name: str
    state: str
    pid: int | None = None
    detail: str = ""
    restarts: int = 0
    failures: int = 0
    refusal: str = ""


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of an answer; `stop` is answered by many, each with some progress."""

    services: tuple[ServiceStatus, ...] = ()
    progress: str = ""
    error: str = ""


def encode(message: Request | Reply) -> bytes:
    """One line."""
    return msgspec.json.encode(message) + b"\n"


def decode_request(line: bytes) -> Request:
    """Raises `msgspec.DecodeError` for anything but a request."""
    return msgspec.json.decode(line, type=Request)


def ask(sockets: Path, request: Request, *, timeout_s: float = REPLY_TIMEOUT_S) -> Reply:
    """Ask the supervisor and return its only answer.

    Raises `Unavailable` when it does not answer or refuses.
    """
    reply = next(converse(sockets, request, timeout_s=timeout_s), None)
    if reply is None:
        raise Unavailable("The supervisor closed the connection.", hint="Run `tcctl up`.")
    if reply.error:
        raise Unavailable(end_sentence(f"The supervisor says: {reply.error}"))
    return reply


def converse(sockets: Path, request: Request, *, timeout_s: float) -> Iterator[Reply]:
    """Ask the supervisor and yield its answers until it closes the connection.

    Raises `Unavailable` when it does not answer for `timeout_s`.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.settimeout(timeout_s)
        try:
            channel.connect(str(sockets / CONTROL_SOCKET))
            channel.sendall(encode(request))
            with channel.makefile("rb") as lines:
                while line := lines.readline(LINE_BYTES_MAX):
                    yield msgspec.json.decode(line, type=Reply)
        except (OSError, msgspec.DecodeError) as error:
            raise Unavailable(
                f"The supervisor does not answer: {error}.", hint="Run `tcctl up`."
            ) from error
