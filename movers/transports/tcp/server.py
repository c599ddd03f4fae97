"""Serves this node's replicas to the movers of other nodes.

One thread for each connection: requests are answered in order, with `sendfile`. The bytes of a
range are only sent for chunks that may be served, and an artifact is held until its reader has
taken all answers, because `sendfile` leaves the pages themselves in the socket.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
import time

import msgspec

from tensorcast.movers.transports.base import Lending, NotYet, Provider
from tensorcast.movers.transports.tcp import wire
from tensorcast.movers.transports.tcp.sockets import (
    deadline_for,
    format_address,
    limit_calls,
    listen_on,
    receive,
    send,
    send_file,
    shut_down,
    tune,
)
from tensorcast.schema.chunks import ByteRange, ChunkSet
from tensorcast.schema.errors import (
    Corrupt,
    NotFound,
    PermissionDenied,
    TensorCastError,
    Unavailable,
)
from tensorcast.schema.ids import ArtifactId, NodeId

_ZEROS = bytes(1 << 20)
_POLL_S = 0.004
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
    are closed at once). Raises Unavailable when the address cannot be used.
    """

    def __init__(
        self,
        listen: str,
        provider: Provider,
        cluster: str,
        node: NodeId,
        limits: ServerLimits = ServerLimits(),  # noqa: B008  (a frozen value)
    ) -> None:
        self._provider = provider
        self._cluster = cluster
        self._node = node
        self._limits = limits
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
        self._greet(connected)
        limit_calls(connected, limits.stall_s)
        with _Holder(self._provider) as holder:
            while (request := self._next_request(connected, holder)) is not None:
                if request.ranges:
                    self._answer(connected, holder, request)
                else:
                    holder.release()

    def _greet(self, connected: socket.socket) -> None:
        """Checks who calls, and answers. Raises Corrupt, PermissionDenied."""
        deadline = time.monotonic() + self._limits.request_s
        size = wire.parse_opening_head(receive(connected, wire.OPENING.size, deadline))
        hello = wire.parse_hello(receive(connected, size, deadline))
        refusal = ""
        if hello.cluster != self._cluster:
            refusal = f"Node {self._node} belongs to another cluster than {hello.node}."
        elif hello.peer != self._node:
            refusal = f"This is node {self._node}, not {hello.peer}."
        send(connected, wire.pack_opening(wire.Welcome(node=self._node, refusal=refusal)))
        if refusal:
            raise PermissionDenied(refusal)

    def _next_request(self, connected: socket.socket, holder: _Holder) -> wire.Request | None:
        """The next request; None when the peer is done or idle for too long. Raises Corrupt."""
        if not _readable(connected, self._limits.hold_s):
            holder.release()
            if not _readable(connected, self._limits.idle_s):
                return None
        deadline = time.monotonic() + self._limits.request_s
        first = connected.recv(1)
        if not first:
            return None
        head = wire.parse_request_head(first + receive(connected, wire.REQUEST.size - 1, deadline))
        return wire.parse_request(head, receive(connected, head.rest_bytes, deadline))

    def _answer(self, connected: socket.socket, holder: _Holder, request: wire.Request) -> None:
        try:
            lending = self._lend(holder, request)
        except (NotFound, NotYet) as error:
            nothing = wire.pack_answer(wire.Status.NOT_FOUND, 0)
            if isinstance(error, NotYet):
                nothing = wire.pack_answer(wire.Status.MISSING, 0, ChunkSet())
            for _ in request.ranges:
                send(connected, nothing)
            return
        wait_s = request.wait_s
        for wanted in request.ranges:
            if wanted.size < 1 or wanted.end > lending.layout.size_bytes:
                send(connected, wire.pack_answer(wire.Status.INVALID, 0))
                continue
            chunks = self._wait_for(lending, wanted, wait_s)
            wait_s = 0.0
            _send_range(connected, lending, chunks, wanted, self._limits.stall_s)

    def _lend(self, holder: _Holder, request: wire.Request) -> Lending:
        """The artifact, for which it may wait. Raises NotFound, NotYet, or EOFError when the
        server closes."""
        deadline = time.monotonic() + request.wait_s
        while True:
            try:
                return holder.lend(request.artifact)
            except NotYet:
                if time.monotonic() >= deadline:
                    raise
            if self._closing.wait(_POLL_S):
                raise EOFError("The server closes.")

    def _wait_for(self, lending: Lending, wanted: ByteRange, wait_s: float) -> ChunkSet:
        """The chunks that may be served, as soon as the first wanted one is among them. Raises
        EOFError when the server closes: it must not say that chunks are missing."""
        deadline = time.monotonic() + wait_s
        first = wanted.offset // lending.chunk_bytes
        chunks = lending.chunks()
        while first not in chunks and time.monotonic() < deadline:
            if self._closing.wait(_POLL_S):
                raise EOFError("The server closes.")
            chunks = lending.chunks()
        return chunks


def _send_range(
    connected: socket.socket,
    lending: Lending,
    chunks: ChunkSet,
    wanted: ByteRange,
    stall_s: float,
) -> None:
    """Sends as much of a range as may be served, from its beginning on."""
    size = servable_bytes(chunks, lending.chunk_bytes, wanted)
    total = -(-lending.layout.size_bytes // lending.chunk_bytes)
    holds = chunks if len(chunks) < total else None
    status = wire.Status.OK if size == wanted.size else wire.Status.MISSING
    send(connected, wire.pack_answer(status, size, holds), more=size > 0)
    deadline = deadline_for(size, stall_s)
    for piece in lending.layout.locate(ByteRange(wanted.offset, size)):
        if piece.position is None:
            _send_zeros(connected, piece.size)
        else:
            send_file(connected, lending.fd, piece.position, piece.size, deadline)


def servable_bytes(chunks: ChunkSet, chunk_bytes: int, wanted: ByteRange) -> int:
    """How many bytes from the beginning of a range lie in `chunks`."""
    first = wanted.offset // chunk_bytes
    stop = next((b for a, b in chunks.ranges if a <= first < b), first)
    return max(0, min(wanted.end, stop * chunk_bytes) - wanted.offset)


def _send_zeros(connected: socket.socket, size: int) -> None:
    while size:
        part = min(size, len(_ZEROS))
        send(connected, _ZEROS[:part])
        size -= part


def _readable(connected: socket.socket, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(connected, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


class _Holder:
    """Keeps the artifact of a connection's last request until it asks for another one."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._held = contextlib.ExitStack()
        self._lending: tuple[ArtifactId, Lending] | None = None

    def lend(self, artifact: ArtifactId) -> Lending:
        """Raises NotFound, NotYet, or Corrupt for a replica whose layout makes no sense."""
        if self._lending is not None and self._lending[0] == artifact:
            return self._lending[1]
        self.release()
        lending = self._held.enter_context(self._provider.lend(artifact))
        if lending.chunk_bytes < 1:
            raise Corrupt(f"Artifact {artifact} has chunks of {lending.chunk_bytes} bytes.")
        self._lending = (artifact, lending)
        return lending

    def release(self) -> None:
        self._lending = None
        self._held.close()

    def __enter__(self) -> _Holder:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
