"""The answering end: descriptors of this node's segments for other movers of the machine."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
import time
from typing import Final

from tensorcast.movers.transports.base import Lending, NotYet, Provider
from tensorcast.movers.transports.shm import wire
from tensorcast.schema.errors import Corrupt, NotFound, PermissionDenied, Unavailable
from tensorcast.schema.ids import ArtifactId, NodeId

CONNECTIONS_MAX: Final = 64
ARRIVAL_S: Final = 0.02
_CREDENTIALS: Final = struct.Struct("iii")
_logger = logging.getLogger(__name__)


def check_same_user(connected: socket.socket) -> None:
    """Raises PermissionDenied unless the other end is this user or root."""
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid = _CREDENTIALS.unpack(raw)[1]
    if uid not in (0, os.geteuid()):
        raise PermissionDenied(f"User {uid} is another one than that of this mover.")


class ShmServer:
    """Serves `provider`'s segments until `close`, each connection in a thread. Raises Unavailable
    when another process has the name."""

    def __init__(self, provider: Provider, cluster: str, node: NodeId) -> None:
        self._provider = provider
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._is_closed = False
        try:
            self._listening.bind(wire.name_of(cluster, node))
            self._listening.listen(CONNECTIONS_MAX)
        except OSError as error:
            self._listening.close()
            raise Unavailable(
                f"The shm socket of node {node} is taken: {error.strerror}.",
                hint="Another mover of this name runs here.",
            ) from error
        self._thread = threading.Thread(target=self._accept, name="shm-accept", daemon=True)
        self._thread.start()

    @property
    def connections(self) -> int:
        """How many are open."""
        with self._lock:
            return len(self._open)

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listening.accept()
            except OSError:  # it was closed
                return
            with self._lock:
                if self._is_closed or len(self._open) >= CONNECTIONS_MAX:
                    connected.close()
                    continue
                thread = threading.Thread(
                    target=self._serve, args=(connected,), name="shm-serve", daemon=True
                )
                self._open[connected] = thread
                thread.start()

    def _serve(self, connected: socket.socket) -> None:
        served = _Served(connected, self._provider)
        try:
            check_same_user(connected)
            served.run()
        except (OSError, EOFError):
            pass  # the peer has gone
        except (Corrupt, PermissionDenied) as error:
            _logger.warning("a connection of another mover was closed: %s", error)
        finally:
            served.close()
            connected.close()
            with self._lock:
                self._open.pop(connected, None)

    def close(self) -> None:
        """Ends all connections; when it returns, nothing is lent any more. Safe to repeat."""
        with self._lock:
            self._is_closed = True
            threads = dict(self._open)
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connected, thread in threads.items():
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
            thread.join()
        self._thread.join()


class _Served:
    """One connection, and the artifact that it reads."""

    def __init__(self, connected: socket.socket, provider: Provider) -> None:
        self._connected = connected
        self._provider = provider
        self._held = contextlib.ExitStack()
        self._lent: tuple[ArtifactId, Lending] | None = None

    def close(self) -> None:
        self._lent = None
        self._held.close()

    def run(self) -> None:
        """Until the peer closes. Raises OSError, Corrupt."""
        while packet := self._connected.recv(wire.PACKET_BYTES_MAX):
            look = wire.parse_look(packet)
            try:
                lending = self._lend(look)
            except NotYet as error:
                time.sleep(min(look.wait_s, ARRIVAL_S))
                self._answer(wire.Seen(why=error.message, is_later=True))
            except NotFound as error:
                self._answer(wire.Seen(why=error.message, is_lacking=True))
            except Unavailable as error:
                self._answer(wire.Seen(why=error.message))
            else:
                self._show(look, lending)

    def _lend(self, look: wire.Look) -> Lending:
        if self._lent is not None and self._lent[0] == look.artifact:
            return self._lent[1]
        self.close()
        with contextlib.ExitStack() as held:
            lending = held.enter_context(self._provider.lend(look.artifact))
            if not isinstance(lending.memory, memoryview) or lending.chunk_bytes < 1:
                raise Unavailable(f"Artifact {look.artifact} is not in the node's memory.")
            self._held = held.pop_all()
        self._lent = look.artifact, lending
        return lending

    def _show(self, look: wire.Look, lending: Lending) -> None:
        if lending.bell is not None and look.wait_s and len(lending.chunks()) == look.known:
            lending.bell.wait_for(lambda: len(lending.chunks()) != look.known, look.wait_s)
        total = -(-lending.layout.size_bytes // lending.chunk_bytes)
        runs = wire.runs_of(lending.chunks(), total)
        seen = wire.Seen(runs=runs, size_bytes=lending.layout.size_bytes)
        self._answer(seen, [lending.fd] if look.wants else [])

    def _answer(self, seen: wire.Seen, fds: list[int] | None = None) -> None:
        socket.send_fds(self._connected, [wire.pack(seen)], fds or [])
