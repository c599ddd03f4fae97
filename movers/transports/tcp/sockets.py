"""Blocking sockets with deadlines: addresses, options, reading exactly so many bytes.

Sockets block in the kernel (SO_RCVTIMEO, SO_SNDTIMEO), so `recv_into` and `sendfile` run without
the GIL and without a poll before each call. A peer that trickles is caught by the deadline that
every read and send has as a whole.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import select
import socket
import struct
import time
from pathlib import Path

from tensorcast.schema.errors import InvalidArgument

KEEPALIVE_S = 30
SENDFILE_BYTES = 4 << 20
RATE_MIN = 1 << 20
"""Bytes a second that a peer must manage on top of the time that it may stall."""

_TCP_RTO_MAX_MS = 44
"""Linux 6.15: the longest pause between two attempts to send the same bytes again."""

_RTO_MAX_MS = 1000

_TIMEVAL = struct.Struct("ll")


class SilenceError(TimeoutError):
    """Nothing at all came for as long as a call may take."""


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[host]:port`. Raises InvalidArgument."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise InvalidArgument(f"{address!r} is no address.", hint="Write host:port.")
    return host.removeprefix("[").removesuffix("]"), int(port)


def format_address(host: str, port: int) -> str:
    """The text of an address; IPv6 hosts in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen_on(address: str, backlog: int) -> socket.socket:
    """A listening socket; on `[::]` it takes IPv4 as well. Raises OSError or InvalidArgument."""
    host, port = parse_address(address)
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, where = found[0]
    listening = socket.socket(family, kind, protocol)
    try:
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::")
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(backlog)
    except BaseException:
        listening.close()
        raise
    return listening


def tune(connected: socket.socket, stall_s: float) -> None:
    """Sets the options of a data connection: no delay, keep-alive, and at most `stall_s` without
    any progress in one call."""
    connected.settimeout(None)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
    limit_calls(connected, stall_s)
    with contextlib.suppress(OSError):
        # After a cut of the link: within a second, and not after twice as long as the cut.
        connected.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, _RTO_MAX_MS)
    if is_on_this_host(connected):
        # Measured: over loopback it is faster than bbr by a fifth to a half: it does not pace.
        set_congestion(connected, "cubic")


def congestion_of(connected: socket.socket) -> str:
    """The name of the congestion control in use."""
    name = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return name.rstrip(b"\0").decode("ascii", "replace")


def set_congestion(connected: socket.socket, name: str) -> None:
    """Changes the congestion control, if this kernel has it and lets us."""
    with contextlib.suppress(OSError):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())


def limit_calls(connected: socket.socket, stall_s: float) -> None:
    """Lets every receive and send fail after `stall_s` without progress."""
    limit = _TIMEVAL.pack(int(stall_s), int(stall_s % 1 * 1_000_000))
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def is_on_this_host(connected: socket.socket) -> bool:
    """Whether both ends of a connection are on this machine (and in one network namespace). One
    that the peer has closed already is not."""
    try:
        theirs = _address_of(connected.getpeername()[0])
    except OSError:
        return False
    ours = _address_of(connected.getsockname()[0])
    return theirs.is_loopback or theirs == ours


def _address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address without its scope; an IPv4 address in an IPv6 one is itself (RFC 4291, 2.5.5)."""
    found = ipaddress.ip_address(host.partition("%")[0])
    return getattr(found, "ipv4_mapped", None) or found


@functools.cache
def window_bytes_max() -> int:
    """The most that the kernel lets one connection have on its way to us: half of the largest
    receive buffer, as the other half is for its own books."""
    try:
        return int(Path("/proc/sys/net/ipv4/tcp_rmem").read_text().split()[2]) // 2
    except (OSError, ValueError, IndexError):
        return 3 << 20


def deadline_for(size_bytes: int, stall_s: float) -> float:
    """The moment (monotonic) until which so many bytes must have passed."""
    return time.monotonic() + stall_s + size_bytes / RATE_MIN


def receive_into(connected: socket.socket, target: memoryview, deadline: float) -> None:
    """Fills `target`, as far as it can in one call: without the GIL, and woken by the kernel only
    to copy. Raises EOFError when the peer closes, TimeoutError, OSError."""
    at, size = 0, target.nbytes
    while at < size:
        try:
            got = connected.recv_into(target[at:] if at else target, 0, socket.MSG_WAITALL)
        except BlockingIOError as error:
            raise SilenceError("The peer fell silent.") from error
        if not got:
            raise EOFError("The peer closed the connection.")
        at += got
        if at < size and time.monotonic() > deadline:
            raise TimeoutError("The peer is too slow.")


def receive(connected: socket.socket, size_bytes: int, deadline: float) -> bytes:
    """Exactly so many bytes, for small messages. Raises as `receive_into`."""
    target = bytearray(size_bytes)
    receive_into(connected, memoryview(target), deadline)
    return bytes(target)


def send(connected: socket.socket, content: bytes, *, more: bool = False) -> None:
    """Sends a small message; `more` lets it leave together with what follows. Raises
    TimeoutError, OSError."""
    flags = socket.MSG_MORE if more else 0
    view = memoryview(content)
    while view.nbytes:
        try:
            view = view[connected.send(view, flags) :]
        except BlockingIOError as error:
            raise TimeoutError("The peer does not read.") from error


def send_file(
    connected: socket.socket, fd: int, position: int, size_bytes: int, deadline: float
) -> None:
    """Sends bytes of a file without copying them. Raises EOFError when the file is too short,
    TimeoutError, OSError."""
    end = position + size_bytes
    while position < end:
        try:
            sent = os.sendfile(
                connected.fileno(), fd, position, min(end - position, SENDFILE_BYTES)
            )
        except BlockingIOError as error:
            raise TimeoutError("The peer does not read.") from error
        if not sent:
            raise EOFError("The file is shorter than it should be.")
        position += sent
        if position < end and time.monotonic() > deadline:
            raise TimeoutError("The peer reads too slowly.")


def readable(connected: socket.socket, timeout_s: float) -> bool:
    """Whether something (or the end) can be read within `timeout_s`."""
    poll = select.poll()
    poll.register(connected, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def shut_down(connected: socket.socket) -> None:
    """Wakes every thread that waits in the socket. Safe to repeat."""
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
