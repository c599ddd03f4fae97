"""One connection of a channel: asks for pulls, fills memory, checks each chunk as it arrives.

Blocking, made for a thread of its own. More is asked for while bytes still come, so the peer never
waits for us. A connection that falls silent is replaced by a new one, on which the rest is asked
for: after a cut of the link the kernel would try the old one again ever more seldom.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import xxhash

from tensorcast.movers.core.transfer import Completion
from tensorcast.movers.pages import Prefaulter, is_present, prefault
from tensorcast.movers.transports.tcp import wire
from tensorcast.movers.transports.tcp.asked import Asked
from tensorcast.movers.transports.tcp.dialing import ClientLimits, Dialer
from tensorcast.movers.transports.tcp.info import Info, read_info
from tensorcast.movers.transports.tcp.sockets import (
    SilenceError,
    deadline_for,
    readable,
    receive,
    receive_into,
    send,
    shut_down,
)
from tensorcast.movers.transports.tcp.work import Posted, Work, count_together
from tensorcast.schema.chunks import ByteRange
from tensorcast.schema.errors import TensorCastError

AHEAD_BYTES: Final = 8 << 20
"""A connection that is owed less than this asks for more, half as much at a time, so that its peer
never waits for it. No more either: what is owed shall fit into the window of the connection. Beyond
it, it is our acknowledgements that make the peer's kernel send, on our CPU; with two connections
over loopback on two CPUs that made 7 GB/s 4."""

AHEAD_BYTES_MAX: Final = 64 << 20
"""The same on a long path, where more is on its way."""

RANGES_AHEAD_MAX: Final = 1024
"""Nor does it ask while so many ranges are owed: what the peer has not read yet must fit into the
sockets, or both ends would wait to be read."""

SHARE_S: Final = 0.004
"""A connection lets others serve the chunks of a pull at least so often, and whenever it waits."""

PROGRESS_S: Final = 0.03
"""It tells of them, for what is to be decided, at most so often, but before it waits for longer.
Each time costs a turn of the event loop, and many nodes of a chain may share few CPUs."""

PIECE_BYTES: Final = 1 << 20
"""Bytes are received and checked in pieces of this size: they stay in the CPU's cache."""

TOGETHER_BYTES_MAX: Final = 8 << 20
"""Chunks that nobody checks are received so many bytes at once: for one chunk at a time two
threads that receive, and the peer's that send, take turns on two CPUs a fifth more slowly."""

_REST_S = 0.05
"""A connection without work for so long tells the peer to let the artifact go."""

Deliver = Callable[[Sequence[Completion]], None]


class Stream:
    """Serves a channel's work over one connection at a time, which it owns."""

    def __init__(
        self,
        connected: socket.socket,
        dialer: Dialer,
        work: Work,
        pages: Prefaulter,
        deliver: Deliver,
        limits: ClientLimits,
    ) -> None:
        self._socket = connected
        self._dialer = dialer
        self._work = work
        self._pages = pages
        self._deliver = deliver
        self._limits = limits
        self._lock = threading.Lock()
        self._is_stopping = False
        self._asked: deque[Asked] = deque()
        self._owed_bytes = 0
        self._ahead_bytes = AHEAD_BYTES
        self._rate = 0.0
        self._told_at = 0.0
        self._shared_at = 0.0
        self._heard_at = 0.0
        self._arrived_at = 0.0
        self._is_holding = False

    def run(self) -> None:
        """Works until the queue is closed or the peer is lost; then what was asked for here has
        completed as Broken. Never raises for what a peer does."""
        try:
            while not self._work_on():
                self._replace()
        except (EOFError, OSError, TensorCastError) as error:
            self._break_asked(str(error) or type(error).__name__)
        finally:
            self._socket.close()
            if self._asked:  # after an error of our own: nobody may wait for ever
                self._break_asked("its connection ended by an error")
            # No view of the target may outlive the stream: its segment could not be closed.
            self._asked.clear()

    def interrupt(self) -> None:
        """Wakes `run` from another thread: it ends at once."""
        with self._lock:
            self._is_stopping = True
            shut_down(self._socket)

    def info(self) -> Info:
        """What the kernel knows of the connection. Raises OSError when it is closed."""
        return read_info(self._socket)

    def _work_on(self) -> bool:
        """Asks and receives; True at the end of the work, False when the peer fell silent."""
        try:
            while self._ask():
                self._receive_next()
        except SilenceError:
            if time.monotonic() >= self._patient_until():
                raise
            return False
        return True

    # ---- asking ----------------------------------------------------------------------------

    def _ask(self) -> bool:
        """Keeps enough asked for; waits for work when nothing is. False: no more."""
        while self._may_ask():
            if self._asked and self._asked[-1].has_more:
                self._ask_for((self._asked[-1],))
                continue
            batch = self._work.take(self._patience())
            if batch is None:
                return False
            if batch:
                self._add(batch)
            elif self._asked:
                return True
            elif self._is_holding:
                send(self._socket, wire.RELEASE)
                self._is_holding = False
        return True

    def _may_ask(self) -> bool:
        """A pull that may have to wait at the peer would hold up what is asked after it."""
        last = self._asked[-1] if self._asked else None
        is_waiting = last is not None and last.pull.wait_s > 0 and not last.has_begun
        is_enough = self._owed_bytes >= self._ahead_bytes or len(self._asked) >= RANGES_AHEAD_MAX
        return not is_enough and not is_waiting

    def _patience(self) -> float | None:
        if self._asked:
            return 0.0
        return _REST_S if self._is_holding else None

    def _add(self, batch: tuple[Posted, ...]) -> None:
        if not self._asked:
            self._heard_at = time.monotonic()
        added = [Asked(posted) for posted in batch]
        self._asked.extend(added)
        self._ask_for(added)
        for asked in added:
            self._pages.ahead(asked.targets(asked.pull.target_range.size))

    def _ask_for(self, pulls: Sequence[Asked]) -> None:
        """Asks for the next range of the last one, and for all of those before it: answers come in
        order, so only the last one may have more to ask for."""
        ranges = [asked.ask(asked.pull.source_range.size) for asked in pulls[:-1]]
        ranges.append(pulls[-1].ask(self._ahead_bytes // 2))
        self._owed_bytes += sum(wanted.size for wanted in ranges)
        self._request(pulls[0], ranges)

    def _request(self, first: Asked, ranges: Sequence[ByteRange]) -> None:
        wait_s = first.wait_s(time.monotonic(), self._arrived_at)
        self._is_holding = True
        request = wire.Request(artifact=first.pull.artifact, ranges=tuple(ranges), wait_s=wait_s)
        send(self._socket, wire.pack_request(request))

    # ---- another connection ----------------------------------------------------------------

    def _patient_until(self) -> float:
        """When the peer is lost unless it is heard of."""
        wait_s = 2 * self._asked[0].pull.wait_s if self._asked else 0.0
        return self._heard_at + self._limits.stall_s + wait_s

    def _replace(self) -> None:
        """Goes on over a new connection: asks for what has not come. Raises Unavailable."""
        fresh = self._dialer.redial(self._patient_until())
        with self._lock:
            shut_down(self._socket)
            self._socket.close()
            self._socket = fresh
            if self._is_stopping:
                shut_down(fresh)
        again = list(self._asked)
        while again:
            count = count_together([asked.pull for asked in again])
            owed = [wanted for asked in again[:count] for wanted in asked.owed]
            self._request(again[0], owed)
            del again[:count]

    # ---- receiving -------------------------------------------------------------------------

    def _receive_next(self) -> None:
        """Reads one part of the answer to the oldest pull, and tells what came of it. Raises
        EOFError, OSError or Corrupt when the peer is lost or speaks nonsense."""
        asked = self._asked[0]
        part = self._receive_head(asked)
        self._heard_at = time.monotonic()
        self._begin(asked)
        if part.size_bytes:
            self._receive_chunks(asked, part.size_bytes)
        if part.status is not wire.Status.MORE:
            self._end_range(asked, part.status)
        elif not readable(self._socket, 0):
            asked.share()
            if not readable(self._socket, max(0.0, self._told_at + PROGRESS_S - self._heard_at)):
                self._tell(asked)

    def _begin(self, asked: Asked) -> None:
        """The pull does not wait for its first chunk any more."""
        if asked.pull.wait_s and not asked.has_begun:
            self._work.go_on()
        asked.has_begun = True

    def _receive_head(self, asked: Asked) -> wire.Part:
        pull = asked.pull
        if not readable(self._socket, self._limits.patience_s + 2 * pull.wait_s):
            raise SilenceError(f"Node {pull.peer} fell silent.")
        deadline = deadline_for(0, self._limits.stall_s)
        head = receive(self._socket, wire.PART.size, deadline)
        part = wire.parse_part(head, asked.left.size, pull.chunk_bytes)
        packed = receive(self._socket, part.holds_count * wire.HELD.size, deadline)
        asked.holds = wire.parse_holds(packed) if part.tells else None
        return part

    def _receive_chunks(self, asked: Asked, size_bytes: int) -> None:
        """Reads the bytes of a part into their place."""
        begun = time.monotonic()
        left = size_bytes
        is_fresh = not is_present(asked.targets(size_bytes))
        step_bytes = asked.pull.chunk_bytes
        for target in asked.targets_by(size_bytes, self._piece_bytes(step_bytes)):
            if is_fresh:
                prefault(target)
            digest = self._receive_piece(target)
            for _ in range(0, target.nbytes, step_bytes):
                asked.settle_chunk(digest)
            left -= target.nbytes
            self._owed_bytes -= target.nbytes
            self._heard_at = self._arrived_at = time.monotonic()
            if left and self._heard_at > self._shared_at + SHARE_S:
                asked.share()
                self._shared_at = self._heard_at
            if left and self._heard_at > self._told_at + PROGRESS_S:
                self._tell(asked)
            if self._work.has_waiting or self._asked[-1].has_more:
                self._ask()
        self._learn(size_bytes / max(1e-6, self._heard_at - begun))

    def _piece_bytes(self, chunk_bytes: int) -> int:
        """How much is received at once: one chunk, to be checked; or, when nobody checks, the
        chunks that come until others want to be told of them."""
        if self._limits.verify:
            return chunk_bytes
        at_once = min(TOGETHER_BYTES_MAX, int(self._rate * SHARE_S))
        return max(1, at_once // chunk_bytes) * chunk_bytes

    def _receive_piece(self, target: memoryview) -> bytes | None:
        """Fills `target`, and digests it bit by bit if it is to be checked: then it is a chunk."""
        size_bytes = target.nbytes
        deadline = deadline_for(size_bytes, self._limits.stall_s)
        if not self._limits.verify:
            receive_into(self._socket, target, deadline)
            return None
        if size_bytes <= PIECE_BYTES:
            receive_into(self._socket, target, deadline)
            return xxhash.xxh3_64_digest(target)
        hasher = xxhash.xxh3_64()
        for at in range(0, size_bytes, PIECE_BYTES):
            piece = target[at : at + PIECE_BYTES]
            receive_into(self._socket, piece, deadline)
            hasher.update(piece)
        return hasher.digest()

    def _learn(self, rate: float) -> None:
        """What the rate of the last part says of the next one."""
        self._rate = rate
        on_their_way = 2 * int(rate * self.info().rtt_s)
        self._ahead_bytes = max(AHEAD_BYTES, min(AHEAD_BYTES_MAX, on_their_way))

    def _tell(self, asked: Asked) -> None:
        asked.share()
        progress = asked.take_progress()
        self._told_at = time.monotonic()
        if progress is not None:
            self._deliver((progress,))

    def _end_range(self, asked: Asked, status: wire.Status) -> None:
        self._owed_bytes -= asked.left.size
        asked.share()
        if asked.end_range(status):
            self._asked.popleft()
            self._deliver((asked.end(),))

    def _break_asked(self, reason: str) -> None:
        """Completes what the lost peer still owes."""
        for asked in self._asked:
            self._begin(asked)
        self._deliver([asked.lose(reason) for asked in self._asked])
        self._asked.clear()
