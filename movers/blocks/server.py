"""The node's own socket for blocks: one blocking thread for each application's connection.

Outside of the event loop on purpose: an answer costs one wake-up, and no other work of the mover
stands before it. Bytes of blocks never pass here: applications read and write the slabs.
"""

from __future__ import annotations

import fcntl
import logging
import math
import mmap
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tensorcast.movers.blocks.base import BlockLocator
from tensorcast.movers.blocks.desk import Desk, SignBlocks
from tensorcast.movers.blocks.session import Session
from tensorcast.movers.blocks.store import BlockStore
from tensorcast.movers.memory.handover import close_all
from tensorcast.movers.sockets import check_actor, check_peer, listen_at, peer_login
from tensorcast.movers.threads import step_aside
from tensorcast.movers.transports.base import Door
from tensorcast.movers.transports.tcp.sockets import limit_calls, receive, shut_down
from tensorcast.schema.block_board import PIN_BYTES
from tensorcast.schema.block_ring import MEMORY_BYTES
from tensorcast.schema.block_wire import (
    FRAME_S_MAX,
    HEAD,
    MAPPED_SIZES,
    OPENING,
    Head,
    Op,
    Welcome,
    pack_frame,
    pack_opening,
    parse_greeting,
    parse_head,
    parse_opening,
)
from tensorcast.schema.errors import Corrupt, PermissionDenied, TensorCastError
from tensorcast.schema.ids import NodeId
from tensorcast.schema.tickets import BLOCKS, Challenge, Refusal, TicketRefused

HELLO_S_MAX = 10.0
SEND_S_MAX = 20.0
CONNECTIONS_MAX = 512
BUFFER_BYTES = 64 << 10
LOOK_MS = 2
LOOKS = 25
"""A ring is looked at so often, until it has been empty so many times."""
_TIMEVAL = struct.Struct("ll")
_FOREVER = _TIMEVAL.pack(0, 0)
_logger = logging.getLogger(__name__)


class BlockServer:
    """Listens on a path from construction until `close`, which removes it. `sign` signs tickets for
    its applications."""

    def __init__(
        self,
        path: Path,
        store: BlockStore,
        locator: BlockLocator,
        cluster: str,
        node: NodeId,
        sign: SignBlocks | None = None,
    ) -> None:
        self._path = path
        self._store = store
        self._locator = locator
        self._cluster = cluster
        self._node = node
        self._sign = sign
        self._is_closing = False
        self._lock = threading.Lock()
        self._open: dict[threading.Thread, socket.socket] = {}
        self._listening = listen_at(path)
        self._listening.setblocking(True)
        self._accepting = threading.Thread(target=self._accept, name="kv-accept", daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Ends all connections and threads. Blocks for a moment. Safe to repeat."""
        if self._is_closing:
            return
        self._is_closing = True
        shut_down(self._listening)
        self._accepting.join()
        self._listening.close()
        self._path.unlink(missing_ok=True)
        with self._lock:
            threads = list(self._open)
            for connected in self._open.values():
                shut_down(connected)
        for thread in threads:
            thread.join()

    def _accept(self) -> None:
        while not self._is_closing:
            try:
                connected, _ = self._listening.accept()
            except OSError as error:
                if self._is_closing:
                    return
                _logger.warning("no connection for blocks can be taken: %s", error)
                threading.Event().wait(0.1)
                continue
            self._start(connected)

    def _start(self, connected: socket.socket) -> None:
        thread = threading.Thread(target=self._run, args=(connected,), name="kv-serve", daemon=True)
        with self._lock:
            is_full = len(self._open) >= CONNECTIONS_MAX
            if not is_full and not self._is_closing:
                self._open[thread] = connected
                thread.start()
                return
        connected.close()

    def _run(self, connected: socket.socket) -> None:
        session = Session("")
        try:
            with connected:
                session = greet(
                    connected,
                    self._cluster,
                    self._node,
                    self._store.life,
                    is_local=True,
                    rings=self._store.state.board.fd >= 0,
                )
                self._store.join(session)
                desk = Desk(self._store, self._locator, session, self._sign)
                _Conversation(connected, desk).run()
        except (EOFError, OSError) as error:
            _logger.debug("a connection for blocks ended: %s", error)
        except TensorCastError as error:
            _logger.warning("a connection for blocks was closed: %s", error)
        finally:
            self._store.leave(session)
            with self._lock:
                del self._open[threading.current_thread()]


def greet(
    connected: socket.socket,
    cluster: str,
    node: NodeId,
    life: str,
    *,
    is_local: bool,
    door: Door | None = None,
    rings: bool = False,
) -> Session:
    """Checks who calls, and answers; at a `door` a ticket may be needed. Raises Corrupt,
    PermissionDenied, EOFError, OSError."""
    limit_calls(connected, HELLO_S_MAX)
    deadline = time.monotonic() + HELLO_S_MAX
    size = parse_opening(receive(connected, OPENING.size, deadline))
    greeting = parse_greeting(receive(connected, size, deadline))
    refusal = ""
    try:
        check_actor(greeting.actor)
        if is_local:
            check_peer(connected)
        if greeting.cluster != cluster or greeting.node not in ("", node):
            raise PermissionDenied(f"This is node {node} of cluster {cluster}.")
    except TensorCastError as error:
        refusal = str(error)
    challenge = door.challenge(None) if door is not None and not refusal else None
    welcome = Welcome(node=node, life=life, refusal=refusal, challenge=challenge, rings=rings)
    connected.sendall(pack_opening(welcome))
    if refusal:
        raise PermissionDenied(refusal)
    if door is not None and challenge is not None:
        user = _admit(connected, door, challenge, Welcome(node=node, life=life))
    else:
        user = peer_login(connected) if is_local else ""
    return Session(greeting.actor, user)


def _admit(connected: socket.socket, door: Door, challenge: Challenge, welcome: Welcome) -> str:
    """The user for whom a mover has signed the ticket that answers the challenge. Raises
    TicketRefused, which the caller is told."""
    host = connected.getpeername()[0]
    deadline = time.monotonic() + HELLO_S_MAX
    try:
        try:
            size = parse_opening(receive(connected, OPENING.size, deadline))
        except Corrupt as error:  # a release that knows no tickets goes on with its request
            raise door.refuse(Refusal.MISSING, "", host) from error
        ticket = door.admit(receive(connected, size, deadline), challenge, host)
        if ticket.what != BLOCKS:
            raise door.refuse(Refusal.FOREIGN, ticket.node, host)
    except TicketRefused as refused:
        connected.sendall(pack_opening(Welcome(node=welcome.node, refusal=str(refused))))
        raise
    connected.sendall(pack_opening(welcome))
    return ticket.user


class _Conversation:
    """Reads frames and sends answers until the application goes."""

    def __init__(self, connected: socket.socket, desk: Desk) -> None:
        self._socket = connected
        self._desk = desk
        self._buffer = bytearray(BUFFER_BYTES)
        self._deadline_s = 0.0
        self._looks = 0
        self._poller = select.poll()
        self._poller.register(connected, select.POLLIN)

    def run(self) -> None:
        """Raises Corrupt, EOFError, OSError."""
        receive_into = self._socket.recv_into
        # An application may think as long as it likes, but must read its answers.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _FOREVER)
        filled = 0
        while self._watch() and (got := receive_into(memoryview(self._buffer)[filled:])):
            end = filled + got
            at = self._answer_all(end)
            filled = end - at
            if filled or self._deadline_s:
                self._limit(is_new=at > 0, is_whole=not filled)
                self._keep(at, end)

    def _watch(self) -> bool:
        """Looks at the ring of an application that puts, until it says something or has put nothing
        for a while. True."""
        ring = self._desk.session.ring
        if ring is None or not self._looks:
            return True
        ring.set_watched(is_watched=True)
        while self._looks and not self._poller.poll(LOOK_MS):
            self._looks = LOOKS if ring.has_told else self._looks - 1
            if ring.has_told:
                step_aside(ring.processor)
            self._desk.tidy()
        if not self._looks:
            ring.set_watched(is_watched=False)
        return True

    def _answer_all(self, end: int) -> int:
        """Answers the whole frames in the buffer; where the rest begins."""
        connected, answer, buffer = self._socket, self._desk.answer, self._buffer
        at = 0
        while end - at >= HEAD.size:
            head = parse_head(buffer, at)
            stop = at + HEAD.size + head.size
            if stop > end:
                break
            if head.op in _HANDED_OVER:
                self._hand_over(head)
            elif head.op == Op.WATCH:
                self._looks = LOOKS
            else:
                reply = answer(buffer, at + HEAD.size, head)
                if reply:
                    connected.sendall(reply)
                if head.op == Op.STORE:
                    self._desk.tidy()
                    self._looks = LOOKS
            at = stop
        return at

    def _limit(self, *, is_new: bool, is_whole: bool) -> None:
        """Limits the time until a frame is whole, also when it comes byte by byte. Raises
        EOFError."""
        now_s = time.monotonic()
        if not is_new and not is_whole and self._deadline_s and now_s > self._deadline_s:
            raise EOFError("An application did not end what it began to say.")
        was_limited = bool(self._deadline_s)
        if is_whole:
            self._deadline_s = 0.0
        elif is_new or not was_limited:
            self._deadline_s = now_s + FRAME_S_MAX
        if was_limited == is_whole:
            limit = _FOREVER if is_whole else _TIMEVAL.pack(math.ceil(FRAME_S_MAX), 0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)

    def _keep(self, at: int, end: int) -> None:
        """Moves what is no whole frame to the front. The buffer grows as a frame comes, whatever it
        announces."""
        buffer, rest = self._buffer, end - at
        if at:
            buffer[:rest] = buffer[at:end]
        if rest == len(buffer):
            buffer.extend(bytes(min(rest, HEAD.size + parse_head(buffer).size - rest)))
        elif not rest:
            del buffer[BUFFER_BYTES:]

    def _hand_over(self, head: Head) -> None:
        """Descriptors of a slab, to read and to write; or of pins and board."""
        fds: list[int] = []
        try:
            sizes = _HANDED_OVER[head.op](self, head.tag, fds)
            frame = pack_frame(Op.MAPPED, MAPPED_SIZES.pack(*sizes), tag=head.tag)
            socket.send_fds(self._socket, [frame], fds)
        finally:
            close_all(fds)

    def _open_slab(self, number: int, fds: list[int]) -> tuple[int, int]:
        slab = self._desk.store.slab(number)
        if slab is None:
            raise Corrupt(f"There is no slab {number}.")
        fds.append(slab.segment.open_read_only())
        fds.append(slab.segment.open_writable())
        return slab.segment.capacity_bytes, slab.segment.capacity_bytes

    def _open_ring(self, _: int, fds: list[int]) -> tuple[int, int]:
        fds.append(self._desk.store.open_ring(self._desk.session).fd)
        return MEMORY_BYTES, 0

    def _open_words(self, _: int, fds: list[int]) -> tuple[int, int]:
        """Memory of its own for each connection, which goes with it, and the board."""
        session, board = self._desk.session, self._desk.store.state.board
        if session.words is not None:
            raise Corrupt("A connection asks for its pins twice.")
        fd = os.memfd_create("kv-pins", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        fds.append(fd)
        os.ftruncate(fd, PIN_BYTES)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        session.words = memoryview(mmap.mmap(fd, PIN_BYTES)).cast("Q")
        if board.fd < 0:
            fds.append(os.dup(fd))
            return PIN_BYTES, 0
        fds.append(board.open_read_only())
        return PIN_BYTES, board.size_bytes


_HANDED_OVER: dict[int, Callable[[_Conversation, int, list[int]], tuple[int, int]]] = {
    Op.MAP: _Conversation._open_slab,
    Op.MARK: _Conversation._open_words,
    Op.RING: _Conversation._open_ring,
}
