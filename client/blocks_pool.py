"""Connections to the local mover's socket for blocks, kept for the next call.

Those that hand views out do nothing else: any other one can be closed at once when a call fails,
and by that the mover drops what was being written.

A thread of the client's own tells the mover now and then what is no longer read, and watches a
connection on which nothing is ever said: when the kernel closes it the mover is gone, and with it
what its board says.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final, TypeVar

from tensorcast.client.blocks_frames import ConnectionLost
from tensorcast.client.blocks_memory import Slabs
from tensorcast.client.blocks_socket import ANSWER_S, BlockConnection
from tensorcast.schema.block_wire import SOCKET_SUFFIX, Greeting
from tensorcast.schema.errors import TensorCastError, Unavailable

T = TypeVar("T")

RECONNECT_S: Final = 5.0
IDLE_MAX: Final = 8
TELL_S: Final = 0.5
"""What is no longer read is told so soon, also when no request follows."""
SPARES_S: Final = 5.0
"""Slots that were lent ahead are given back after so long without a request."""


class BlockConnections:
    """For any number of threads; each call uses a connection of its own. `path` is the mover's
    socket (None: there is no mover here); `patience_s`: how long it may be away or silent, if not
    RECONNECT_S and ANSWER_S."""

    def __init__(
        self,
        path: str | None,
        node: str | None,
        greeting: Greeting,
        patience_s: float | None = None,
    ) -> None:
        self.is_local = path is not None
        self._path = f"{path}{SOCKET_SUFFIX}"
        self._node = node or ""
        self._greeting = greeting
        self._answer_s = patience_s or ANSWER_S
        self._reconnect_s = min(RECONNECT_S, self._answer_s)
        self._idle: list[BlockConnection] = []
        self._idle_viewing: list[BlockConnection] = []
        self._slabs = Slabs("")
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._teller: threading.Thread | None = None
        self._watched: socket.socket | None = None
        _made.add(self)

    def close(self) -> None:
        """Gives up the connections. Views that were handed out stay valid. Safe to repeat."""
        self._closing.set()
        self._drop_idle()
        with self._lock:
            self._slabs = Slabs("")
            if self._watched is not None:
                with contextlib.suppress(OSError):
                    self._watched.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """In a forked child: leaves the parent's connections to the parent. Safe to repeat."""
        if self._watched is not None:
            self._watched.close()
        self._watched = None
        self._idle, self._idle_viewing = [], []
        self._slabs = Slabs("")
        self._lock = threading.Lock()
        is_closed = self._closing.is_set()
        self._closing = threading.Event()  # its lock may be held by a thread that is not here
        if is_closed:
            self._closing.set()
        self._teller = None

    def _drop_idle(self) -> None:
        for idle in (self._idle, self._idle_viewing):
            with contextlib.suppress(IndexError):
                while True:
                    idle.pop().close()

    def use(self, work: Callable[[BlockConnection], T], *, is_viewing: bool = False) -> T:
        """Does `work`, which can be repeated, on a connection; once more on a new one when the
        mover was restarted. `is_viewing`: its views outlive the work, which writes nothing."""
        try:
            connection = (self._idle_viewing if is_viewing else self._idle).pop()
        except IndexError:
            connection = self._connect()
        try:
            return self._try(connection, work, is_viewing)
        except ConnectionLost:
            self._drop_idle()
        return self._try(self._connect(), work, is_viewing)

    def _try(
        self, connection: BlockConnection, work: Callable[[BlockConnection], T], is_viewing: bool
    ) -> T:
        try:
            found = work(connection)
        except BaseException:
            connection.close()
            raise
        connection.used_at = time.monotonic()
        idle = self._idle_viewing if is_viewing else self._idle
        if self._closing.is_set() or len(idle) >= IDLE_MAX:
            connection.close()
        else:
            idle.append(connection)
        return found

    def _connect(self) -> BlockConnection:
        if not self.is_local:
            raise Unavailable("No mover of this machine is known.", hint="Name a node: `node=...`.")
        if self._closing.is_set():
            raise Unavailable("This client is closed.", hint="Connect again.")
        connection = BlockConnection(self._dial(self._path), self._node, self._answer_s)
        try:
            welcome = connection.greet(self._greeting)
            with self._lock:
                if self._slabs.life != welcome.life:
                    self._begin_life(welcome.life)
                connection.slabs = self._slabs
                connection.may_ring = welcome.rings
                connection.open_words()
        except BaseException:
            connection.close()
            raise
        return connection

    def _begin_life(self, life: str) -> None:
        """The mover is another one than before: nothing that was mapped counts any more."""
        watched = BlockConnection(self._dial(self._path), self._node, self._answer_s)
        try:
            found = watched.greet(self._greeting).life
        except BaseException:
            watched.close()
            raise
        self._slabs.has_ended = True
        self._slabs = Slabs(life)
        self._slabs.has_ended = found != life  # it was restarted just now
        if self._watched is not None:
            self._watched.close()
        self._watched = watched.socket
        if self._teller is None:
            arguments = (weakref.ref(self), self._closing)
            self._teller = threading.Thread(target=_tell, args=arguments, daemon=True)
            self._teller.start()

    def watch(self) -> None:
        """Waits a moment, or until the mover is gone: then its board is not looked at any more."""
        watched, slabs = self._watched, self._slabs
        if watched is None or slabs.has_ended:
            self._closing.wait(TELL_S)
            return
        poll = select.poll()
        try:
            poll.register(watched, select.POLLIN)
            is_over = bool(poll.poll(TELL_S * 1000))
        except (OSError, ValueError):  # it was closed: there is another one
            return
        if is_over:
            slabs.has_ended = True

    def end_watch(self) -> None:
        """Closes the connection that is watched, which nobody waits for any more."""
        with self._lock:
            watched, self._watched = self._watched, None
        if watched is not None:
            watched.close()

    def _dial(self, path: str) -> socket.socket:
        """Waits a moment for a mover that is being restarted."""
        deadline = time.monotonic() + self._reconnect_s
        while True:
            endpoint = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                endpoint.connect(path)
                return endpoint
            except OSError as error:
                endpoint.close()
                may_come = error.errno in (errno.ECONNREFUSED, errno.EAGAIN) or (
                    error.errno == errno.ENOENT and self._slabs.life
                )
                if not may_come or time.monotonic() > deadline:
                    raise Unavailable(
                        f"The mover of node {self._node} is not running (nothing answers at "
                        f"{path}).",
                        hint="`tcctl status` shows how it is; `tcctl up` starts it.",
                    ) from error
            time.sleep(0.02)

    def tell(self) -> None:
        """Tells the mover, on idle connections, what is no longer read or needed."""
        for idle in (self._idle, self._idle_viewing):
            self._tell_on(idle)

    def _tell_on(self, idle: list[BlockConnection]) -> None:
        for _ in range(len(idle)):  # the first one becomes the last: so each has its turn
            try:
                connection = idle.pop(0)
            except IndexError:
                return
            try:
                if time.monotonic() - connection.used_at > SPARES_S:
                    connection.return_spares()
                connection.flush()
            except TensorCastError:
                connection.close()
                continue
            idle.append(connection)


_made: weakref.WeakSet[BlockConnections] = weakref.WeakSet()


def _forget_all() -> None:
    for connections in list(_made):
        connections.forget()


os.register_at_fork(after_in_child=_forget_all)


def _tell(connections: weakref.ref[BlockConnections], closing: threading.Event) -> None:
    while (found := connections()) is not None:
        if closing.is_set():
            found.end_watch()
            return
        found.watch()
        found.tell()
        del found
