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

from tensorcast.movers.core.transfer import Broken, Completed, Completion, Pull
from tensorcast.movers.pages import prefault
from tensorcast.movers.transports.tcp import wire
from tensorcast.movers.transports.tcp.sockets import (
    PIECE_BYTES,
    deadline_for,
    parse_address,
    receive,
    receive_into,
    send,
    shut_down,
    tune,
)
from tensorcast.movers.transports.tcp.work import Posted, Work
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.errors import Corrupt, PermissionDenied, Unavailable
from tensorcast.schema.faults import Fault, FaultKind
from tensorcast.schema.ids import NodeId

_REQUESTS_MAX = 2
"""Requests of one connection that are not answered yet."""

_REST_S = 0.05
"""A connection without work for so long tells the peer to let the artifact go."""

Deliver = Callable[[Sequence[Completion]], None]


class ClientLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`stall_s`: a peer that sends nothing for so long while it owes something is lost."""

    streams: int = 2
    connect_s: float = 5.0
    stall_s: float = 10.0


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
        self._asked: deque[Posted] = deque()
        self._requests: deque[int] = deque()
        self._arrived: list[int] = []
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
        is_waiting = any(posted.pull.wait_s for posted in self._asked)
        return len(self._requests) < _REQUESTS_MAX and not is_waiting

    def _patience(self) -> float | None:
        if self._asked:
            return 0.0
        return _REST_S if self._is_holding else None

    def _request(self, batch: tuple[Posted, ...]) -> None:
        self._asked.extend(batch)
        self._requests.append(len(batch))
        self._is_holding = True
        first = batch[0].pull
        ranges = tuple(posted.pull.source_range for posted in batch)
        request = wire.Request(artifact=first.artifact, ranges=ranges, wait_s=first.wait_s)
        send(self._socket, wire.pack_request(request))

    def _receive_next(self) -> None:
        """Reads the answer to the oldest pull and completes it."""
        completion = self._receive_answer(self._asked[0])
        self._asked.popleft()
        self._requests[0] -= 1
        if not self._requests[0]:
            self._requests.popleft()
        self._arrived = []
        self._deliver((completion,))

    def _receive_answer(self, posted: Posted) -> Completion:
        """Raises EOFError, OSError or Corrupt when the peer is lost or speaks nonsense."""
        pull = posted.pull
        deadline = deadline_for(0, self._limits.stall_s + pull.wait_s)
        head = receive(self._socket, wire.ANSWER.size, deadline)
        answer = wire.parse_answer(head, _prefixes(pull))
        packed = receive(self._socket, answer.holds_count * wire.HELD.size, deadline)
        holds = wire.parse_holds(packed) if answer.tells else None
        wrong = self._receive_chunks(posted, answer.size_bytes)
        arrived = ChunkSet.of(self._arrived)
        if wrong:
            detail = f"Node {pull.peer} sent chunk {wrong[0]} of artifact {pull.artifact} damaged."
            return _broken(pull, FaultKind.CORRUPT, detail, arrived, holds)
        match answer.status:
            case wire.Status.OK:
                return Completed(pull=pull, holds=holds)
            case wire.Status.MISSING:
                detail = f"Node {pull.peer} does not have all chunks of artifact {pull.artifact}."
            case wire.Status.NOT_FOUND:
                detail = f"Node {pull.peer} does not have artifact {pull.artifact}."
            case wire.Status.INVALID:
                raise Corrupt(f"Node {pull.peer} has another artifact {pull.artifact}.")
        return _broken(pull, FaultKind.NOT_FOUND, detail, arrived, holds)

    def _receive_chunks(self, posted: Posted, size_bytes: int) -> list[int]:
        """Reads the bytes of an answer into their place; returns the chunks that are damaged."""
        pull = posted.pull
        wrong: list[int] = []
        at = pull.target_range.offset
        end = at + size_bytes
        prefault(posted.memory[at:end])
        for chunk in range(pull.first, pull.stop):
            size = min(pull.chunk_bytes, end - at)
            if size <= 0:
                break
            digest = self._receive_chunk(posted.memory[at : at + size])
            (self._arrived if digest == pull.digest(chunk) else wrong).append(chunk)
            at += size
        return wrong

    def _receive_chunk(self, target: memoryview) -> bytes:
        """Fills `target` and digests it piece by piece, while each is in the CPU's cache."""
        hasher = xxhash.xxh3_64()
        deadline = deadline_for(target.nbytes, self._limits.stall_s)
        for at in range(0, target.nbytes, PIECE_BYTES):
            piece = target[at : at + PIECE_BYTES]
            receive_into(self._socket, piece, deadline)
            hasher.update(piece)
        return hasher.digest()

    def _break_asked(self, reason: str) -> None:
        """Completes what the lost peer still owes."""
        broken: list[Completion] = []
        for posted in self._asked:
            detail = f"Node {posted.pull.peer} was lost: {reason}"
            arrived = ChunkSet.of(self._arrived)
            broken.append(_broken(posted.pull, FaultKind.UNAVAILABLE, detail, arrived, None))
            self._arrived = []
        self._deliver(broken)


def _prefixes(pull: Pull) -> tuple[int, ...]:
    """How many bytes may follow: none, whole chunks from the beginning, or all."""
    size = pull.source_range.size
    return (*range(0, size, pull.chunk_bytes), size)


def _broken(
    pull: Pull, kind: FaultKind, detail: str, arrived: ChunkSet, holds: ChunkSet | None
) -> Broken:
    return Broken(pull=pull, fault=Fault(kind=kind, detail=detail), arrived=arrived, holds=holds)
