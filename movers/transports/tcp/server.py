"""Serves this node's replicas to the movers of other nodes.

One thread for each connection, which reads requests and has them answered in order
(`answers.py`). What a peer can make it hold is bounded: so many connections, one request of each,
one artifact that is lent to each, and what its socket takes.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping

import msgspec

from tensorcast.movers.transports.base import Door, Provider
from tensorcast.movers.transports.tcp import wire
from tensorcast.movers.transports.tcp.answers import Answers
from tensorcast.movers.transports.tcp.sockets import (
    format_address,
    limit_calls,
    listen_on,
    readable,
    receive,
    send,
    shut_down,
    tune,
)
from tensorcast.schema.errors import Corrupt, PermissionDenied, TensorCastError, Unavailable
from tensorcast.schema.ids import ArtifactId, NodeId
from tensorcast.schema.tickets import PASSING, Challenge, Refusal, Ticket, TicketRefused

Guest = Callable[[socket.socket], None]
"""Serves a connection that nothing was read from; the server closes it. Raises as `_serve`."""

_log = logging.getLogger(__name__)


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """A greeting or request must come within `request_s`; `stall_s` is how long a reader may take
    nothing; a connection without a request is closed after `idle_s` and lets its artifact go after
    `hold_s`."""

    connections_max: int = 256
    request_s: float = 10.0
    stall_s: float = 20.0
    idle_s: float = 600.0
    hold_s: float = 5.0


class TcpServer:
    """Listens on `listen` (host:port, port 0: any free one) from construction until `close`.

    Owns an accepting thread and one thread for each connection (at most `connections_max`; more
    are closed at once). Who opens with the magic of one of the `guests` (as long as the pull
    protocol's) is served by that guest. Without a `door` nobody needs a ticket. Raises Unavailable
    when the address cannot be used.
    """

    def __init__(
        self,
        listen: str,
        provider: Provider,
        cluster: str,
        node: NodeId,
        limits: ServerLimits = ServerLimits(),  # noqa: B008  (a frozen value)
        guests: Mapping[bytes, Guest] | None = None,
        door: Door | None = None,
    ) -> None:
        self._provider = provider
        self._door = door
        self._guests = dict(guests or {})
        self._cluster = cluster
        self._node = node
        self._limits = limits
        self._life = uuid.uuid4().hex
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._open: dict[threading.Thread, socket.socket] = {}
        try:
            self._listening = listen_on(listen, limits.connections_max)
        except OSError as error:
            raise Unavailable(
                f"Cannot listen on {listen}: {error.strerror}.",
                hint="Choose another address in TENSORCAST_DATA_LISTEN.",
            ) from error
        self._accepting = threading.Thread(target=self._accept, name="tcp-accept", daemon=True)
        self._accepting.start()

    @property
    def address(self) -> str:
        """Where it listens: host:port, [host]:port for IPv6."""
        host, port = self._listening.getsockname()[:2]
        return format_address(host, port)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._open)

    def close(self) -> None:
        """Ends all connections and threads; blocks for a moment. Safe to repeat."""
        self._closing.set()
        shut_down(self._listening)
        self._accepting.join()
        self._listening.close()
        with self._lock:
            threads = list(self._open)
            for connected in self._open.values():
                shut_down(connected)
        for thread in threads:
            thread.join()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connected, _ = self._listening.accept()
            except OSError:
                # Closing, or out of descriptors: then wait until some connection has ended.
                self._closing.wait(0.1)
                continue
            self._start(connected)

    def _start(self, connected: socket.socket) -> None:
        thread = threading.Thread(
            target=self._run, args=(connected,), name="tcp-serve", daemon=True
        )
        with self._lock:
            is_full = len(self._open) >= self._limits.connections_max
            if not is_full and not self._closing.is_set():
                self._open[thread] = connected
                thread.start()
                return
        _log.warning("closed a connection: %d are open already", len(self._open))
        connected.close()

    def _run(self, connected: socket.socket) -> None:
        try:
            with connected:
                tune(connected, self._limits.stall_s)
                self._serve(connected)
        except (EOFError, OSError) as error:
            _log.debug("a peer's connection ended: %s", error)
        except TensorCastError as error:
            _log.warning("a peer's connection was closed: %s", error)
        finally:
            with self._lock:
                del self._open[threading.current_thread()]

    def _serve(self, connected: socket.socket) -> None:
        limits = self._limits
        limit_calls(connected, limits.request_s)
        magic = connected.recv(len(wire.MAGIC), socket.MSG_PEEK | socket.MSG_WAITALL)
        if magic in self._guests:
            self._guests[magic](connected)
            return
        admitted = self._greet(connected)
        limit_calls(connected, limits.stall_s)
        with Answers(connected, self._provider, limits.stall_s, self._closing) as answers:
            while (request := self._next_request(connected, answers)) is not None:
                if request.ranges:
                    self._check(admitted, request.artifact, connected)
                    answers.answer(request)
                else:
                    answers.release()

    def _greet(self, connected: socket.socket) -> Ticket | None:
        """Checks who calls, and answers; the ticket, if one was needed. Raises Corrupt,
        PermissionDenied."""
        deadline = time.monotonic() + self._limits.request_s
        size = wire.parse_opening_head(receive(connected, wire.OPENING.size, deadline))
        hello = wire.parse_hello(receive(connected, size, deadline))
        refusal = ""
        if hello.cluster != self._cluster:
            refusal = f"Node {self._node} belongs to another cluster than {hello.node}."
        elif hello.peer != self._node:
            refusal = f"This is node {self._node}, not {hello.peer}."
        challenge = self._door.challenge(hello.node) if self._door and not refusal else None
        welcome = wire.Welcome(
            node=self._node, life=self._life, refusal=refusal, challenge=challenge
        )
        send(connected, wire.pack_opening(welcome))
        if refusal:
            raise PermissionDenied(refusal)
        if self._door is None or challenge is None:
            return None
        return self._admit(connected, self._door, hello.node, challenge)

    def _admit(
        self, connected: socket.socket, door: Door, caller: NodeId, challenge: Challenge
    ) -> Ticket:
        """The ticket that answers a challenge. Raises TicketRefused, which the caller is told."""
        host = connected.getpeername()[0]
        deadline = time.monotonic() + self._limits.request_s
        try:
            try:
                size = wire.parse_opening_head(receive(connected, wire.OPENING.size, deadline))
            except Corrupt as error:  # a release that knows no tickets goes on with its request
                raise door.refuse(Refusal.MISSING, caller, host) from error
            ticket = door.admit(receive(connected, size, deadline), challenge, host)
            if ticket.node != caller:
                raise door.refuse(Refusal.FOREIGN, caller, host)
        except TicketRefused as refused:
            may_pass = refused.refusal in PASSING
            sentence = str(refused)
            self._say(connected, wire.Welcome(node=self._node, refusal=sentence, may_pass=may_pass))
            raise
        self._say(connected, wire.Welcome(node=self._node, life=self._life))
        return ticket

    def _say(self, connected: socket.socket, welcome: wire.Welcome) -> None:
        send(connected, wire.pack_opening(welcome))

    def _check(self, ticket: Ticket | None, artifact: ArtifactId, connected: socket.socket) -> None:
        """Raises TicketRefused for another artifact than the ticket names."""
        if self._door is not None and ticket is not None and artifact != ticket.what:
            raise self._door.refuse(Refusal.FOREIGN, ticket.node, connected.getpeername()[0])

    def _next_request(self, connected: socket.socket, answers: Answers) -> wire.Request | None:
        """The next request; None when the peer is done or idle for too long. Raises Corrupt."""
        if not readable(connected, self._limits.hold_s):
            answers.release()
            if not readable(connected, self._limits.idle_s):
                return None
        deadline = time.monotonic() + self._limits.request_s
        first = connected.recv(1)
        if not first:
            return None
        head = wire.parse_request_head(first + receive(connected, wire.REQUEST.size - 1, deadline))
        return wire.parse_request(head, receive(connected, head.rest_bytes, deadline))
