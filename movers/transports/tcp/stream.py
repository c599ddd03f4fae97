"""One connection of a channel: asks for pulls, fills memory, checks each chunk as it arrives.

Blocking, made for a thread of its own. A second request is on its way while the first one is
answered, so the peer never waits for us.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import xxhash

from tensorcast.movers.core.transfer import Completion
from tensorcast.movers.pages import prefault
from tensorcast.movers.transports.tcp import wire
from tensorcast.movers.transports.tcp.asked import Asked
from tensorcast.movers.transports.tcp.sockets import (
    PIECE_BYTES,
    deadline_for,
    parse_address,
    readable,
    receive,
    receive_into,
    send,
    shut_down,
    tune,
)
from tensorcast.movers.transports.tcp.work import Posted, Work
from tensorcast.schema.errors import Corrupt, PermissionDenied, Unavailable
from tensorcast.schema.ids import NodeId

_REQUESTS_MAX = 2
"""Requests of one connection that are not answered yet."""

_REST_S = 0.05
"""A connection without work for so long tells the peer to let the artifact go."""

PROGRESS_S = 0.004
"""A connection tells of the chunks of a pull at most so often, unless it has to wait for more."""

Deliver = Callable[[Sequence[Completion]], None]


class ClientLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`stall_s`: a peer that sends nothing for so long while it owes something is lost. `verify`:
    each chunk is checked against its digest when it arrives; without it, damage goes unseen."""

    streams: int = 2
    connect_s: float = 5.0
    stall_s: float = 10.0
    verify: bool = True


def open_stream(
    peer: NodeId, address: str, hello: wire.Hello, limits: ClientLimits
) -> socket.socket:
    """Connects and greets. Raises Unavailable or PermissionDenied."""
    try:
        connected = socket.create_connection(parse_address(address), limits.connect_s)
    except OSError as error:
        raise Unavailable(
            f"Node {peer} at {address} cannot be reached: {error}.", node=peer
        ) from error
    try:
        tune(connected, limits.connect_s)
        _greet(connected, peer, hello, limits)
        tune(connected, limits.stall_s)
        return connected
    except (EOFError, OSError, Corrupt) as error:
        connected.close()
        raise Unavailable(
            f"Node {peer} at {address} does not greet back: {error}", node=peer
        ) from error
    except BaseException:
        connected.close()
        raise


def _greet(connected: socket.socket, peer: NodeId, hello: wire.Hello, limits: ClientLimits) -> None:
    deadline = time.monotonic() + limits.connect_s
    send(connected, wire.pack_opening(hello))
    size = wire.parse_opening_head(receive(connected, wire.OPENING.size, deadline))
    welcome = wire.parse_welcome(receive(connected, size, deadline))
    if welcome.refusal:
        raise PermissionDenied(welcome.refusal, node=peer)


class Stream:
    """Serves a channel's work over one connection, which it owns."""

    def __init__(
        self, connected: socket.socket, work: Work, deliver: Deliver, limits: ClientLimits
    ) -> None:
        self._socket = connected
        self._work = work
        self._deliver = deliver
        self._limits = limits
        self._asked: deque[Asked] = deque()
        self._requests: deque[int] = deque()
        self._told_at = 0.0
        self._is_holding = False

    def run(self) -> None:
        """Works until the queue is closed or the peer is lost; then what was asked for on this
        connection has completed as Broken. Never raises for what a peer does."""
        try:
            with self._socket:
                while self._ask():
                    self._receive_next()
        except (EOFError, OSError, Corrupt) as error:
            self._break_asked(str(error) or type(error).__name__)
        finally:
            # No view of the target may outlive the stream: its segment could not be closed.
            self._asked.clear()

    def interrupt(self) -> None:
        """Wakes `run` from another thread: it ends at once."""
        shut_down(self._socket)

    def _ask(self) -> bool:
        """Keeps requests on their way; waits for work when nothing is asked. False: no more."""
        while self._may_ask():
            batch = self._work.take(self._patience())
            if batch is None:
                return False
            if batch:
                self._request(batch)
            elif self._asked:
                return True
            elif self._is_holding:
                send(self._socket, wire.RELEASE)
                self._is_holding = False
        return True

    def _may_ask(self) -> bool:
        """A pull that may have to wait at the peer would hold up what is asked after it."""
        is_waiting = any(asked.pull.wait_s and not asked.has_begun for asked in self._asked)
        return len(self._requests) < _REQUESTS_MAX and not is_waiting

    def _patience(self) -> float | None:
        if self._asked:
            return 0.0
        return _REST_S if self._is_holding else None

    def _request(self, batch: tuple[Posted, ...]) -> None:
        self._asked.extend(Asked(posted) for posted in batch)
        self._requests.append(len(batch))
        self._is_holding = True
        first = batch[0].pull
        ranges = tuple(posted.pull.source_range for posted in batch)
        request = wire.Request(artifact=first.artifact, ranges=ranges, wait_s=first.wait_s)
        send(self._socket, wire.pack_request(request))

    def _receive_next(self) -> None:
        """Reads one part of the answer to the oldest pull, and tells what came of it. Raises
        EOFError, OSError or Corrupt when the peer is lost or speaks nonsense."""
        asked = self._asked[0]
        part = self._receive_head(asked)
        asked.has_begun = True
        self._receive_chunks(asked, part.size_bytes)
        if part.status is not wire.Status.MORE:
            self._end(asked, part.status)
        elif not readable(self._socket, 0):
            self._tell(asked)

    def _receive_head(self, asked: Asked) -> wire.Part:
        pull = asked.pull
        deadline = deadline_for(0, self._limits.stall_s + pull.wait_s)
        head = receive(self._socket, wire.PART.size, deadline)
        part = wire.parse_part(head, asked.left.size, pull.chunk_bytes)
        packed = receive(self._socket, part.holds_count * wire.HELD.size, deadline)
        asked.holds = wire.parse_holds(packed) if part.tells else None
        return part

    def _receive_chunks(self, asked: Asked, size_bytes: int) -> None:
        """Reads the bytes of a part into their place."""
        prefault(asked.targets(size_bytes))
        while size_bytes:
            target = asked.next_target()
            asked.settle_chunk(self._receive_chunk(target))
            size_bytes -= target.nbytes
            if size_bytes and time.monotonic() > self._told_at + PROGRESS_S:
                self._tell(asked)

    def _receive_chunk(self, target: memoryview) -> bytes | None:
        """Fills `target` and digests it piece by piece, while each is in the CPU's cache."""
        deadline = deadline_for(target.nbytes, self._limits.stall_s)
        if not self._limits.verify:
            receive_into(self._socket, target, deadline)
            return None
        hasher = xxhash.xxh3_64()
        for at in range(0, target.nbytes, PIECE_BYTES):
            piece = target[at : at + PIECE_BYTES]
            receive_into(self._socket, piece, deadline)
            hasher.update(piece)
        return hasher.digest()

    def _tell(self, asked: Asked) -> None:
        progress = asked.take_progress()
        self._told_at = time.monotonic()
        if progress is not None:
            self._deliver((progress,))

    def _end(self, asked: Asked, status: wire.Status) -> None:
        completion = asked.end(status)
        self._asked.popleft()
        self._requests[0] -= 1
        if not self._requests[0]:
            self._requests.popleft()
        self._deliver((completion,))

    def _break_asked(self, reason: str) -> None:
        """Completes what the lost peer still owes."""
        self._deliver([asked.lose(reason) for asked in self._asked])
