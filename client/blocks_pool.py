"""Connections to the local mover's socket for blocks, kept for the next call."""

from __future__ import annotations

import errno
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final, TypeVar

from tensorcast.client.blocks_memory import Slabs
from tensorcast.client.blocks_socket import BlockConnection, ConnectionLost
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
    socket (None: there is no mover here)."""

    def __init__(self, path: str | None, node: str | None, greeting: Greeting) -> None:
        self.is_local = path is not None
        self._path = f"{path}{SOCKET_SUFFIX}"
        self._node = node or ""
        self._greeting = greeting
        self._idle: list[BlockConnection] = []
        self._slabs = Slabs("")
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._teller: threading.Thread | None = None

    def close(self) -> None:
        """Gives up the connections. Views that were handed out stay valid. Safe to repeat."""
        self._closing.set()
        self._drop_idle()

    def forget(self) -> None:
        """In a forked child: leaves the parent's connections to the parent."""
        for connection in self._idle:
            connection.socket.close()
        self._idle = []
        self._slabs = Slabs("")
        self._lock = threading.Lock()
        self._teller = None

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def use(self, work: Callable[[BlockConnection], T]) -> T:
        """Does `work`, which can be repeated, on a connection; once more on a new one when the
        mover was restarted."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            return self._try(connection, work)
        except ConnectionLost:
            self._drop_idle()
        return self._try(self._connect(), work)

    def _try(self, connection: BlockConnection, work: Callable[[BlockConnection], T]) -> T:
        try:
            found = work(connection)
        except BaseException:
            connection.close()
            raise
        connection.used_at = time.monotonic()
        if self._closing.is_set() or len(self._idle) >= IDLE_MAX:
            connection.close()
        else:
            self._idle.append(connection)
        return found

    def _connect(self) -> BlockConnection:
        if not self.is_local:
            raise Unavailable("No mover of this machine is known.", hint="Name a node: `node=...`.")
        if self._closing.is_set():
            raise Unavailable("This client is closed.", hint="Connect again.")
        connection = BlockConnection(self._dial(self._path), self._node)
        try:
            welcome = connection.greet(self._greeting)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if self._slabs.life != welcome.life:
                self._slabs = Slabs(welcome.life)
            connection.slabs = self._slabs
            if self._teller is None:
                self._teller = threading.Thread(
                    target=_tell, args=(weakref.ref(self), self._closing), daemon=True
                )
                self._teller.start()
        return connection

    def _dial(self, path: str) -> socket.socket:
        """Waits a moment for a mover that is being restarted."""
        deadline = time.monotonic() + RECONNECT_S
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
        for _ in range(len(self._idle)):
            try:
                connection = self._idle.pop(0)
            except IndexError:
                return
            try:
                if time.monotonic() - connection.used_at > SPARES_S:
                    connection.return_spares()
                connection.flush()
            except TensorCastError:
                connection.close()
                continue
            self._idle.insert(0, connection)


def _tell(connections: weakref.ref[BlockConnections], closing: threading.Event) -> None:
    while not closing.wait(TELL_S):
        found = connections()
        if found is None:
            return
        found.tell()
        del found
