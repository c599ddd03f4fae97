"""Connections to the local mover: frames and descriptors over its unix socket.

Each connection serves one request at a time; idle ones are kept for the next. When the mover was
restarted in between, a request that is safe to repeat is asked once more on a new connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import weakref
from collections.abc import AsyncIterator
from typing import TypeVar

from tensorcast.client.context import START_HINT, Context
from tensorcast.client.faults import not_text
from tensorcast.client.patience import Patience
from tensorcast.schema.errors import (
    Corrupt,
    OutOfCapacity,
    PermissionDenied,
    TensorCastError,
    Timeout,
    Unavailable,
    from_body,
)
from tensorcast.schema.socket import (
    DESCRIPTORS_MAX,
    LENGTH,
    Answer,
    Hello,
    Refused,
    Request,
    Welcome,
    body_bytes,
    decode_answer,
    encode_frame,
)

A = TypeVar("A", bound=Answer)
Descriptors = tuple[int, ...]

IDLE_MAX = 4
ANSWER_S = 30.0
ANSWER_SLACK_S = 0.5
"""A mover that is well says itself what did not come in time; so long it is waited for."""
RECONNECT_S = 5.0
"""How long a mover that restarts is waited for."""
_CONTROL_BYTES = socket.CMSG_SPACE(DESCRIPTORS_MAX * 4)


class MoverLost(Unavailable):
    """The mover closed the connection before it answered."""


class Connection:
    """One connection; one request at a time."""

    def __init__(self, endpoint: socket.socket, node: str) -> None:
        self._endpoint = endpoint
        self._node = node
        self.is_clean = True

    async def ask(
        self, request: Request, answer: type[A], *, timeout: float | None = ANSWER_S
    ) -> tuple[A, Descriptors]:
        """One request, its answer, and the descriptors with it, which are the caller's to close.
        Without a `timeout` the caller limits the time.

        Raises what the mover refuses with, MoverLost, Timeout, Corrupt, InvalidArgument. After any
        but the first and the last the connection is of no more use.
        """
        frame = _encode(request)
        self.is_clean = False
        try:
            async with _limited(timeout, self._node):
                await asyncio.get_running_loop().sock_sendall(self._endpoint, frame)
                found, descriptors = await self._receive()
        except OSError as error:
            raise _lost(self._node) from error
        if isinstance(found, answer):
            self.is_clean = True
            return found, descriptors
        _close_all(descriptors)
        if isinstance(found, Refused):
            self.is_clean = True
            raise from_body(found.error)
        raise Corrupt(f"The mover answered {type(found).__name__}, not {answer.__name__}.")

    def close(self) -> None:
        """Also aborts the puts that were opened here. Safe to repeat."""
        self._endpoint.close()

    async def _receive(self) -> tuple[Answer, Descriptors]:
        descriptors: list[int] = []
        try:
            head = await self._read(LENGTH.size, descriptors)
            body = await self._read(body_bytes(bytes(head)), descriptors)
            return decode_answer(bytes(body)), tuple(descriptors)
        except BaseException:  # also a cancellation: nobody else knows these descriptors
            _close_all(tuple(descriptors))
            raise

    async def _read(self, size_bytes: int, descriptors: list[int]) -> bytearray:
        data = bytearray(size_bytes)
        with memoryview(data) as view:
            filled = 0
            while filled < size_bytes:
                try:
                    count, control, flags, _ = self._endpoint.recvmsg_into(
                        [view[filled:]], _CONTROL_BYTES, socket.MSG_CMSG_CLOEXEC
                    )
                except BlockingIOError:
                    await _readable(self._endpoint)
                    continue
                descriptors.extend(_descriptors_in(control))
                if flags & socket.MSG_CTRUNC:
                    raise OutOfCapacity(
                        "This process can open no more files.", hint="Raise `ulimit -n`."
                    )
                if count == 0:
                    raise _lost(self._node)
                filled += count
        return data


class MoverSockets:
    """The connections of one client to the mover of its node."""

    def __init__(self, context: Context, actor: str) -> None:
        self._context = context
        self._hello = Hello(actor=actor, pid=os.getpid())
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._held: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._was_connected = False
        self._is_closed = False
        self.node = context.default_node

    async def ask(
        self, request: Request, answer: type[A], *, timeout: float = ANSWER_S
    ) -> tuple[A, Descriptors]:
        """One request that is safe to repeat; asked again when the mover was restarted. All of it
        ends within `timeout`. Errors as `Connection.ask`, and Unavailable without a mover."""
        _encode(request)  # what cannot be sent is refused whether there is a mover or not
        async with _limited(timeout, self.node, slack_s=ANSWER_SLACK_S):
            try:
                async with self.connection() as connection:
                    return await connection.ask(request, answer, timeout=None)
            except MoverLost:
                self._drop_idle()
            async with self.connection() as connection:
                return await connection.ask(request, answer, timeout=None)

    async def open_connection(self) -> Connection:
        """A new connection that lives as long as its holder wants; the holder closes it."""
        connection = await self._connect_twice()
        self._held.add(connection)
        return connection

    @contextlib.asynccontextmanager
    async def connection(self, *, is_fresh: bool = False) -> AsyncIterator[Connection]:
        """A connection of one's own. After an error it is closed, which aborts the puts that it
        opened; but one that was only refused a single request is kept for the next."""
        reused = self._idle.pop() if self._idle and not is_fresh else None
        connection = reused or await self._connect_twice()
        self._open.add(connection)
        is_kept = False
        try:
            yield connection
            is_kept = True
        except TensorCastError:
            is_kept = not is_fresh
            raise
        finally:
            self._open.discard(connection)
            is_kept = is_kept and connection.is_clean and not self._is_closed
            if is_kept and len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
            else:
                connection.close()

    def close(self) -> None:
        """Closes the idle connections; those in use close when they are given back."""
        self._is_closed = True
        self._drop_idle()

    def forget(self) -> None:
        """In a forked child: closes its copies of the descriptors. The parent's stay open."""
        for connection in (*self._open, *self._held):
            connection.close()
        self._open = set()
        self._held = weakref.WeakSet()
        self._drop_idle()
        self._hello = Hello(actor=self._hello.actor, pid=os.getpid())

    def _drop_idle(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle = []

    async def _connect_twice(self) -> Connection:
        """A mover can be killed between its first word and its second."""
        async with _limited(ANSWER_S, self.node):
            try:
                return await self._connect()
            except MoverLost:
                return await self._connect()

    async def _connect(self) -> Connection:
        if self._is_closed:
            raise Unavailable("This client is closed.", hint="Connect again.")
        node = self.node
        if node is None:
            raise Unavailable("No mover of this machine is known.", hint=START_HINT)
        path = self._context.nodes[node].socket
        connection = Connection(await self._dial(path, node), node)
        try:
            welcome = connection.ask(self._hello, Welcome, timeout=None)
            await Patience(f"the mover of node {node}").wait(welcome)
        except BaseException:
            connection.close()
            raise
        self._was_connected = True
        return connection

    async def _dial(self, path: str, node: str) -> socket.socket:
        """A connected socket; waits a moment for a mover that was there before: it has left its
        socket behind, or this client knew it."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + RECONNECT_S
        while True:
            endpoint = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                endpoint.connect(path)
                return endpoint
            except OSError as error:
                endpoint.close()
                is_busy = error.errno == errno.EAGAIN  # its backlog is full
                was_there = isinstance(error, ConnectionRefusedError) or (
                    isinstance(error, FileNotFoundError) and self._was_connected
                )
                if not (is_busy or (was_there and clock() < deadline)):
                    raise _unreachable(error, path, node) from error
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def _limited(
    timeout_s: float | None, node: str | None, *, slack_s: float = 0.0
) -> AsyncIterator[None]:
    """Raises Timeout when the block takes longer; without a limit it may take any time."""
    try:
        async with asyncio.timeout(None if timeout_s is None else timeout_s + slack_s):
            yield
    except TimeoutError as error:
        raise Timeout(
            f"The mover of node {node} did not answer within {timeout_s:g} s.",
            hint="`tcctl status` shows how it is.",
            node=node,
        ) from error


def _encode(request: Request) -> bytes:
    """Raises InvalidArgument for text that has no bytes."""
    try:
        return encode_frame(request)
    except UnicodeEncodeError as error:
        raise not_text(error.object) from error


def _unreachable(error: OSError, path: str, node: str) -> TensorCastError:
    if isinstance(error, PermissionError):
        return PermissionDenied(
            f"This user may not use the mover of node {node} ({path}).",
            hint="Run as the user who started it.",
            node=node,
        )
    return Unavailable(
        f"The mover of node {node} is not running (nothing answers at {path}).",
        hint="`tcctl status` shows how it is; `tcctl up` starts it.",
        node=node,
    )


def _lost(node: str) -> MoverLost:
    return MoverLost(
        f"The mover of node {node} closed the connection.",
        hint="It may have been restarted: try again, or see `tcctl status`.",
        node=node,
    )


def _descriptors_in(control: list[tuple[int, int, bytes]]) -> list[int]:
    found: list[int] = []
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = len(data) - len(data) % 4
            found.extend(memoryview(data)[:whole].cast("i"))
    return found


def _close_all(descriptors: Descriptors) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


async def _readable(endpoint: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(endpoint, wake)
    try:
        await ready
    finally:
        loop.remove_reader(endpoint)
