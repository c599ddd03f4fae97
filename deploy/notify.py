"""What services tell their supervisor over NOTIFY_SOCKET: the protocol of systemd."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

MESSAGE_BYTES_MAX: Final = 8192
FDS_PER_MESSAGE_MAX: Final = 253  # the kernel's own limit of one message
NAME_BYTES_MAX: Final = 255


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a service."""

    ready: bool = False
    status: str | None = None
    stores: bool = False
    removes: bool = False
    name: str = "stored"


def parse_notice(data: bytes) -> Notice:
    """Read one datagram; what is unknown or malformed in it is left out."""
    pairs = (line.split("=", 1) for line in data.decode("utf-8", "replace").splitlines())
    fields = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
    return Notice(
        ready=fields.get("READY") == "1",
        status=fields.get("STATUS"),
        stores=fields.get("FDSTORE") == "1",
        removes=fields.get("FDSTOREREMOVE") == "1",
        name=_clean_name(fields.get("FDNAME", "")),
    )


def _clean_name(name: str) -> str:
    # A colon would break LISTEN_FDNAMES apart.
    good = name.isascii() and name.isprintable() and ":" not in name
    return name if good and 0 < len(name) <= NAME_BYTES_MAX else "stored"


class NotifySocket:
    """The socket of one service. A context of its own, so the sender is known. Owns its path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(path))
        os.chmod(path, 0o600)

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._socket.fileno()

    def receive(self) -> Iterator[tuple[Notice, list[int]]]:
        """All waiting messages with their descriptors, which are the caller's to close."""
        while True:
            try:
                data, descriptors = self._receive_one()
            except BlockingIOError:
                return
            yield parse_notice(data), descriptors

    def _receive_one(self) -> tuple[bytes, list[int]]:
        room = socket.CMSG_SPACE(FDS_PER_MESSAGE_MAX * array.array("i").itemsize)
        data, ancillary, _, _ = self._socket.recvmsg(
            MESSAGE_BYTES_MAX, room, socket.MSG_CMSG_CLOEXEC
        )
        descriptors = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = len(payload) - len(payload) % descriptors.itemsize
                descriptors.frombytes(payload[:whole])
        return data, list(descriptors)

    def close(self) -> None:
        """Close and remove the socket."""
        self._socket.close()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
