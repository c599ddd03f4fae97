"""Frames and descriptors over the node's unix socket, and the lifelines of readers.

A lifeline is one end of a socket pair that a reader gets beside its segment. The kernel closes it
with the reader, however that ends, and the mover hears of it.
"""

from __future__ import annotations

import array
import asyncio
import os
import select
import socket
from collections import Counter
from collections.abc import Sequence

from tensorcast.schema.errors import Corrupt, Unavailable
from tensorcast.schema.socket import DESCRIPTORS_MAX, LENGTH, body_bytes

_DESCRIPTOR_BYTES = array.array("i").itemsize
_PIECE_BYTES = 1 << 18


class FrameSocket:
    """Frames (a 4-byte length and a body, descriptors beside the length) over a connected unix
    socket, for asyncio. Owns the socket until `close`. One reader and one writer at a time."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected

    async def receive(self) -> tuple[bytes, tuple[int, ...]] | None:
        """The next body, and the descriptors that came with it (the caller closes them); None when
        the other side has closed. Raises Corrupt for a frame that is cut off or too long."""
        head, fds = await self._receive_head()
        if not head:
            return None
        try:
            return await self._receive_exactly(body_bytes(head)), fds
        except BaseException:
            close_all(fds)
            raise

    async def send(self, frame: bytes, fds: Sequence[int] = ()) -> None:
        """Sends a whole frame (as `encode_frame` makes it) with descriptors, which stay the
        caller's. Raises Unavailable when the other side has closed."""
        loop = asyncio.get_running_loop()
        sent = 0
        try:
            if fds:
                sent = await self._send_head(frame, fds)
            await loop.sock_sendall(self._socket, memoryview(frame)[sent:])
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Unavailable("The application has closed its connection.") from error

    def close(self) -> None:
        """Closes the socket. Safe to repeat."""
        self._socket.close()

    async def _receive_head(self) -> tuple[bytes, tuple[int, ...]]:
        head = b""
        fds: tuple[int, ...] = ()
        try:
            while len(head) < LENGTH.size:
                await _readable(self._socket)
                piece, received = _receive_with_descriptors(self._socket, LENGTH.size - len(head))
                fds += received
                if not piece and not head and not fds:
                    return b"", ()
                if not piece or len(fds) > DESCRIPTORS_MAX:
                    raise Corrupt("A frame on the unix socket was cut off or brought too much.")
                head += piece
        except ConnectionResetError:
            close_all(fds)
            return b"", ()
        except BaseException:
            close_all(fds)
            raise
        return head, fds

    async def _receive_exactly(self, size: int) -> bytes:
        loop = asyncio.get_running_loop()
        received = bytearray()
        while len(received) < size:
            piece = await loop.sock_recv(self._socket, min(size - len(received), _PIECE_BYTES))
            if not piece:
                raise Corrupt("A frame on the unix socket was cut off.")
            received += piece
        return bytes(received)

    async def _send_head(self, frame: bytes, fds: Sequence[int]) -> int:
        """Sends the length with the descriptors; returns how much of the frame is sent."""
        while True:
            try:
                return socket.send_fds(self._socket, [frame[: LENGTH.size]], list(fds))
            except BlockingIOError:
                await _writable(self._socket)


def _receive_with_descriptors(connected: socket.socket, size: int) -> tuple[bytes, tuple[int, ...]]:
    """Reads at most `size` bytes without waiting, and the descriptors beside them."""
    space = socket.CMSG_SPACE(DESCRIPTORS_MAX * _DESCRIPTOR_BYTES)
    piece, ancillary, flags, _ = connected.recvmsg(size, space, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % _DESCRIPTOR_BYTES])
    if flags & socket.MSG_CTRUNC:
        close_all(fds)
        raise Corrupt("A frame on the unix socket brought too many descriptors.")
    return piece, tuple(fds)


def close_all(fds: Sequence[int]) -> None:
    """Closes descriptors."""
    for fd in fds:
        os.close(fd)


async def _readable(connected: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(connected.fileno(), _resolve, ready)
    try:
        await ready
    finally:
        loop.remove_reader(connected.fileno())


async def _writable(connected: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_writer(connected.fileno(), _resolve, ready)
    try:
        await ready
    finally:
        loop.remove_writer(connected.fileno())


def _resolve(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


class Lifelines:
    """The mover's ends of all lifelines, by the name of their segment.

    `fileno()` becomes readable when a reader has gone: `loop.add_reader(lifelines.fileno(), ...)`
    and call `reap` there.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._ends: dict[int, tuple[socket.socket, str]] = {}
        self._counts: Counter[str] = Counter()

    def fileno(self) -> int:
        return self._epoll.fileno()

    def grant(self, segment: str) -> int:
        """Counts one more reader; returns the descriptor that it must hold as long as its mapping
        lives. The caller closes its copy after sending it (if it could not be sent, that alone
        ends the lifeline)."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._epoll.register(ours.fileno(), select.EPOLLIN | select.EPOLLRDHUP)
        self._ends[ours.fileno()] = (ours, segment)
        self._counts[segment] += 1
        return theirs.detach()

    def readers(self, segment: str) -> int:
        """How many readers a segment has."""
        return self._counts[segment]

    def total(self) -> int:
        """How many readers there are."""
        return len(self._ends)

    def reap(self) -> tuple[str, ...]:
        """Forgets the readers that have gone; returns the segments that have none any more. Never
        blocks."""
        deserted: list[str] = []
        for fd, _ in self._epoll.poll(0):
            ours, segment = self._ends[fd]
            if not _has_ended(ours):
                continue
            self._drop(fd)
            if not self._counts[segment]:
                del self._counts[segment]
                deserted.append(segment)
        return tuple(deserted)

    def close(self) -> None:
        """Closes all ends. Safe to repeat."""
        for fd in list(self._ends):
            self._drop(fd)
        self._epoll.close()

    def _drop(self, fd: int) -> None:
        ours, segment = self._ends.pop(fd)
        self._counts[segment] -= 1
        self._epoll.unregister(fd)
        ours.close()


def _has_ended(ours: socket.socket) -> bool:
    """Whether the other end is closed; what a reader writes there is thrown away."""
    try:
        return not ours.recv(_PIECE_BYTES)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
