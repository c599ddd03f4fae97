"""A bad network: TCP proxies that change what passes, or end who listens."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable
from types import TracebackType


class FlippingProxy:
    """Passes bytes on to `target` (host:port) and back, and flips one bit `after_bytes` of each
    connection: of what comes back, or of what goes there (`upwards`)."""

    def __init__(self, target: str, *, after_bytes: int, upwards: bool = False) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._after_bytes = after_bytes
        self._upwards = upwards
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._open: list[socket.socket] = [self._listening]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> FlippingProxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
                far = socket.create_connection(self._target)
            except OSError:
                return
            self._open += [near, far]
            threading.Thread(
                target=self._pass, args=(near, far, self._upwards), daemon=True
            ).start()
            threading.Thread(
                target=self._pass, args=(far, near, not self._upwards), daemon=True
            ).start()

    def _pass(self, source: socket.socket, target: socket.socket, flips: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while piece := bytearray(source.recv(1 << 16)):
                at = self._after_bytes - passed
                if flips and 0 <= at < len(piece):
                    piece[at] ^= 4
                passed += len(piece)
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)


class AppendGate:
    """Stands between a control plane and NATS: when the server acknowledges an append to the log,
    `kill` is called before the word gets through. So each life of the control plane appends once
    and never learns of it. `seqs` are the positions of the last events of all appends."""

    def __init__(self, target: str, log: str, kill: Callable[[], None]) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._word = re.compile(rb'"stream":"%s","seq":(\d+)' % log.encode())
        self._kill = kill
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.seqs: list[int] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Lets nobody in any more."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
                far = socket.create_connection(self._target)
            except OSError:
                return
            for work in ((self._go, near, far), (self._come, far, near)):
                threading.Thread(target=work[0], args=work[1:], daemon=True).start()

    def _go(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                target.sendall(piece)
            target.shutdown(socket.SHUT_RDWR)

    def _come(self, source: socket.socket, target: socket.socket) -> None:
        kept = b""  # the end of what has passed: the word may come in two pieces
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                found = self._word.search(kept + piece)
                if found is not None:
                    self.seqs.append(int(found[1]))
                    self._kill()
                    break
                kept = (kept + piece)[-100:]
                target.sendall(piece)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
