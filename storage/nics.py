"""The RDMA devices of a machine: what the kernel says of them, and which of them to use. The choice
is a pure function over the snapshot that `read_machine` takes of sysfs, and changes nothing."""

from __future__ import annotations

import contextlib
import ipaddress
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

INFINIBAND: Final = Path("/sys/class/infiniband")
GIDS_MAX: Final = 256
PORTS_MAX: Final = 16
ETHERNET, NATIVE = "Ethernet", "InfiniBand"
_FAMILIES: Final = ("ipv4", "ipv6", "link", "ib")
_NO_GID: Final = "0000:0000:0000:0000:0000:0000:0000:0000"


class Gid(msgspec.Struct, frozen=True, kw_only=True):
    """An address of a port: `kind` is "RoCE v2" or "IB/RoCE v1", `interface` its network
    interface."""

    index: int
    address: str
    kind: str
    interface: str = ""

    @property
    def is_routable(self) -> bool:
        return self.kind == "RoCE v2"

    @property
    def family(self) -> str:
        """Which addresses it can talk to: "ipv4", "ipv6", "link" (one link only) or "ib"."""
        if not self.is_routable:
            return "ib"
        found = ipaddress.IPv6Address(self.address)
        if found.ipv4_mapped is not None:
            return "ipv4"
        return "link" if found.is_link_local else "ipv6"


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """A port of a device. `link` is "Ethernet" (RoCE) or "InfiniBand"; `interface` its network
    interface ("": not known) and `mtu_bytes` what that carries (0: not known)."""

    number: int
    is_active: bool
    link: str
    gbit_s: float
    lid: int = 0
    gids: tuple[Gid, ...] = ()
    mtu_bytes: int = 0
    interface: str = ""

    @property
    def fault(self) -> str | None:
        """Why it cannot be used; None when it can."""
        if not self.is_active:
            return "its link is down"
        if self.link == ETHERNET and choose_gid(self.gids) is None:
            return "it has no GID: its network interface has no address"
        if self.link == NATIVE and not self.lid:
            return "it has no LID: the subnet manager does not know it"
        return None


class Nic(msgspec.Struct, frozen=True, kw_only=True):
    """A device. `pci` is the chain of bridges above it, outermost first, () for one in software;
    `numa` its NUMA node (-1: any)."""

    name: str
    ports: tuple[Port, ...]
    numa: int = -1
    pci: tuple[str, ...] = ()


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where memory lies: the NUMA node of DRAM, or the PCI chain of a GPU."""

    numa: int = -1
    pci: tuple[str, ...] = ()


ANYWHERE: Final = Place()


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A port of a device, taken or not, and one sentence that says why."""

    nic: str
    port: int
    is_taken: bool
    why: str


def choose_nics(
    nics: Sequence[Nic], place: Place = ANYWHERE, wanted: Sequence[str] = ()
) -> tuple[Choice, ...]:
    """Every port, those that are taken first, best first: of the ports that work, the nearest to
    `place`, and of these the fastest. With `wanted`, names of devices, only those, in that order.
    Ports that are half as fast as the best, or further away than it, are left out: bytes that take
    the slow way hold up the others."""
    found = [(nic, port) for nic in nics for port in nic.ports]
    usable = [(nic, port) for nic, port in found if _fault_of(nic, port, wanted) is None]
    if wanted:
        taken = sorted(usable, key=lambda one: wanted.index(one[0].name))
        why = "it was asked for"
    else:
        ordered = sorted(usable, key=lambda one: _order(one, place))
        taken = [one for one in ordered if _is_as_good(one, ordered[0], place)]
        why = "it works"
    left = [one for one in found if one not in taken]
    return (
        *(_choice(nic, port, f"{why}{_near(nic, place)}, {_speed(port)}") for nic, port in taken),
        *(_refusal(one, taken, place, wanted) for one in left),
    )


def choose_near(
    nics: Sequence[Nic], places: Sequence[Place] = (), wanted: Sequence[str] = ()
) -> tuple[Choice, ...]:
    """As `choose_nics`, for memory in several places: what is best for any of them is taken."""
    rounds = [choose_nics(nics, place, wanted) for place in places or (ANYWHERE,)]
    taken = {(one.nic, one.port): one for found in rounds for one in found if one.is_taken}
    left = [one for one in rounds[0] if (one.nic, one.port) not in taken]
    return (*taken.values(), *left)


def _choice(nic: Nic, port: Port, why: str) -> Choice:
    return Choice(nic=nic.name, port=port.number, is_taken=True, why=why)


def _refusal(
    one: tuple[Nic, Port],
    taken: Sequence[tuple[Nic, Port]],
    place: Place,
    wanted: Sequence[str],
) -> Choice:
    nic, port = one
    why = _fault_of(nic, port, wanted)
    if why is None:
        is_far = taken and distance(nic, place) > distance(taken[0][0], place)
        why = f"{taken[0][0].name} is {'nearer' if is_far else 'faster'}"
    return Choice(nic=nic.name, port=port.number, is_taken=False, why=why)


def _fault_of(nic: Nic, port: Port, wanted: Sequence[str]) -> str | None:
    """Why a port cannot be used; None when it can."""
    if wanted and nic.name not in wanted:
        return "another one was asked for"
    return port.fault


def _order(one: tuple[Nic, Port], place: Place) -> tuple[int, float, str, int]:
    nic, port = one
    return distance(nic, place), -port.gbit_s, nic.name, port.number


def _is_as_good(one: tuple[Nic, Port], best: tuple[Nic, Port], place: Place) -> bool:
    is_near = distance(one[0], place) <= distance(best[0], place)
    return is_near and one[1].gbit_s * 2 > best[1].gbit_s


def distance(nic: Nic, place: Place) -> int:
    """How far a device is from memory: 0 below the same PCI switch as a GPU, 1 on the same NUMA
    node, 2 when that is not known, 3 on another one."""
    if place.pci and nic.pci and nic.pci[:2] == place.pci[:2]:
        return 0
    if nic.numa < 0 or place.numa < 0:
        return 2
    return 1 if nic.numa == place.numa else 3


def _near(nic: Nic, place: Place) -> str:
    return {0: " below the GPU's switch", 1: f" on NUMA node {nic.numa}"}.get(
        distance(nic, place), ""
    )


def _speed(port: Port) -> str:
    return f"{port.gbit_s:g} Gbit/s {'RoCE' if port.link == ETHERNET else port.link}"


def choose_gid(gids: Sequence[Gid], index: int | None = None) -> Gid | None:
    """The GID to use: the one of this index if one is given, else the first of `best_gids`. None:
    there is none."""
    return next(iter(best_gids(gids, index)), None)


def best_gids(gids: Sequence[Gid], index: int | None = None) -> tuple[Gid, ...]:
    """One of each family, those that reach furthest first: RoCE v2 over IPv4, over IPv6, within a
    link, then RoCE v1. With `index` that one alone."""
    known = [gid for gid in gids if gid.address != _NO_GID and index in (None, gid.index)]
    ordered = sorted(known, key=lambda gid: (_FAMILIES.index(gid.family), gid.index))
    return tuple({gid.family: gid for gid in reversed(ordered)}.values())[::-1]


def match_gids(ours: Sequence[Gid], theirs: Sequence[Gid]) -> tuple[Gid, Gid] | None:
    """The first of ours that can talk to one of the peer's, and that one."""
    for gid in ours:
        for other in theirs:
            if (gid.kind, gid.family) == (other.kind, other.family):
                return gid, other
    return None


def read_nics(root: Path = INFINIBAND) -> tuple[Nic, ...]:
    """The devices that the kernel knows, by name; () where it knows none."""
    return tuple(_read_nic(path) for path in _listed(root))


def _read_nic(path: Path) -> Nic:
    ports = [_read_port(path, port) for port in _listed(path / "ports")[:PORTS_MAX]]
    device = path / "device"
    return Nic(
        name=path.name,
        ports=tuple(ports),
        numa=_number(_text(device / "numa_node"), -1),
        pci=pci_chain(device.resolve()) if device.exists() else (),
    )


def pci_chain(device: Path) -> tuple[str, ...]:
    """The bridges above a device, outermost first, by its resolved path in sysfs."""
    parts = device.parts
    return tuple(part for part in parts[:-1] if part.startswith("pci") or part.count(":") == 2)


def _read_port(nic: Path, port: Path) -> Port:
    gids = tuple(gid for path in _listed(port / "gids") if (gid := _read_gid(port, path)))
    known = {gid.interface for gid in gids if gid.interface}
    interfaces = known or _interfaces_below(nic)
    return Port(
        number=int(port.name),
        is_active="ACTIVE" in _text(port / "state"),
        link=_text(port / "link_layer"),
        gbit_s=_rate(_text(port / "rate")),
        lid=_number(_text(port / "lid"), 0),
        gids=gids,
        mtu_bytes=min((_interface_mtu(nic.parent, name) for name in interfaces), default=0),
        interface=min(interfaces, default=""),
    )


def _interfaces_below(nic: Path) -> set[str]:
    """The network interface of a device that has no address: of one in software the one that it
    was made on, of others what the same PCI device shows, if that is one only."""
    parent = _text(nic / "parent")
    names = {parent} if parent else {path.name for path in _listed(nic / "device/net")}
    return names if len(names) == 1 else set()


def _read_gid(port: Path, path: Path) -> Gid | None:
    address = _text(path)
    if not address or address == _NO_GID:
        return None
    attributes = port / "gid_attrs"
    return Gid(
        index=int(path.name),
        address=address,
        kind=_text(attributes / "types" / path.name) or "IB/RoCE v1",
        interface=_text(attributes / "ndevs" / path.name),
    )


def _interface_mtu(infiniband: Path, name: str) -> int:
    return _number(_text(infiniband.parent / "net" / name / "mtu"), 0)


def _listed(folder: Path) -> list[Path]:
    """The entries of a folder of sysfs; those with numbers for names by number."""
    with contextlib.suppress(OSError):
        names = os.listdir(folder)
        ordered = sorted(names, key=lambda name: (int(name) if name.isdigit() else 0, name))
        return [folder / name for name in ordered[:GIDS_MAX]]
    return []


def _text(path: Path) -> str:
    """What a file of sysfs says; "" when it cannot be read (empty entries of a GID table)."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(text: str, default: int) -> int:
    try:
        return int(text, 0)
    except ValueError:
        return default


def _rate(text: str) -> float:
    """Gbit a second of a rate like `100 Gb/sec (4X EDR)`."""
    try:
        return float(text.split()[0])
    except (ValueError, IndexError):
        return 0.0


def names_taken(choices: Iterable[Choice]) -> tuple[tuple[str, int], ...]:
    """The devices and ports that were chosen."""
    return tuple((choice.nic, choice.port) for choice in choices if choice.is_taken)
