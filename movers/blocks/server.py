"""The node's own socket for blocks: one blocking thread for each application's connection.

Outside of the event loop on purpose: an answer costs one wake-up, and no other work of the mover
stands before it. Bytes of blocks never pass here: applications read and write the slabs.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import socket
import struct
import threading
import time
from pathlib import Path

from tensorcast.movers.blocks.base import BlockLocator
from tensorcast.movers.blocks.desk import Desk
from tensorcast.movers.blocks.session import Session
from tensorcast.movers.blocks.store import BlockStore
from tensorcast.movers.memory.handover import close_all
from tensorcast.movers.sockets import check_actor, check_peer, listen_at
from tensorcast.movers.transports.tcp.sockets import limit_calls, receive, shut_down
from tensorcast.schema.block_board import PIN_BYTES
from tensorcast.schema.block_wire import (
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

HELLO_S_MAX = 10.0
SEND_S_MAX = 20.0
CONNECTIONS_MAX = 512
BUFFER_BYTES = 64 << 10
_FOREVER = struct.pack("ll", 0, 0)
_logger = logging.getLogger(__name__)


class BlockServer:
    """Listens on a path from construction until `close`, which removes it."""

    def __init__(
        self, path: Path, store: BlockStore, locator: BlockLocator, cluster: str, node: NodeId
    ) -> None:
        self._path = path
        self._store = store
        self._locator = locator
        self._cluster = cluster
        self._node = node
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
                    connected, self._cluster, self._node, self._store.life, is_local=True
                )
                self._store.join(session)
                _Conversation(connected, Desk(self._store, self._locator, session)).run()
        except (EOFError, OSError) as error:
            _logger.debug("a connection for blocks ended: %s", error)
        except TensorCastError as error:
            _logger.warning("a connection for blocks was closed: %s", error)
        finally:
            self._store.leave(session)
            with self._lock:
                del self._open[threading.current_thread()]


def greet(
    connected: socket.socket, cluster: str, node: NodeId, life: str, *, is_local: bool
) -> Session:
    """Checks who calls, and answers. Raises Corrupt, PermissionDenied, EOFError, OSError."""
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
    connected.sendall(pack_opening(Welcome(node=node, life=life, refusal=refusal)))
    if refusal:
        raise PermissionDenied(refusal)
    return Session(greeting.actor)


class _Conversation:
    """Reads frames and sends answers until the application goes."""

    def __init__(self, connected: socket.socket, desk: Desk) -> None:
        self._socket = connected
        self._desk = desk
        self._buffer = bytearray(BUFFER_BYTES)

    def run(self) -> None:
        """Raises Corrupt, EOFError, OSError."""
        connected, answer = self._socket, self._desk.answer
        # An application may think as long as it likes, but must read its answers.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _FOREVER)
        buffer = self._buffer
        filled = 0
        while got := connected.recv_into(memoryview(buffer)[filled:]):
            filled += got
            at = 0
            while filled - at >= HEAD.size:
                head = parse_head(buffer, at)
                stop = at + HEAD.size + head.size
                if stop > filled:
                    break
                if head.op in (Op.MAP, Op.MARK):
                    self._hand_over(head)
                else:
                    reply = answer(buffer, at + HEAD.size, head)
                    if reply:
                        connected.sendall(reply)
                at = stop
            if at == filled:
                filled = 0
            else:
                buffer, filled = self._keep(buffer, at, filled)

    def _keep(self, buffer: bytearray, at: int, filled: int) -> tuple[bytearray, int]:
        """The buffer with what was not a whole frame, large enough for that frame."""
        rest = bytes(memoryview(buffer)[at:filled])
        needed = BUFFER_BYTES
        if len(rest) >= HEAD.size:
            needed = max(needed, HEAD.size + parse_head(rest).size)
        if len(buffer) != needed:
            buffer = bytearray(needed)
        buffer[: len(rest)] = rest
        return buffer, len(rest)

    def _hand_over(self, head: Head) -> None:
        """Descriptors of a slab, to read and to write; or of pins and board."""
        fds: list[int] = []
        try:
            sizes = self._open_words(fds) if head.op == Op.MARK else self._open_slab(head.tag, fds)
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

    def _open_words(self, fds: list[int]) -> tuple[int, int]:
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
