"""Serves the node's blocks over TCP, on the data port: who opens with the magic of blocks is served
here.

Blocks go straight from their slabs with `sendfile`, neighbours together; a batch stays pinned until
the reader asks for the next one, because `sendfile` leaves the pages themselves in the socket. Few
bytes are copied there with their frame.
Blocks that are sent here are received into empty slots and checked before anybody can find them.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence

import xxhash

from tensorcast.movers.blocks.base import BlockLocator
from tensorcast.movers.blocks.desk import Desk
from tensorcast.movers.blocks.server import greet
from tensorcast.movers.blocks.session import Session
from tensorcast.movers.blocks.store import BlockStore
from tensorcast.movers.transports.base import Door
from tensorcast.movers.transports.tcp.sockets import (
    deadline_for,
    limit_calls,
    receive_into,
    send,
    send_file,
)
from tensorcast.schema.block_wire import (
    ENTRY,
    FETCH_BLOCKS,
    FRAME_S_MAX,
    HEAD,
    NOWHERE,
    OFFSET_BITS,
    PRIORITY_SHIFT,
    Flag,
    Head,
    Op,
    State,
    open_seal,
    pack_frame,
    parse_entries,
    parse_head,
    seal,
    split_digests,
    split_entries,
    split_keys,
)
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.ids import NodeId

STALL_S = 20.0
IDLE_S = 600.0
HOLD_S = 5.0
"""Calls on the socket return after so long without progress."""
BUFFER_BYTES = 16 << 10
COPIED_BYTES_MAX = 256 << 10
"""So few bytes are copied into the socket together with their frame. Measured over loopback: 64 KiB
arrive a fifth sooner than with a `sendfile` after the frame; 2 MiB do not, and cost more."""
BUFFERS_MAX = 64
OTHER_OPS = (Op.EXISTS, Op.EVICT, Op.COUNT)


class BlockExchange:
    """Serves connections; one thread of the caller for each. At a `door` they need tickets."""

    def __init__(
        self,
        store: BlockStore,
        locator: BlockLocator,
        cluster: str,
        node: NodeId,
        door: Door | None = None,
    ) -> None:
        self._store = store
        self._locator = locator
        self._cluster = cluster
        self._node = node
        self._door = door

    def serve(self, connected: socket.socket) -> None:
        """Until the peer goes, falls silent or speaks nonsense. Raises EOFError, OSError, Corrupt,
        PermissionDenied."""
        life, door = self._store.life, self._door
        session = greet(connected, self._cluster, self._node, life, is_local=False, door=door)
        limit_calls(connected, HOLD_S)
        self._store.join(session)
        try:
            peer = _Peer(connected, self._store, self._locator, session)
            while (request := peer.next_request()) is not None:
                peer.answer(*request)
        finally:
            self._store.leave(session)


class _Peer:
    def __init__(
        self,
        connected: socket.socket,
        store: BlockStore,
        locator: BlockLocator,
        session: Session,
    ) -> None:
        self._socket = connected
        self._store = store
        self._session = session
        self._desk = Desk(store, locator, session)
        self._tag = 0
        self.buffer = bytearray(BUFFER_BYTES)
        self._filled = 0

    def next_request(self) -> tuple[Head, int] | None:
        """The head of a request, whose body begins in `buffer` there; None when the peer is done,
        or idle for too long."""
        self._need(1, time.monotonic() + IDLE_S, is_first=True)
        if not self._filled:
            return None
        deadline_s = time.monotonic() + FRAME_S_MAX
        if self._filled < HEAD.size:
            self._need(HEAD.size, deadline_s)
        head = parse_head(self.buffer)
        if self._filled < HEAD.size + head.size:
            self._need(HEAD.size + head.size, deadline_s)
        if self._filled > HEAD.size + head.size:
            raise Corrupt("A peer asks before it was answered.")
        self._filled = 0
        return open_seal(self.buffer, HEAD.size, head), HEAD.size

    def _need(self, size_bytes: int, deadline_s: float, *, is_first: bool = False) -> None:
        """Receives until so many bytes are there. One system call, as a rule. The buffer grows as
        they come, whatever was announced."""
        while self._filled < size_bytes:
            if self._filled == len(self.buffer):
                self.buffer.extend(bytes(min(self._filled, size_bytes - self._filled)))
            if not is_first and time.monotonic() > deadline_s:
                raise EOFError("The peer did not end what it began to say.")
            try:
                got = self._socket.recv_into(memoryview(self.buffer)[self._filled :])
            except BlockingIOError:
                self._release()
                if time.monotonic() > deadline_s:
                    raise EOFError("The peer fell silent.") from None
                continue
            if not got and is_first:
                return
            if not got:
                raise EOFError("The peer closed the connection.")
            self._filled += got

    def answer(self, head: Head, at: int) -> None:
        """Raises Corrupt for nonsense."""
        self._release()
        if head.op == Op.FETCH:
            self._fetch(at, head)
        elif head.op == Op.SEND:
            self._take_in(at, head)
        elif head.op == Op.DAMAGED:
            keys, _ = split_keys(self.buffer, at, head)
            states = self._store.drop_damaged(keys)
            self._reply(pack_frame(Op.STATES, states, count=len(keys), tag=head.tag))
        elif head.op in OTHER_OPS:
            self._reply(self._desk.answer(self.buffer, at, head))
        else:
            raise Corrupt(f"Operation {head.op} on blocks is not for peers.")

    def _reply(self, frame: bytes, *, more: bool = False) -> None:
        send(self._socket, seal(frame), more=more)

    def _release(self) -> None:
        """The peer has what it asked for, or is too slow to wait for: digests tell it."""
        self._store.release(self._session, list(self._session.leases))

    # ---- out -----------------------------------------------------------------------------------

    def _fetch(self, at: int, head: Head) -> None:
        keys, _ = split_keys(self.buffer, at, head)
        for first in range(0, len(keys), FETCH_BLOCKS):
            part = keys[first : first + FETCH_BLOCKS]
            is_last = first + FETCH_BLOCKS >= len(keys)
            self._send_batch(part, head.flags, is_last=is_last)
        if not keys:
            self._send_batch((), head.flags, is_last=True)

    def _send_batch(self, keys: Sequence[bytes], flags: int, *, is_last: bool) -> None:
        self._tag += 1
        found = self._store.find(keys, self._session, self._tag)
        rest = found + b"".join(self._store.digests(keys, found))
        told = Flag.LAST if is_last else 0
        if flags & Flag.ELSEWHERE and NOWHERE in found:
            told |= Flag.ELSEWHERE
            rest += self._desk.find_elsewhere(keys, found)
        runs = list(join_neighbours(parse_entries(found, 0, len(keys), len(found))))
        frame = pack_frame(Op.FOUND, rest, flags=told, count=len(keys))
        size = sum([run[1] for run in runs])
        if 0 < size <= COPIED_BYTES_MAX and len(runs) < BUFFERS_MAX:
            self._send_copies(seal(frame), runs, size)
            return
        self._reply(frame, more=bool(runs))
        for place, size in runs:
            slab = self._store.slab(place >> OFFSET_BITS)
            assert slab is not None  # a pinned block keeps it
            offset = place & ((1 << OFFSET_BITS) - 1)
            deadline = deadline_for(size, STALL_S)
            send_file(self._socket, slab.segment.fd, offset, size, deadline)

    def _send_copies(self, frame: bytes, runs: Sequence[tuple[int, int]], size_bytes: int) -> None:
        """The answer and its few bytes with one call."""
        parts = [memoryview(frame)]
        for place, size in runs:
            parts.append(self._store.memory(ENTRY.pack(place, size)))
        deadline_s = deadline_for(size_bytes, STALL_S)
        try:
            sent = self._socket.sendmsg(parts)
            for part in parts:
                at = min(sent, part.nbytes)
                sent -= at
                while at < part.nbytes:
                    if time.monotonic() > deadline_s:
                        raise TimeoutError("The peer reads too slowly.")
                    at += self._socket.send(part[at:])
        except BlockingIOError as error:
            raise TimeoutError("The peer does not read.") from error
        finally:
            for part in parts:
                part.release()

    # ---- in ------------------------------------------------------------------------------------

    def _take_in(self, at: int, head: Head) -> None:
        end = at + head.size
        keys, at = split_keys(self.buffer, at, head)
        entries = split_entries(self.buffer, at, len(keys), end)
        digests = split_digests(self.buffer, at + len(keys) * ENTRY.size, len(keys), end)
        states, placed = self._store.begin(
            keys,
            entries,
            self._session,
            head.tag,
            is_proposed=False,
            priority=head.flags >> PRIORITY_SHIFT,
            digests=digests,
        )
        self._reply(pack_frame(Op.STORED, states, count=len(keys), tag=head.tag))
        wanted = [at for at, state in enumerate(states) if state == State.WANTED]
        failed = [
            n for n, at in enumerate(wanted) if not self._receive_block(placed[at], digests[at])
        ]
        self._store.commit(self._session, head.tag, failed)
        if wanted:
            final = bytearray(states)
            for n in failed:
                final[wanted[n]] = State.BAD_DIGEST
            self._reply(pack_frame(Op.STATES, bytes(final), count=len(keys)))

    def _receive_block(self, entry: bytes, digest: bytes) -> bool:
        with self._store.memory(entry) as memory:
            receive_into(self._socket, memory, deadline_for(memory.nbytes, STALL_S))
            return xxhash.xxh3_64_digest(memory) == digest


def join_neighbours(flat: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Places and sizes from place, size, place, size ... with neighbours joined, and without those
    that are nowhere."""
    start = end = -1
    for place, size in zip(flat[::2], flat[1::2], strict=True):
        if not size:
            continue
        if place != end:
            if start >= 0:
                yield start, end - start
            start = place
        end = place + size
    if start >= 0:
        yield start, end - start
