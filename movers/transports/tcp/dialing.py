"""Opening connections to a peer's server, again and again if it must be."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from tensorcast.movers.transports.tcp import wire
from tensorcast.movers.transports.tcp.sockets import parse_address, receive, send, tune
from tensorcast.schema.errors import Corrupt, PermissionDenied, Unavailable
from tensorcast.schema.ids import NodeId
from tensorcast.schema.tickets import Challenge

REDIAL_S: Final = 1.0
"""So long a connection may take to open in place of one that was lost: the kernel repeats its
packets ever more slowly, a new attempt goes out at once."""

REST_S: Final = 0.1


class ClientLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`streams`: connections of a channel; None: as many as help. `connect_s`: for a connection to
    open, and twice that for its greeting. `quiet_s`: a connection that
    brings nothing for so long while something is owed is replaced by a new one. `stall_s`: a peer
    that sends nothing for so long is lost. `verify`: each chunk is checked against its digest when
    it arrives; without it, damage goes unseen."""

    streams: int | None = None
    connect_s: float = 5.0
    quiet_s: float = 2.0
    stall_s: float = 10.0
    verify: bool = True

    @property
    def patience_s(self) -> float:
        """How long one receive may bring nothing."""
        return min(self.quiet_s, self.stall_s)


class Dialer:
    """Opens the connections of one channel. Safe in any thread. `life` is what the server's first
    greeting said: another life of it is another peer. `sign` makes the ticket that answers a
    challenge."""

    def __init__(
        self,
        peer: NodeId,
        address: str,
        hello: wire.Hello,
        limits: ClientLimits,
        sign: Callable[[Challenge], bytes] | None = None,
    ) -> None:
        self.peer = peer
        self._address = address
        self._hello = hello
        self._limits = limits
        self._sign = sign
        self._life: str | None = None
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ends `redial` soon: what has been opened is closed."""
        self._stopping.set()

    def dial(self) -> socket.socket:
        """Connects and greets. Raises Unavailable or PermissionDenied."""
        try:
            return self._open(self._limits.connect_s)
        except (EOFError, OSError, Corrupt) as error:
            raise self._unreachable("cannot be reached", error) from error

    def redial(self, until: float) -> socket.socket:
        """A connection in place of one that fell silent, as soon as there is a way to the peer
        again, but not after `until` (monotonic). Raises Unavailable at once when the peer's port
        is closed."""
        while True:
            try:
                return self._open(min(REDIAL_S, self._limits.connect_s))
            except ConnectionRefusedError as error:
                raise self._unreachable("has gone", error) from error
            except Corrupt as error:
                raise self._unreachable("cannot go on", error) from error
            except (EOFError, OSError) as error:
                if time.monotonic() >= until or self._stopping.wait(REST_S):
                    raise self._unreachable("cannot be reached", error) from error

    def _open(self, connect_s: float) -> socket.socket:
        connected = socket.create_connection(parse_address(self._address), connect_s)
        with contextlib.ExitStack() as opened:
            opened.callback(connected.close)
            tune(connected, 2 * connect_s)
            self._greet(connected, 2 * connect_s)
            tune(connected, self._limits.patience_s)
            if self._stopping.is_set():
                raise self._unreachable("is not needed", "the channel is closed")
            opened.pop_all()
        return connected

    def _greet(self, connected: socket.socket, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        send(connected, wire.pack_opening(self._hello))
        welcome = self._receive_welcome(connected, deadline)
        if welcome.challenge is not None:
            if self._sign is None:
                raise PermissionDenied(
                    f"Node {self.peer} asks for a ticket, and nothing here signs one.",
                    node=self.peer,
                )
            send(connected, wire.pack_ticket(self._sign(welcome.challenge)))
            welcome = self._receive_welcome(connected, deadline)
        if self._life not in (None, welcome.life):
            raise self._unreachable("cannot go on", "it was started anew")
        self._life = welcome.life

    def _receive_welcome(self, connected: socket.socket, deadline: float) -> wire.Welcome:
        size = wire.parse_opening_head(receive(connected, wire.OPENING.size, deadline))
        welcome = wire.parse_welcome(receive(connected, size, deadline))
        if welcome.refusal and welcome.may_pass:
            raise Unavailable(welcome.refusal, node=self.peer)
        if welcome.refusal:
            raise PermissionDenied(welcome.refusal, node=self.peer)
        return welcome

    def _unreachable(self, what: str, why: object) -> Unavailable:
        return Unavailable(f"Node {self.peer} at {self._address} {what}: {why}.", node=self.peer)
