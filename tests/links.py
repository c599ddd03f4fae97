"""A link between two network namespaces that delays and loses packets, and can be cut.

For kernels with or without netem: a process between two pairs of interfaces hands each frame on,
later or never. Needs root. As a program it is that process; its standard input says `cut` or
`mend`.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import heapq
import itertools
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Final

HERE, THERE = "10.231.77.1", "10.231.77.2"

_SIOCETHTOOL: Final = 0x8946
_SET_TX_CHECKSUM, _SET_TSO, _SET_GSO, _SET_GRO = 0x17, 0x1F, 0x24, 0x2C
_FRAME_BYTES: Final = 65536
_SO_RCVBUFFORCE: Final = 33


class Link:
    """One end is here (`HERE`), the other one in a namespace (`THERE`). A context."""

    def __init__(self, delay_s: float = 0.0, loss: float = 0.0, rate: str = "") -> None:
        """`rate`: as tc writes it, for what leaves the other end."""
        name = str(os.getpid() % 100_000)
        self.namespace, self._middle = f"tc-far-{name}", f"tc-mid-{name}"
        self._ends = [f"tca{name}", f"tcb{name}"]
        self._inner = [f"tcc{name}", f"tcd{name}"]
        self._delay_s, self._loss, self._rate = delay_s, loss, rate
        self._opened = contextlib.ExitStack()
        self._relay: subprocess.Popen[str] | None = None

    def inside(self, *command: str) -> list[str]:
        """The command, for the namespace of the other end."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def __enter__(self) -> Link:
        with contextlib.ExitStack() as opened:
            for namespace in (self.namespace, self._middle):
                opened.callback(_try, "ip", "netns", "del", namespace)
                _run("ip", "netns", "add", namespace)
            for end, inner in zip(self._ends, self._inner, strict=True):
                opened.callback(_try, "ip", "link", "del", end)
                _run("ip", "link", "add", end, "type", "veth", "peer", "name", inner)
                _run("ip", "link", "set", inner, "netns", self._middle)
            _run("ip", "link", "set", self._ends[1], "netns", self.namespace)
            self._raise_ends()
            self._relay = opened.enter_context(self._relaying())
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def cut(self) -> None:
        """From now on nothing gets through."""
        self._tell("cut")

    def mend(self) -> None:
        """From now on everything gets through as before."""
        self._tell("mend")

    def _tell(self, word: str) -> None:
        assert self._relay is not None
        assert self._relay.stdin is not None
        self._relay.stdin.write(word + "\n")
        self._relay.stdin.flush()

    def _raise_ends(self) -> None:
        here, there = self._ends
        _run("ip", "addr", "add", f"{HERE}/30", "dev", here)
        _run("ip", "link", "set", here, "up")
        _run(*self.inside("ip", "addr", "add", f"{THERE}/30", "dev", there))
        _run(*self.inside("ip", "link", "set", there, "up"))
        plain = [sys.executable, "-P", __file__, "plain"]
        _run(*plain, here)
        _run(*self.inside(*plain, there))
        if self._rate:
            shape = ["root", "tbf", "rate", self._rate, "burst", "64k", "latency", "50ms"]
            _run(*self.inside("tc", "qdisc", "add", "dev", there, *shape))

    @contextlib.contextmanager
    def _relaying(self) -> Iterator[subprocess.Popen[str]]:
        for inner in self._inner:
            _run("ip", "netns", "exec", self._middle, "ip", "link", "set", inner, "up")
        command = ["ip", "netns", "exec", self._middle, sys.executable, "-P", __file__, "relay"]
        with subprocess.Popen(
            [*command, *self._inner, str(self._delay_s), str(self._loss)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as relay:
            assert relay.stdout is not None
            assert relay.stdout.readline().strip() == "ready"
            try:
                yield relay
            finally:
                relay.kill()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _try(*command: str) -> None:
    subprocess.run(command, check=False, capture_output=True)


def make_plain(interface: str) -> None:
    """Whole packets with whole checksums: a relay cannot finish what a device would."""
    with socket.socket() as any_socket:
        for what in (_SET_TX_CHECKSUM, _SET_TSO, _SET_GSO, _SET_GRO):
            value = array.array("B", struct.pack("II", what, 0))
            request = struct.pack("16sP", interface.encode(), value.buffer_info()[0])
            with contextlib.suppress(OSError):
                fcntl.ioctl(any_socket, _SIOCETHTOOL, request)


def relay(first: str, second: str, delay_s: float, loss: float) -> None:
    """Hands frames on between two interfaces until standard input ends."""
    sockets = [socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) for _ in range(2)]
    for each, name in zip(sockets, (first, second), strict=True):
        each.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 64 << 20)
        each.bind((name, 0))
        each.setblocking(False)
    other = {sockets[0]: sockets[1], sockets[1]: sockets[0]}
    chance, order = random.Random(7), itertools.count()
    waiting: list[tuple[float, int, socket.socket, bytes]] = []
    is_cut = False
    poll = select.poll()
    for fd in (0, *(each.fileno() for each in sockets)):
        poll.register(fd, select.POLLIN)
    print("ready", flush=True)
    while True:
        pause_ms = max(0.0, waiting[0][0] - time.monotonic()) * 1000 if waiting else None
        readable = {fd for fd, _ in poll.poll(pause_ms)}
        if 0 in readable:
            word = os.read(0, 100).decode().split()
            if not word:
                return
            is_cut = word[-1] == "cut"
        for each in sockets:
            for frame in _frames(each):
                if not is_cut and chance.random() >= loss:
                    due = time.monotonic() + delay_s
                    heapq.heappush(waiting, (due, next(order), other[each], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, target, frame = heapq.heappop(waiting)
            with contextlib.suppress(OSError):
                target.send(frame)


def _frames(source: socket.socket) -> Iterator[bytes]:
    """What has come in, but not what we sent there ourselves."""
    for _ in range(64):
        try:
            frame, address = source.recvfrom(_FRAME_BYTES)
        except BlockingIOError:
            return
        if address[2] != socket.PACKET_OUTGOING:
            yield frame


if __name__ == "__main__":
    if sys.argv[1] == "plain":
        make_plain(sys.argv[2])
    else:
        relay(sys.argv[2], sys.argv[3], float(sys.argv[4]), float(sys.argv[5]))
