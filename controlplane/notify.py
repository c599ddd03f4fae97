"""What the control plane tells its supervisor, in systemd's words (sd_notify)."""

from __future__ import annotations

import logging
import socket

STATUS_CHARS_MAX = 500
_logger = logging.getLogger(__name__)


class Supervisor:
    """The way to the supervisor; says nothing to anybody when there is none. Owns a socket."""

    def __init__(self, address: str | None) -> None:
        self._socket: socket.socket | None = None
        if address:
            self._address = "\0" + address[1:] if address.startswith("@") else address
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    def tell(self, *, status: str, state: str | None = None) -> None:
        """Sends a status in one line of words and, if given, a state such as `READY=1`. A
        supervisor that does not listen is never an error."""
        line = "STATUS=" + " ".join(status.split())[:STATUS_CHARS_MAX]
        if self._socket is None:
            return
        try:
            text = line if state is None else f"{state}\n{line}"
            self._socket.sendto(text.encode(), self._address)
        except OSError as error:
            _logger.warning("the supervisor cannot be told %r: %s", line, error)

    def close(self) -> None:
        """Safe to repeat."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
