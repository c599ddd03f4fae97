"""Frames about blocks over a connected stream socket, for the node's own socket and for data ports.
Blocks the calling thread; one at a time."""

from __future__ import annotations

import os
import socket
import struct
import weakref
from collections.abc import Callable
from typing import Final

from tensorcast.schema.block_wire import (
    HEAD,
    OPENING,
    Greeting,
    Head,
    Welcome,
    pack_opening,
    pack_ticket,
    parse_head,
    parse_opening,
    parse_welcome,
)
from tensorcast.schema.errors import Corrupt, PermissionDenied, Timeout, Unavailable
from tensorcast.schema.ids import NodeId
from tensorcast.schema.tickets import Challenge

_TIMEVAL: Final = struct.Struct("ll")

SignTicket = Callable[[NodeId, Challenge], bytes]
"""The ticket that a node wants for its challenge, signed by a mover that knows this application.
Raises TensorCastError."""


class ConnectionLost(Unavailable):
    """The mover closed the connection: it may have been restarted."""


class FrameChannel:
    """Frames over a connected stream socket. Raises ConnectionLost, Timeout, Corrupt.
    `reads_ahead`: a frame that follows another may be received with it."""

    reads_ahead = True

    def __init__(self, connected: socket.socket, node: str, timeout_s: float) -> None:
        self.socket = connected
        self.node = node
        limit = _TIMEVAL.pack(int(timeout_s), int(timeout_s % 1 * 1_000_000))
        connected.setblocking(True)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._timeout_s = timeout_s
        self.buffer = bytearray(1 << 16)
        self._filled = 0
        self._at = 0
        _opened.add(self)

    def abandon(self) -> None:
        """In a forked child: the connection stays the parent's, and the child never uses it."""
        self.socket.close()

    def greet(self, greeting: Greeting, sign: SignTicket | None = None) -> Welcome:
        """Says who calls, with the ticket that the mover may ask for. Raises PermissionDenied with
        what the mover refuses."""
        self.send(pack_opening(greeting))
        welcome = self._receive_welcome()
        if welcome.challenge is None:
            return welcome
        if sign is None:
            raise PermissionDenied(
                f"Node {welcome.node} gives blocks to applications of its cluster's nodes alone.",
                hint="Run this one on a node, or use `tensorcast.connect`.",
                node=welcome.node,
            )
        self.send(pack_ticket(sign(NodeId(welcome.node), welcome.challenge)))
        return self._receive_welcome()

    def _receive_welcome(self) -> Welcome:
        size = parse_opening(self.read(OPENING.size))
        welcome = parse_welcome(self.read(size))
        if welcome.refusal:
            raise PermissionDenied(welcome.refusal, node=self.node)
        return welcome

    def send(self, frame: bytes) -> None:
        """Sends it all."""
        try:
            self.socket.sendall(frame)
        except BlockingIOError as error:
            raise self._late() from error
        except OSError as error:
            raise self._lost() from error

    def receive(self, op: int, body_bytes: int = 0) -> tuple[Head, int]:
        """The next frame, and where in `buffer` its body begins (until the next call). Nothing
        after `body_bytes` of the body, which it must have, is received before the head was looked
        at. Raises Corrupt when it is another one than `op`."""
        self._need(HEAD.size + body_bytes)
        head = parse_head(self.buffer, self._at)
        if head.op != op:
            raise Corrupt(f"The mover answered {head.op}, not {op}.")
        self._need(HEAD.size + head.size)
        at = self._at + HEAD.size
        self._at = at + head.size
        return head, at

    def read(self, size_bytes: int) -> bytes:
        """So many bytes that are no frame."""
        self._need(size_bytes)
        self._at += size_bytes
        return bytes(self.buffer[self._at - size_bytes : self._at])

    def _need(self, size_bytes: int) -> None:
        """Receives until so many bytes follow in the buffer."""
        if self._filled - self._at >= size_bytes:
            return
        if self._at == self._filled:
            self._at = self._filled = 0
        if self._at + size_bytes > len(self.buffer):
            rest = bytes(memoryview(self.buffer)[self._at : self._filled])
            if size_bytes > len(self.buffer):
                self.buffer = bytearray(size_bytes)
            self.buffer[: len(rest)] = rest
            self._at, self._filled = 0, len(rest)
        while self._filled - self._at < size_bytes:
            end = len(self.buffer) if self.reads_ahead else self._at + size_bytes
            self._filled += self._receive_some(memoryview(self.buffer)[self._filled : end])

    def _receive_some(self, target: memoryview) -> int:
        try:
            got = self.socket.recv_into(target)
        except BlockingIOError as error:
            raise self._late() from error
        except OSError as error:
            raise self._lost() from error
        if not got:
            raise self._lost()
        return got

    def _late(self) -> Timeout:
        return Timeout(
            f"The mover of node {self.node} did not answer within {self._timeout_s:g} s.",
            node=self.node,
        )

    def _lost(self) -> ConnectionLost:
        return ConnectionLost(
            f"The mover of node {self.node} closed the connection.",
            hint="It may have been restarted: try again, or see `tcctl status`.",
            node=self.node,
        )


_opened: weakref.WeakSet[FrameChannel] = weakref.WeakSet()


def _abandon_all() -> None:
    for channel in list(_opened):
        channel.abandon()


os.register_at_fork(after_in_child=_abandon_all)
