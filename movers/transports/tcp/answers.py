"""Answers to the requests of one connection: the parts of ranges, with `sendfile`.

Only chunks that may be served are sent, and the next one is waited for as long as the request says.
An artifact is held until its reader has taken all parts, because `sendfile` leaves the pages
themselves in the socket.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Iterator
from typing import Final

from tensorcast.movers.core.streams import Path, choose_congestion
from tensorcast.movers.transports.base import Lending, NotYet, Provider
from tensorcast.movers.transports.tcp import wire
from tensorcast.movers.transports.tcp.info import read_info
from tensorcast.movers.transports.tcp.sockets import (
    congestion_of,
    deadline_for,
    is_on_this_host,
    send,
    send_file,
    set_congestion,
    window_bytes_max,
)
from tensorcast.schema.chunks import ByteRange, ChunkSet
from tensorcast.schema.errors import Corrupt, NotFound
from tensorcast.schema.ids import ArtifactId

LOOK_S: Final = 0.25
"""So often a thread that waits for a chunk looks whether anybody still wants it."""

ARRIVAL_S: Final = 0.02
"""So often a thread looks for an artifact that is on its way."""

STEP_BYTES: Final = 4 << 20
"""So many bytes are sent between two looks at the connection."""

ADAPT_S: Final = 0.5
"""So often the congestion control is thought over."""

_ZEROS = bytes(1 << 20)


class Answers:
    """Answers one connection's requests, and owns what is lent for them. A context: at its end
    everything is given back. Blocking; raises OSError, EOFError or TimeoutError when the peer
    is lost or the server closes."""

    def __init__(
        self,
        connected: socket.socket,
        provider: Provider,
        stall_s: float,
        closing: threading.Event,
    ) -> None:
        self._socket = connected
        self._provider = provider
        self._stall_s = stall_s
        self._closing = closing
        self._is_local = is_on_this_host(connected)
        self._adapts_at = 0.0
        self._held = contextlib.ExitStack()
        self._lending: tuple[ArtifactId, Lending] | None = None

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Gives back what was lent for the last request. Safe to repeat."""
        self._lending = None
        self._held.close()

    def answer(self, request: wire.Request) -> None:
        """Sends all parts of all ranges. Raises also Corrupt for a replica that makes no sense."""
        try:
            lending = self._lend(request)
        except NotYet:
            self._refuse(request, wire.pack_part(wire.Status.MISSING, 0, ChunkSet()))
        except NotFound:
            self._refuse(request, wire.pack_part(wire.Status.NOT_FOUND, 0))
        else:
            for wanted in request.ranges:
                self._send_range(lending, wanted, request.wait_s)

    def _refuse(self, request: wire.Request, part: bytes) -> None:
        send(self._socket, part * len(request.ranges))

    def _lend(self, request: wire.Request) -> Lending:
        """The artifact, for which it may wait. Raises NotFound or NotYet."""
        if self._lending is not None and self._lending[0] == request.artifact:
            return self._lending[1]
        self.release()
        lending = self._held.enter_context(self._await_artifact(request))
        if lending.fd < 0:
            self.release()
            raise NotFound(f"Artifact {request.artifact} is in the memory of a GPU only.")
        if lending.chunk_bytes < 1:
            raise Corrupt(f"Artifact {request.artifact} has chunks of {lending.chunk_bytes} bytes.")
        self._lending = (request.artifact, lending)
        return lending

    @contextlib.contextmanager
    def _await_artifact(self, request: wire.Request) -> Iterator[Lending]:
        deadline = time.monotonic() + request.wait_s
        with contextlib.ExitStack() as lent:
            while True:
                try:
                    lending = lent.enter_context(self._provider.lend(request.artifact))
                except NotYet:
                    if time.monotonic() >= deadline:
                        raise
                    self._check_wanted(ARRIVAL_S)
                else:
                    break
            yield lending

    def _send_range(self, lending: Lending, wanted: ByteRange, wait_s: float) -> None:
        if wanted.size < 1 or wanted.end > lending.layout.size_bytes:
            send(self._socket, wire.pack_part(wire.Status.INVALID, 0))
            return
        left = wanted
        while left.size:
            chunks = self._await_chunk(lending, left.offset // lending.chunk_bytes, wait_s)
            size = servable_bytes(chunks, lending.chunk_bytes, left)
            self._send_part(lending, chunks, ByteRange(left.offset, size), size == left.size)
            if not size:
                return
            left = ByteRange(left.offset + size, left.size - size)

    def _await_chunk(self, lending: Lending, chunk: int, wait_s: float) -> ChunkSet:
        """The chunks that may be served, as soon as this one is among them, or too late. Raises
        EOFError when the server closes: it must not say that chunks are missing."""
        chunks = lending.chunks()
        if chunk in chunks or lending.bell is None:
            return chunks
        deadline = time.monotonic() + wait_s
        while (left_s := deadline - time.monotonic()) > 0:
            if lending.wait_for(chunk, min(left_s, LOOK_S)):
                break
            self._check_wanted(0)
        return lending.chunks()

    def _check_wanted(self, wait_s: float) -> None:
        """Raises EOFError when the server closes or the peer has gone."""
        if self._closing.wait(wait_s):
            raise EOFError("The server closes.")
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        if poll.poll(0):
            raise EOFError("The peer has gone.")

    def _send_part(
        self, lending: Lending, chunks: ChunkSet, part: ByteRange, is_last: bool
    ) -> None:
        total = -(-lending.layout.size_bytes // lending.chunk_bytes)
        holds = chunks if len(chunks) < total else None
        status = wire.Status.OK if is_last else wire.Status.MORE
        if not part.size:
            status = wire.Status.MISSING
        send(self._socket, wire.pack_part(status, part.size, holds), more=part.size > 0)
        for at in range(part.offset, part.offset + part.size, STEP_BYTES):
            size = min(STEP_BYTES, part.offset + part.size - at)
            self._send_bytes(lending, ByteRange(at, size))
            self._adapt()

    def _send_bytes(self, lending: Lending, wanted: ByteRange) -> None:
        deadline = deadline_for(wanted.size, self._stall_s)
        for piece in lending.layout.locate(wanted):
            if piece.position is None:
                _send_zeros(self._socket, piece.size)
            else:
                send_file(self._socket, lending.fd, piece.position, piece.size, deadline)

    def _adapt(self) -> None:
        """Now and then changes the congestion control to one that suits the path."""
        now = time.monotonic()
        if self._is_local or now < self._adapts_at:
            return
        self._adapts_at = now + ADAPT_S
        info = read_info(self._socket)
        path = Path(
            rtt_s=info.rtt_s,
            least_rtt_s=info.least_rtt_s,
            loss=info.resent,
            window_bytes=window_bytes_max(),
            is_local=False,
        )
        present = congestion_of(self._socket)
        suited = choose_congestion(path, present)
        if suited != present:
            set_congestion(self._socket, suited)


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
