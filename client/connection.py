"""The client's connection to NATS: by which key and certificates, and what a failure means."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tensorcast.access.nats import distrust, make_signer, make_tls
from tensorcast.schema.access import Access
from tensorcast.schema.errors import PermissionDenied, Unavailable
from tensorcast.schema.servers import name_servers, split_servers

if TYPE_CHECKING:
    from nats.aio.client import Client as Nats

CONNECT_S = 3.0
CLOSE_S = 0.5
HINT = "`tcctl status` shows what is wrong; `tcctl up` starts the cluster of this machine."
_NOT_ALLOWED = re.compile(r'permissions violation for publish to "(.*)"', re.IGNORECASE)
_closing: set[asyncio.Task[None]] = set()


class Refusals:
    """Hears what a server says of messages that this key may not send: it says it to nobody's
    request, so whoever waits for an answer would wait in vain."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Future[bytes]]] = {}

    async def answer(self, request: Awaitable[bytes], subject: str) -> bytes:
        """The answer to a request on a subject. Raises PermissionDenied, and what it raises."""
        asking = asyncio.ensure_future(request)
        refused: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(subject.lower(), set()).add(refused)
        try:
            await asyncio.wait((asking, refused), return_when=asyncio.FIRST_COMPLETED)
            return (refused if refused.done() else asking).result()
        finally:
            asking.cancel()
            refused.cancel()
            self._waiting[subject.lower()].discard(refused)
            if not self._waiting[subject.lower()]:
                del self._waiting[subject.lower()]

    def hear(self, error: Exception) -> None:
        """Takes an error of the connection."""
        found = _NOT_ALLOWED.search(str(error))
        for waiting in self._waiting.get(found.group(1).lower(), ()) if found else ():
            if not waiting.done():
                waiting.set_exception(
                    PermissionDenied(
                        "The key of this client does not allow that.",
                        hint="`tcctl keys ls` shows the keys; a reader may only look.",
                    )
                )


async def connect_nats(url: str, access: Access, refusals: Refusals) -> Nats:
    """A connection that comes back by itself once it was made; making it is tried once."""
    if not url:
        raise Unavailable("No address of NATS is known.", hint="Set TENSORCAST_NATS_URL.")
    from nats.aio.client import Client
    from nats.errors import Error

    servers = list(split_servers(url))
    tries_left = len(servers)
    is_connecting = True

    async def give_up(error: Exception) -> None:
        """Later errors reach the caller of a request, and nobody else."""
        nonlocal tries_left
        refusals.hear(error)
        tries_left -= 1
        if is_connecting and tries_left <= 0:
            raise error

    nats = Client()
    signer = make_signer(nats, access)
    try:
        async with asyncio.timeout(CONNECT_S):
            await nats.connect(
                servers,
                name="tensorcast client",
                connect_timeout=int(CONNECT_S),
                reconnect_time_wait=1,
                max_reconnect_attempts=-1,
                error_cb=give_up,
                inbox_prefix=access.inbox,
                tls=make_tls(access),
                signature_cb=signer.sign if signer else None,
                user_jwt_cb=signer.jwt if signer and signer.has_jwt else None,
            )
    except (Error, OSError, TimeoutError, ValueError) as error:
        is_connecting = False
        with suppress(TimeoutError):
            # After a handshake that failed, asyncio waits for the end of what never began.
            async with asyncio.timeout(CLOSE_S):
                await nats.close()
        denied = distrust(error, name_servers(url))
        if denied is not None:
            raise denied from error
        raise Unavailable(f"NATS cannot be reached: {_reason(error)}.", hint=HINT) from error
    is_connecting = False
    return nats


def key_changed_at(access: Access) -> int:
    """When the file of the key was written, so that a rotated key is noticed; 0 without one."""
    try:
        return Path(access.credentials).stat().st_mtime_ns if access.credentials else 0
    except OSError:
        return 0


def close_soon(nats: Nats) -> None:
    """Closes a connection that nobody uses any more."""
    task = asyncio.ensure_future(nats.close())
    _closing.add(task)
    task.add_done_callback(_closing.discard)


async def wait_connected(nats: Nats) -> None:
    """Returns when there is a connection (again). Raises Unavailable."""
    deadline = asyncio.get_running_loop().time() + CONNECT_S
    while not nats.is_connected:
        if nats.is_closed or asyncio.get_running_loop().time() > deadline:
            raise Unavailable("The connection to NATS is lost.", hint=HINT)
        await asyncio.sleep(0.02)


def _reason(error: Exception) -> str:
    """What went wrong, without the address, which holds a password."""
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_S:g} s"
    if isinstance(error, OSError):
        # asyncio writes the address into its text; the number alone tells what the system said.
        return os.strerror(error.errno) if error.errno else type(error).__name__
    return str(error).removeprefix("nats: ") or type(error).__name__
