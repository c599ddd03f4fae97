"""The connection over TCP that a rail is set up with, and by which its ends know that the other one
lives: the greetings, and a descriptor that wakes a thread which waits for several things."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress

from tensorcast.movers.transports.rdma import wire

KEEPALIVE_S, KEEPALIVE_STEP_S, KEEPALIVES = 5, 2, 3


def tune(connected: socket.socket, timeout_s: float) -> None:
    """Blocks for so long at most in one call; a peer whose machine is gone is noticed."""
    connected.settimeout(timeout_s)
    for option, value in (
        (socket.TCP_NODELAY, 1),
        (socket.TCP_KEEPIDLE, KEEPALIVE_S),
        (socket.TCP_KEEPINTVL, KEEPALIVE_STEP_S),
        (socket.TCP_KEEPCNT, KEEPALIVES),
    ):
        connected.setsockopt(socket.IPPROTO_TCP, option, value)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def receive_greeting(connected: socket.socket, timeout_s: float) -> bytes:
    """The JSON of the other end's greeting. Raises EOFError, TimeoutError, OSError, Corrupt."""
    deadline = time.monotonic() + timeout_s
    size = wire.parse_opening(_receive(connected, wire.OPENING.size, deadline))
    return _receive(connected, size, deadline)


def _receive(connected: socket.socket, size: int, deadline: float) -> bytes:
    content = b""
    while len(content) < size:
        piece = connected.recv(size - len(content))
        if not piece:
            raise EOFError("it closed the connection")
        content += piece
        if time.monotonic() > deadline:
            raise TimeoutError("it is too slow")
    return content


def is_gone(connected: socket.socket) -> bool:
    """Whether the other end has closed the connection, or says what it should not. To be asked when
    something can be read."""
    connected.setblocking(False)
    try:
        return connected.recv(1) is not None
    except BlockingIOError:
        return False
    except OSError:
        return True


class Wake:
    """A descriptor that can be read after `ring` until `hear`. Owns it until `close`."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()

    def ring(self) -> None:
        """From any thread; never blocks for long. Safe after `close`."""
        with self._lock, suppress(BlockingIOError):
            if self.fd >= 0:
                os.eventfd_write(self.fd, 1)

    def hear(self) -> None:
        """It is quiet again."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def close(self) -> None:
        """Safe to repeat."""
        with self._lock:
            fd, self.fd = self.fd, -1
            if fd >= 0:
                os.close(fd)
