"""Both ends of RDMA transfers: transports in one process (ours on rxe0, a served one on rxe1), bare
queue pairs, and the guest's network, which can be cut."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from conformance.contents import Shelf
from tensorcast.movers.transports.rdma import verbs
from tensorcast.movers.transports.rdma.device import Device, open_devices
from tensorcast.movers.transports.rdma.endpoint import Endpoint
from tensorcast.movers.transports.rdma.transport import RdmaTransport, open_transport
from tensorcast.movers.transports.rdma.wire import MAGIC
from tensorcast.movers.transports.tcp.server import TcpServer
from tensorcast.schema.rdma import RdmaSettings
from tensorcast.storage.memory import address_of
from tensorcast.storage.nics import read_nics

SERVED = "n1"
WAIT_S = 30.0


@contextlib.contextmanager
def asking(**settings: object) -> Iterator[RdmaTransport]:
    """A transport that pulls."""
    transport = open_transport("c1", "n2", RdmaSettings(**{"devices": ("rxe0",), **settings}))
    try:
        yield transport
    finally:
        transport.close()


@contextlib.contextmanager
def serving(shelf: Shelf, **settings: object) -> Iterator[tuple[TcpServer, RdmaTransport]]:
    """A data port that lends what is on the shelf."""
    transport = open_transport("c1", SERVED, RdmaSettings(**{"devices": ("rxe1",), **settings}))
    guests = {MAGIC: transport.server(shelf).serve_peer}
    server = TcpServer("127.0.0.1:0", shelf, "c1", SERVED, guests=guests)
    try:
        yield server, transport
    finally:
        server.close()
        transport.close()


@contextlib.contextmanager
def devices(**settings: object) -> Iterator[tuple[Device, Device]]:
    """rxe0 and rxe1."""
    names = {"devices": ("rxe0", "rxe1"), **settings}
    opened = open_devices(read_nics(), RdmaSettings(**names))
    try:
        yield opened
    finally:
        for device in opened:
            device.close()


class Registered:
    """Memory that is registered with a device."""

    def __init__(self, device: Device, size_bytes: int, access: int, fill: bytes = b"\0") -> None:
        self.memory = memoryview(mmap.mmap(-1, size_bytes))
        self.memory[:] = fill * size_bytes
        self.address = address_of(self.memory)
        self.region = verbs.MR(device.domain, size_bytes, access, address=self.address)

    def close(self) -> None:
        self.region.close()


@dataclass
class Pair:
    """Two connected queue pairs, memory of ours that can be written, and the peer's that can be
    READ."""

    ours: Endpoint
    theirs: Endpoint
    target: Registered
    source: Registered

    def read(self, key: int, *, skip: int = 0, size: int = 4096, lkey: int | None = None) -> int:
        """The status of a READ."""
        mine = self.target.region.lkey if lkey is None else lkey
        where = (self.source.address + skip, key)
        self.ours.post_read(1 << 40, (self.target.address, mine), size, where)
        return status_of(self.ours, 1 << 40)

    def close(self) -> None:
        for one in (self.ours, self.theirs, self.target, self.source):
            one.close()


@contextlib.contextmanager
def connected(size_bytes: int = 1 << 16, **settings: object) -> Iterator[Pair]:
    """A pair between the two devices."""
    flags = verbs.enums
    with devices(**settings) as (ours, theirs):
        pair = Pair(
            Endpoint(ours),
            Endpoint(theirs),
            Registered(ours, size_bytes, flags.IBV_ACCESS_LOCAL_WRITE),
            Registered(theirs, size_bytes, flags.IBV_ACCESS_REMOTE_READ, b"s"),
        )
        pair.ours.connect(pair.theirs.card())
        pair.theirs.connect(pair.ours.card())
        try:
            yield pair
        finally:
            pair.close()


def status_of(endpoint: Endpoint, number: int) -> int:
    """How the request of that number ended."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        for done in endpoint.poll():
            if done.number == number:
                return done.status
        endpoint.wait((), 0.5)
    raise AssertionError(f"request {number} does not end")


def resources() -> dict[str, int]:
    """How many objects the kernel has, both devices together: `rdma resource`."""
    text = subprocess.run(["rdma", "resource"], capture_output=True, text=True, check=True).stdout
    found: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split()[2:]
        for name, count in zip(words[::2], words[1::2], strict=False):
            found[name] = found.get(name, 0) + int(count)
    return found


def run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)


def take_down(interface: str) -> None:
    """Clears IFF_UP of a network interface."""
    get_flags, set_flags, is_up, request = 0x8913, 0x8914, 1, "16sh22x"
    name = interface.encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        told = fcntl.ioctl(any_socket, get_flags, struct.pack(request, name, 0))
        _, flags = struct.unpack(request, told)
        fcntl.ioctl(any_socket, set_flags, struct.pack(request, name, flags & ~is_up))


@contextlib.contextmanager
def cut_link() -> Iterator[None]:
    """The link between the two devices is down while the context lasts. No program is started for
    that: in the guest it would take as long as a transfer."""
    take_down("v0")
    try:
        yield
    finally:
        run("ip link set v0 up")
        run("ip route replace 10.77.0.2 dev v0 src 10.77.0.1 table 101")
        run("ip route replace 10.77.0.1 dev v1 src 10.77.0.2 table 102")
        run("ip neigh replace 10.77.0.2 lladdr 02:00:0a:4d:00:02 dev v0 nud permanent")
        run("ip neigh replace 10.77.0.1 lladdr 02:00:0a:4d:00:01 dev v1 nud permanent")


@contextlib.contextmanager
def ipv6() -> Iterator[None]:
    """Both interfaces have addresses of one IPv6 network while the context lasts."""
    for n in (0, 1):
        ours, theirs, table = f"fd77::{n + 1}", f"fd77::{2 - n}", 101 + n
        run(f"ip -6 addr add {ours}/64 dev v{n} nodad")
        # Both addresses are local: as for IPv4, packets between them must not take lo.
        run(f"ip -6 rule add pref 10 iif lo from {ours} to {theirs} lookup {table}")
        run(f"ip -6 route replace {theirs} dev v{n} table {table}")
        run(f"ip -6 neigh replace {theirs} lladdr 02:00:0a:4d:00:0{2 - n} dev v{n} nud permanent")
    run("ip -6 rule add pref 100 lookup local")
    run("ip -6 rule del pref 0")
    try:
        yield
    finally:
        run("ip -6 rule add pref 0 lookup local")
        run("ip -6 rule del pref 100")
        for n in (0, 1):
            run("ip -6 rule del pref 10")
            run(f"ip -6 addr del fd77::{n + 1}/64 dev v{n}")


def add_device(name: str, interface: str) -> None:
    """A Soft-RoCE device on an interface, with its node where libibverbs looks for it: there is no
    udev in the guest."""
    run(f"rdma link add {name} type rxe netdev {interface}")
    deadline = time.monotonic() + WAIT_S
    while True:
        nodes = [
            path.name
            for path in Path("/sys/class/infiniband_verbs").glob("uverbs*")
            if (path / "ibdev").read_text().strip() == name
        ]
        if nodes and "ACTIVE" in Path(f"/sys/class/infiniband/{name}/ports/1/state").read_text():
            break
        assert time.monotonic() < deadline, nodes
        time.sleep(0.05)
    place = Path("/dev/infiniband", nodes[0])
    if not place.exists():
        place.unlink(missing_ok=True)
        place.symlink_to(f"../{nodes[0]}")


def break_pair(endpoint: Endpoint) -> None:
    """The adapter gives a queue pair up."""
    attributes = verbs.QPAttr()
    attributes.qp_state = verbs.enums.IBV_QPS_ERR
    endpoint._pair.modify(attributes, verbs.enums.IBV_QP_STATE)
