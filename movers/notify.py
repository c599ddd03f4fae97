"""What the mover tells its supervisor, and the descriptors that the supervisor keeps for it.

The protocol is systemd's (sd_notify, file descriptor store). Without NOTIFY_SOCKET everything
here does nothing, so a mover runs as well from a shell; its memory then dies with it.
"""

from __future__ import annotations

import array
import logging
import os
import socket
import time
from collections.abc import Mapping, MutableMapping
from typing import Final

FIRST_DESCRIPTOR: Final = 3
STATUS_CHARS_MAX: Final = 500
SEND_TRIES_MAX: Final = 50
SEND_PAUSE_S: Final = 0.02

_logger = logging.getLogger(__name__)


def adopt_descriptors(environ: MutableMapping[str, str], pid: int) -> dict[str, int]:
    """The kept descriptors that this process was started with, by name; they are the caller's
    to close. Removes their announcement from `environ`, so that no child takes them too."""
    announced = {name: environ.pop(name, "") for name in _LISTEN}
    if announced["LISTEN_PID"] != str(pid) or not announced["LISTEN_FDS"].isdigit():
        return {}
    count = int(announced["LISTEN_FDS"])
    names = announced["LISTEN_FDNAMES"].split(":") if announced["LISTEN_FDNAMES"] else []
    adopted: dict[str, int] = {}
    for place in range(count):
        descriptor = FIRST_DESCRIPTOR + place
        name = names[place] if place < len(names) else f"unnamed-{place}"
        if name in adopted:
            os.close(descriptor)
            continue
        os.set_inheritable(descriptor, False)
        adopted[name] = descriptor
    return adopted


_LISTEN: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


class Notifier:
    """The way to the supervisor; also the `DescriptorStore` of the segment pool. Owns a socket.

    Safe to use from any thread. A supervisor that does not listen is logged, never an error.
    """

    def __init__(self, address: str | None) -> None:
        self._socket: socket.socket | None = None
        if not address:
            return
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Notifier:
        """The notifier that NOTIFY_SOCKET names, or one that does nothing."""
        return cls(environ.get("NOTIFY_SOCKET"))

    @property
    def is_connected(self) -> bool:
        """Whether there is a supervisor at all."""
        return self._socket is not None

    def ready(self, status: str) -> None:
        """The mover serves."""
        self._send(f"READY=1\nSTATUS={_one_line(status)}")

    def status(self, status: str) -> None:
        """What the mover is doing, in words."""
        self._send(f"STATUS={_one_line(status)}", tries_max=1)

    def stopping(self, status: str) -> None:
        """The mover stops in good order."""
        self._send(f"STOPPING=1\nSTATUS={_one_line(status)}")

    def keep(self, name: str, fd: int) -> None:
        """Asks the supervisor to keep a copy of a descriptor. The copy is on its way when this
        returns, so a crash of the mover right after cannot lose it."""
        self._send(f"FDSTORE=1\nFDNAME={name}", fd)

    def forget(self, name: str) -> None:
        """Asks the supervisor to close what it keeps under this name."""
        self._send(f"FDSTOREREMOVE=1\nFDNAME={name}")

    def close(self) -> None:
        """Safe to repeat."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(
        self, text: str, descriptor: int | None = None, tries_max: int = SEND_TRIES_MAX
    ) -> None:
        if self._socket is None:
            return
        rights = [] if descriptor is None else [_rights(descriptor)]
        for _ in range(tries_max):
            try:
                self._socket.sendmsg([text.encode()], rights, 0, self._address)
                return
            except BlockingIOError:  # its queue is full: it reads it soon
                time.sleep(SEND_PAUSE_S)
            except OSError as error:
                _logger.warning("the supervisor cannot be told %r: %s", text, error)
                return
        _logger.warning("the supervisor does not read its messages")


def _rights(descriptor: int) -> tuple[int, int, array.array[int]]:
    return socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor])


def _one_line(status: str) -> str:
    return " ".join(status.split())[:STATUS_CHARS_MAX]
