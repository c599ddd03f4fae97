"""Blocks of other nodes, straight from their movers' data ports. Blocks the calling thread.

What comes is checked against its digest while it is in the CPU's cache. A node that fails is left
alone for a while, longer each time, so that one bad node does not hold up the others.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from tensorcast.client.blocks_frames import ConnectionLost, FrameChannel, SignTicket
from tensorcast.client.blocks_pieces import Place, flatten, make_digest
from tensorcast.schema.block_wire import (
    CHECK_BYTES,
    ENTRY,
    FETCH_BLOCKS,
    HEAD,
    PRIORITY_SHIFT,
    Elsewhere,
    Flag,
    Greeting,
    Head,
    Op,
    State,
    open_seal,
    pack_entries,
    pack_frame,
    pack_request,
    parse_elsewhere,
    parse_entries,
    seal,
    split_digests,
)
from tensorcast.schema.blocks import BLOCK_BYTES_MAX, DIGEST_BYTES
from tensorcast.schema.errors import Corrupt, PermissionDenied, Timeout, Unavailable

T = TypeVar("T")

CONNECT_S: Final = 2.0
STALL_S: Final = 10.0
IDLE_MAX: Final = 4
QUARANTINE_S: Final = 0.5
QUARANTINE_S_MAX: Final = 30.0
QUARANTINE_SHARE: Final = 2.0
"""A node that was silent is left alone at least so many times as long as was waited for it: what
waits behind one another must not wait for it one after the other."""
PIECE_BYTES: Final = 512 << 10
BUFFERS_MAX: Final = 64
"""So many blocks are received with one call, but not more bytes than PIECE_BYTES unless one is
larger: what is checked must still be in the cache."""
RUNS_MAX: Final = 1024
"""The kernel takes so many runs of memory with one call (IOV_MAX)."""

_ROW_BYTES: Final = ENTRY.size + DIGEST_BYTES
_ANSWER_BYTES: Final = HEAD.size + _ROW_BYTES + CHECK_BYTES
"""The frame that answers a FETCH of one block."""
_TIMEVAL: Final = struct.Struct("ll")
_LAST_RECEIVED: Final = struct.Struct("=52xI")
"""Of the kernel's `tcp_info`: milliseconds since the last bytes came."""

Allocate = Callable[[int, int], Place]
"""(index, size in bytes) -> where the block goes. Raises InvalidArgument for a wrong size."""

Fetched = tuple[list[int], list[int], list[tuple[int, Elsewhere | None]]]


class BlockPeer(FrameChannel):
    """A connection to a node's data port. What follows a frame are blocks: they are received where
    they belong."""

    reads_ahead = False

    def limit(self, timeout_s: float) -> None:
        """Waits so long, from now on, when not a byte comes or goes."""
        if timeout_s != self._timeout_s:
            self._timeout_s = timeout_s
            limit = _TIMEVAL.pack(int(timeout_s), int(timeout_s % 1 * 1_000_000))
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def ask(self, frame: bytes) -> None:
        """Sends a request."""
        self.send(seal(frame))

    def receive(self, op: int, body_bytes: int = 0) -> tuple[Head, int]:
        """As for every channel; the frame is what was sent. Raises Corrupt."""
        head, at = FrameChannel.receive(self, op, body_bytes + CHECK_BYTES)
        return open_seal(self.buffer, at, head), at

    def fetch(
        self, keys: Sequence[bytes], allocate: Allocate, *, elsewhere: bool = False
    ) -> Fetched:
        """Fetches blocks into memory of `allocate`. Returns the indexes of those that arrived, of
        those that were damaged, and where else the node knows those that it does not have (for each
        batch of its answer)."""
        flags = Flag.ELSEWHERE if elsewhere else 0
        self.ask(pack_request(Op.FETCH, keys, flags=flags))
        arrived: list[int] = []
        damaged: list[int] = []
        others: list[tuple[int, Elsewhere | None]] = []
        first = 0
        while True:
            size = min(FETCH_BLOCKS, len(keys) - first) * _ROW_BYTES
            head, at = self.receive(Op.FOUND, size)
            end = at + head.size
            if first + head.total > len(keys):
                raise Corrupt(f"Node {self.node} sends blocks that were not asked for.")
            sizes = parse_entries(self.buffer, at, head.total, end)[1::2]
            at += head.total * ENTRY.size
            digests = split_digests(self.buffer, at, head.total, end)
            at += head.total * DIGEST_BYTES
            tells = head.flags & Flag.ELSEWHERE
            other = parse_elsewhere(self.buffer, at, head.total, end) if tells else None
            others.append((first, other))
            if max(sizes, default=0) > BLOCK_BYTES_MAX:
                raise Corrupt(f"Node {self.node} has a block larger than any can be.")
            wanted = [n for n, size in enumerate(sizes) if size]
            targets = [allocate(first + n, sizes[n]) for n in wanted]
            good = self._receive_blocks(targets, [digests[n] for n in wanted])
            for n, is_good in zip(wanted, good, strict=True):
                (arrived if is_good else damaged).append(first + n)
            first += head.total
            if head.flags & Flag.LAST:
                return arrived, damaged, others

    def fetch_into(self, key: bytes, allocate: Allocate, target: memoryview) -> Fetched:
        """As `fetch`, of one block that is expected to fit `target`, which `allocate` must return:
        the answer and its bytes come with one call, as a rule."""
        self.ask(pack_request(Op.FETCH, (key,)))
        got = self._receive_parts([memoryview(self.buffer)[:_ANSWER_BYTES], target])
        self._at, self._filled = 0, min(got, _ANSWER_BYTES)
        head, at = self.receive(Op.FOUND, _ROW_BYTES)
        if head.total != 1 or head.size != _ROW_BYTES or not head.flags & Flag.LAST:
            raise Corrupt(f"Node {self.node} answered another request.")
        size = ENTRY.unpack_from(self.buffer, at)[1]
        ahead = max(0, got - _ANSWER_BYTES)
        if ahead > size:
            raise Corrupt(f"Node {self.node} sends more than it said.")
        if not size:
            return [], [], []
        digest = self.buffer[at + ENTRY.size : at + _ROW_BYTES]
        allocate(0, size)
        if ahead < size:
            self._receive_group([target[ahead:]])
        is_good = make_digest(target) == digest
        return [0] if is_good else [], [] if is_good else [0], []

    def send_blocks(self, keys: Sequence[bytes], sources: Sequence[Place], priority: int) -> bytes:
        """Puts blocks on the node; a state for each, WANTED for those that are stored now."""
        flat = [0] * (2 * len(keys))
        flat[1::2] = [source.nbytes for source in sources]
        digests = b"".join([make_digest(source) for source in sources])
        flags = Flag.DIGESTS | priority << PRIORITY_SHIFT
        self.ask(pack_request(Op.SEND, keys, pack_entries(flat) + digests, flags=flags))
        head, at = self.receive(Op.STORED)
        states = bytes(self.buffer[at : at + len(keys)])
        wanted = [n for n, state in enumerate(states) if state == State.WANTED]
        for n in range(0, len(wanted), BUFFERS_MAX):
            self._send_all(flatten([sources[at] for at in wanted[n : n + BUFFERS_MAX]]))
        if not wanted:
            return states
        head, at = self.receive(Op.STATES)
        if head.size != len(keys):
            raise Corrupt(f"Node {self.node} answered another request.")
        return bytes(self.buffer[at : at + head.size])

    def ask_states(self, op: Op, keys: Sequence[bytes]) -> bytes:
        """A state for each block, of EXISTS or EVICT."""
        self.ask(pack_request(op, keys))
        head, at = self.receive(Op.STATES)
        if head.size != len(keys):
            raise Corrupt(f"Node {self.node} answered another request.")
        return bytes(self.buffer[at : at + head.size])

    def evict_space(self, beginning: bytes) -> int:
        """How many blocks were dropped."""
        self.ask(pack_frame(Op.EVICT, beginning, flags=Flag.SPACE))
        return self.receive(Op.STATES)[0].total

    def _receive_blocks(self, targets: list[Place], digests: Sequence[bytes]) -> list[bool]:
        """Fills the targets in order; whether each matches its digest."""
        good: list[bool] = []
        for first, stop in group(targets):
            part = targets[first:stop]
            self._receive_group(part)
            good += [
                make_digest(target) == digest
                for target, digest in zip(part, digests[first:stop], strict=True)
            ]
        return good

    def _receive_group(self, targets: list[Place]) -> None:
        rest = flatten(targets)
        wanted = sum([target.nbytes for target in targets])
        while wanted:
            got = self._receive_parts(rest[:RUNS_MAX], socket.MSG_WAITALL)
            wanted -= got
            if wanted:
                was_cut = got == sum(view.nbytes for view in rest[:RUNS_MAX])
                rest = skip(rest, got)
                if not was_cut:
                    self._await_more()

    def _receive_parts(self, parts: list[memoryview], flags: int = 0) -> int:
        try:
            got = self.socket.recvmsg_into(parts, 0, flags)[0]
        except BlockingIOError as error:
            raise self._late() from error
        except OSError as error:
            raise self._lost() from error
        if not got:
            raise self._lost()
        return got

    def _await_more(self) -> None:
        """The kernel gave up waiting for all. It says when the last byte came: from then on the
        wait is counted. Raises Timeout."""
        found = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_RECEIVED.size)
        left_ms = self._timeout_s * 1000 - _LAST_RECEIVED.unpack(found)[0]
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        if not poll.poll(max(0, left_ms)):
            raise self._late()

    def _send_all(self, sources: list[memoryview]) -> None:
        while sources:
            try:
                sent = self.socket.sendmsg(sources[:RUNS_MAX])
            except BlockingIOError as error:
                raise self._late() from error
            except OSError as error:
                raise self._lost() from error
            sources = skip(sources, sent)

    def close(self) -> None:
        """Safe to repeat."""
        self.socket.close()


def group(targets: Sequence[Place]) -> list[tuple[int, int]]:
    """Ranges of blocks that are received with one call each."""
    ends: list[int] = []
    count = size = 0
    for at, target in enumerate(targets):
        count, size = count + 1, size + target.nbytes
        if count > 1 and (size > PIECE_BYTES or count > BUFFERS_MAX):
            ends.append(at)
            count, size = 1, target.nbytes
    if not targets:
        return []
    return list(zip([0, *ends], [*ends, len(targets)], strict=True))


def skip(buffers: list[memoryview], count: int) -> list[memoryview]:
    """The buffers without their first `count` bytes."""
    for at, buffer in enumerate(buffers):
        if count < buffer.nbytes:
            return [buffer[count:], *buffers[at + 1 :]]
        count -= buffer.nbytes
    return []


class BlockPeers:
    """Connections to data ports by address, kept for the next use. For any number of threads.
    `stall_s`: how long a node may be silent, if not STALL_S; `sign` makes the tickets that nodes
    ask for."""

    def __init__(
        self,
        greeting: Greeting,
        stall_s: float | None = None,
        sign: SignTicket | None = None,
    ) -> None:
        self._greeting = greeting
        self._sign = sign
        self._stall_s = stall_s
        self._lock = threading.Lock()
        self._idle: dict[str, list[BlockPeer]] = {}
        self._resting: dict[str, tuple[float, float]] = {}
        self._is_closed = False

    @property
    def stall_s(self) -> float:
        """How long a node may be silent."""
        return STALL_S if self._stall_s is None else self._stall_s

    def is_resting(self, address: str) -> bool:
        """Whether a node failed a short time ago: it is not asked unless nobody else can be."""
        until, _ = self._resting.get(address, (0.0, 0.0))
        return time.monotonic() < until

    def use(
        self, address: str, work: Callable[[BlockPeer], T], patience_s: float | None = None
    ) -> T:
        """Does `work`, which can be repeated, on a connection of its own: once more on a new one
        when an idle one was closed meanwhile. After an error the address rests. `patience_s`: how
        long it may be silent, if not `stall_s`. Raises Unavailable, Timeout, Corrupt,
        PermissionDenied, and what `work` raises."""
        limit_s = self.stall_s if patience_s is None else patience_s
        began_s = time.monotonic()
        peer = self._take_idle(address)
        try:
            if peer is not None:
                peer.limit(limit_s)
                with contextlib.suppress(ConnectionLost):
                    return self._try(address, peer, work)
            return self._try(address, self._connect(address, limit_s), work)
        except (Unavailable, Timeout, Corrupt, PermissionDenied):
            self._rest(address, min(limit_s, time.monotonic() - began_s))
            raise

    def _take_idle(self, address: str) -> BlockPeer | None:
        try:
            return self._idle[address].pop()
        except (KeyError, IndexError):
            return None

    def _try(self, address: str, peer: BlockPeer, work: Callable[[BlockPeer], T]) -> T:
        try:
            found = work(peer)
        except BaseException:
            peer.close()
            raise
        with self._lock:
            self._resting.pop(address, None)
            idle = self._idle.setdefault(address, [])
            is_kept = len(idle) < IDLE_MAX and not self._is_closed
            if is_kept:
                idle.append(peer)
        if not is_kept:
            peer.close()
        return found

    def close(self) -> None:
        """Closes idle connections. Safe to repeat."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, {}
        for peers in idle.values():
            for peer in peers:
                peer.close()

    def _rest(self, address: str, silent_s: float = 0.0) -> None:
        with self._lock:
            _, last = self._resting.get(address, (0.0, 0.0))
            pause = max(2 * last or QUARANTINE_S, QUARANTINE_SHARE * silent_s)
            pause = min(QUARANTINE_S_MAX, pause)
            self._resting[address] = (time.monotonic() + pause, pause)

    def _connect(self, address: str, limit_s: float) -> BlockPeer:
        host, _, port = address.rpartition(":")
        try:
            where = (host.strip("[]"), int(port))
            connected = socket.create_connection(where, min(CONNECT_S, limit_s))
        except (OSError, ValueError) as error:
            raise Unavailable(
                f"The data port {address} cannot be reached: {error}.",
                hint="`tcctl node ls` shows which nodes are up.",
            ) from error
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if connected.getpeername()[0] == connected.getsockname()[0]:
                # On one machine cubic is faster than bbr, and costs less.
                with contextlib.suppress(OSError):
                    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
            peer = BlockPeer(connected, address, limit_s)
            peer.greet(self._greeting, self._sign)
        except BaseException:
            connected.close()
            raise
        return peer
