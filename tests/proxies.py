"""A bad network: TCP proxies that change what passes."""

from __future__ import annotations

import contextlib
import socket
import threading
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
