"""A connection that can be cut and slowed down: a TCP proxy in between.

While it is cut nothing passes and nobody is told; what was sent meanwhile comes when it is mended,
as TCP would repeat it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

PIECE_BYTES = 1 << 16
POLL_S = 0.01


class Wire:
    """From a port of its own to a port of loopback."""

    def __init__(self, target: int) -> None:
        self.is_cut = False
        self.delay_s = 0.0
        self._target = target
        self._closing = False
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def mend(self) -> None:
        """Everything passes at once again."""
        self.is_cut, self.delay_s = False, 0.0

    def close(self) -> None:
        self._closing = True
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._wait()
        try:
            far = socket.create_connection(("127.0.0.1", self._target), timeout=5)
        except OSError:
            near.close()
            return
        for one in (near, far):
            one.settimeout(None)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=self._pass, args=(near, far), daemon=True).start()
        self._pass(far, near)

    def _wait(self) -> None:
        while self.is_cut and not self._closing:
            time.sleep(POLL_S)

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                if self.delay_s:
                    time.sleep(self.delay_s)
                self._wait()
                target.sendall(piece)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            if self._closing:
                one.close()
