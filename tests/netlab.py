"""Hosts as network namespaces behind one switch, with rates, delays, losses and cut links.

Needs root and iproute2; `require_lab` skips a test clearly where they are missing. Names are of
this process alone, everything is torn down with the context, and what an earlier process left when
it was killed is removed. The lab's network is closed: `expose` lets hosts reach one port of the
machine's own loopback (NATS, say) without using the links that are limited.

Each host has one network card, full duplex: what is limited is what the host sends and what the
switch sends to it, as in a rack with one switch. A link that delays or loses packets is a `Wire`:
a thread that carries each frame between two TAP devices (not every kernel has tc's netem), good for
some 200 Mbit/s.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import re
import select
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
BURST = "512kb"
T = TypeVar("T")
_PREFIX = "tcl"
IP = shutil.which("ip", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
TC = shutil.which("tc", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def missing() -> str | None:
    """Why there can be no lab here; None when there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if IP is None or TC is None:
        return "network namespaces need ip and tc (iproute2)"
    name = f"{_PREFIX}{os.getpid():x}-try"
    try:
        _run(IP, "netns", "add", name)
        for kind in (("tbf", "rate", "1gbit", "burst", BURST, "latency", "20ms"), ("blackhole",)):
            _run(IP, "netns", "exec", name, TC, "qdisc", "replace", "dev", "lo", "root", *kind)
    except subprocess.CalledProcessError as error:
        return f"network namespaces do not work here: {error.stderr.strip()}"
    finally:
        subprocess.run([IP, "netns", "del", name], capture_output=True, check=False)
    return None


def require_lab() -> None:
    """Skips the test where there can be no lab."""
    if (reason := missing()) is not None:
        pytest.skip(reason)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout


class Lab:
    """Hosts by name. Use `lab(...)`, which closes it."""

    def __init__(
        self, hosts: tuple[str, ...], rate: str | None = "1gbit", far: tuple[str, ...] = ()
    ) -> None:
        assert IP is not None
        assert TC is not None
        self._ip, self._tc = IP, TC
        self._base = f"{_PREFIX}{os.getpid():x}"
        self._numbers = {name: number for number, name in enumerate(hosts)}
        self._rates: dict[str, str | None] = {}
        self._proxies: list[_Proxy] = []
        self.wires: dict[str, Wire] = {}
        try:
            self._build(rate, far)
        except BaseException:
            self.close()
            raise

    def _build(self, rate: str | None, far: tuple[str, ...]) -> None:
        switch = self._namespace("sw")
        self._run("netns", "add", switch)
        self._run("-n", switch, "link", "add", "br0", "type", "bridge")
        self._run("-n", switch, "link", "set", "br0", "up")
        for name, number in self._numbers.items():
            host, port = self.namespace(name), f"v{number}"
            self._run("netns", "add", host)
            self._run("-n", host, "link", "set", "lo", "up")
            if name in far:
                self.wires[name] = Wire(host, "eth0", switch, port)
            else:
                veth = ("-n", switch, "link", "add", port, "type", "veth")
                self._run(*veth, "peer", "name", "eth0", "netns", host)
            self._run("-n", switch, "link", "set", port, "master", "br0", "up")
            self._run("-n", host, "addr", "add", f"{self.address(name)}/16", "dev", "eth0")
            self._run("-n", host, "link", "set", "eth0", "up")
            self.limit(name, rate)

    def _namespace(self, name: str) -> str:
        return f"{self._base}-{name}"

    def namespace(self, host: str) -> str:
        """The name of a host's network namespace."""
        return self._namespace(f"h{self._numbers[host]}")

    def address(self, host: str) -> str:
        """The address by which other hosts reach it."""
        number = self._numbers[host]
        return f"10.11.{number // 200}.{10 + number % 200}"

    def enter(self, host: str) -> tuple[str, ...]:
        """What goes in front of a command so that it runs on the host."""
        return (self._ip, "netns", "exec", self.namespace(host))

    # ---- the links -------------------------------------------------------------------------

    def limit(self, host: str, rate: str | None) -> None:
        """Sets the rate of the host's link in each direction, as tc writes it; None: unlimited."""
        self._rates[host] = rate
        for command, device in self._ends(host):
            if rate:
                limit = ("tbf", "rate", rate, "burst", BURST, "latency", "20ms")
                _run(*command, "qdisc", "replace", "dev", device, "root", *limit)
            else:
                free = [*command, "qdisc", "del", "dev", device, "root"]
                subprocess.run(free, capture_output=True, check=False)

    def rate(self, host: str) -> str | None:
        """The rate of its link."""
        return self._rates[host]

    def cut(self, host: str) -> None:
        """Cuts the host's link: nothing comes or goes, and nobody is told."""
        for command, device in self._ends(host):
            _run(*command, "qdisc", "replace", "dev", device, "root", "blackhole")

    def mend(self, host: str) -> None:
        """The link works again, with the rate that it had."""
        for command, device in self._ends(host):
            _run(*command, "qdisc", "del", "dev", device, "root")
        self.limit(host, self._rates[host])

    def _ends(self, host: str) -> Iterator[tuple[list[str], str]]:
        """Both ends of a link: the tc command that reaches it, and the device."""
        yield [*self.enter(host), self._tc], "eth0"
        switch = [self._ip, "netns", "exec", self._namespace("sw"), self._tc]
        yield switch, f"v{self._numbers[host]}"

    def sent_bytes(self, host: str) -> int:
        """What the host has sent to others so far, by its card's count."""
        return self._count(host, "tx_bytes")

    def received_bytes(self, host: str) -> int:
        """What the host has received from others so far."""
        return self._count(host, "rx_bytes")

    def _count(self, host: str, name: str) -> int:
        return int(_run(*self.enter(host), "cat", f"/sys/class/net/eth0/statistics/{name}"))

    # ---- ways out --------------------------------------------------------------------------

    def expose(self, port: int) -> None:
        """On every host 127.0.0.1:`port` is that of the machine from now on."""
        self._proxies += [_Proxy(self.namespace(name), port) for name in self._numbers]

    def close(self) -> None:
        """Removes everything. Safe to repeat. What runs on a host must have ended before."""
        for proxy in self._proxies:
            proxy.close()
        self._proxies.clear()
        for wire in self.wires.values():
            wire.close()
        _remove(self._base)

    def _run(self, *words: str) -> None:
        _run(self._ip, *words)


class _Proxy:
    """Carries connections from a host's loopback to the machine's. The listening socket is made in
    the host's namespace and stays there; all that it accepts is served by one thread."""

    def __init__(self, namespace: str, port: int) -> None:
        self._port = port
        self._listening = _listen_in(namespace, port)
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="lab-proxy", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._wake.close()
        self._thread.join()

    def _serve(self) -> None:
        try:
            while True:
                waiting = [self._woken, self._listening, *self._pairs]
                ready, _, _ = select.select(waiting, [], [])
                if self._woken in ready:
                    return
                for one in ready:
                    self._carry(one)
        finally:
            for one in (self._woken, self._listening, *self._pairs):
                one.close()

    def _carry(self, one: socket.socket) -> None:
        if one is self._listening:
            inner, _ = one.accept()
            try:
                outer = socket.create_connection(("127.0.0.1", self._port))
            except OSError:  # nobody serves there now
                inner.close()
                return
            for end in (inner, outer):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._pairs |= {inner: outer, outer: inner}
            return
        other = self._pairs.get(one)
        if other is None:
            return  # closed by its other end in this very round
        with contextlib.suppress(OSError):
            if data := one.recv(1 << 18):
                other.sendall(data)
                return
        for end in (one, other):
            self._pairs.pop(end, None)
            end.close()


def _listen_in(namespace: str, port: int) -> socket.socket:
    return _inside(namespace, lambda: socket.create_server(("127.0.0.1", port)))


def _inside(namespace: str, make: Callable[[], T]) -> T:
    """What `make` makes inside of a namespace. By a thread of its own: which namespace one is in is
    a property of the thread."""
    made: list[T] = []

    def run() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/run/netns/{namespace}") as file:
            if libc.setns(file.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        made.append(make())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert made, f"it did not work inside of {namespace}"
    return made[0]


class Wire:
    """A link that delays every frame by half of `delay_ms` each way and loses `loss_percent` of
    them, by a random sequence that is always the same. Both can be changed while it runs."""

    def __init__(self, one: str, device: str, other: str, port: str) -> None:
        self.delay_ms = 0.0
        self.loss_percent = 0.0
        self._random = random.Random(7)
        self._ends = (
            _inside(one, lambda: _open_tap(device)),
            _inside(other, lambda: _open_tap(port)),
        )
        self._flying: tuple[deque[tuple[float, bytes]], ...] = (deque(), deque())
        self._closing = False
        self._thread = threading.Thread(target=self._carry, name="lab-wire", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        self._thread.join()
        for fd in self._ends:
            os.close(fd)

    def _carry(self) -> None:
        while not self._closing:
            ready, _, _ = select.select(self._ends, [], [], self._patience())
            now = time.monotonic()
            for number, fd in enumerate(self._ends):
                if fd in ready:
                    self._take(fd, self._flying[number], now + self.delay_ms / 2000)
                self._deliver(self._ends[1 - number], self._flying[number], now)

    def _patience(self) -> float:
        due = min((queue[0][0] for queue in self._flying if queue), default=float("inf"))
        return max(0.0, min(0.05, due - time.monotonic()))

    def _take(self, fd: int, queue: deque[tuple[float, bytes]], due: float) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                frame = os.read(fd, 65536)
                if self._random.random() * 100 >= self.loss_percent / 2:
                    queue.append((due, frame))

    def _deliver(self, fd: int, queue: deque[tuple[float, bytes]], now: float) -> None:
        while queue and queue[0][0] <= now:
            _, frame = queue.popleft()
            with contextlib.suppress(OSError):  # the device is not up yet
                os.write(fd, frame)


def _open_tap(name: str) -> int:
    """A TAP device of this name, in the namespace of the thread."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


def _remove(base: str) -> None:
    """Removes the namespaces whose names begin with `base`; their devices go with them."""
    for name in _namespaces():
        if name.startswith(f"{base}-"):
            subprocess.run([str(IP), "netns", "del", name], capture_output=True, check=False)


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _run(str(IP), "netns", "list").splitlines() if line]


def _remove_orphans() -> None:
    """Removes what processes left that have gone."""
    for name in _namespaces():
        found = re.fullmatch(rf"({_PREFIX}([0-9a-f]+))-\w+", name)
        if found and not os.path.exists(f"/proc/{int(found[2], 16)}"):
            _remove(found[1])


@contextmanager
def lab(*hosts: str, rate: str | None = "1gbit", far: tuple[str, ...] = ()) -> Iterator[Lab]:
    """Hosts that reach each other by `rate`, for as long as the context lasts. Those that are `far`
    have `wires`."""
    _remove_orphans()
    built = Lab(hosts, rate, far)
    try:
        yield built
    finally:
        built.close()
