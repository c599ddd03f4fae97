"""`tcctl doctor rdma`: which adapters a mover here would use and why, the usual faults, and how to
mend them. What is found is judged by pure functions over one snapshot of the machine."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from tensorcast.deploy.doctor import MEMLOCK_BYTES_GOOD, Check
from tensorcast.deploy.machine import format_bytes, nvidia_devices
from tensorcast.gpu.places import read_places
from tensorcast.storage.nics import (
    ANYWHERE,
    ETHERNET,
    Choice,
    Nic,
    Place,
    Port,
    choose_gid,
    choose_nics,
    read_nics,
)

MTU_GOOD: Final = 4200
"""A network interface must carry so much for RoCE packets of 4096 bytes and their heads."""

DMABUF_KERNEL: Final = (5, 12)
DEBIAN_PYVERBS: Final = "/usr/lib/python3/dist-packages/pyverbs"
_ECN: Final = ("roce_np", "roce_rp")


class RdmaMachine(msgspec.Struct, frozen=True, kw_only=True):
    """What was read. `congestion`: by network interface, what its ECN settings say (absent: they
    cannot be read); `kernel` as (major, minor); `places` of GPUs by their PCI address."""

    nics: tuple[Nic, ...]
    memlock_bytes: int
    has_pyverbs: bool
    is_readable: bool
    modules: frozenset[str]
    gpus: tuple[str, ...]
    kernel: tuple[int, int]
    congestion: dict[str, str]
    places: dict[str, Place] = {}


def examine() -> tuple[Check, ...]:
    """Look at this machine. Changes nothing."""
    return judge(read_rdma())


def read_rdma() -> RdmaMachine:
    """A snapshot of what the kernel tells."""
    nics = read_nics()
    names = {gid.interface for nic in nics for port in nic.ports for gid in port.gids}
    found = {name: _read_ecn(name) for name in sorted(names) if name}
    nodes = list(Path("/dev/infiniband").glob("uverbs*"))
    return RdmaMachine(
        nics=nics,
        memlock_bytes=resource.getrlimit(resource.RLIMIT_MEMLOCK)[1],
        has_pyverbs=_has_pyverbs(),
        is_readable=any(os.access(node, os.R_OK | os.W_OK) for node in nodes),
        modules=frozenset(_listed(Path("/sys/module"))),
        gpus=nvidia_devices(),
        places=read_places(),
        kernel=_kernel(platform.release()),
        congestion={name: text for name, text in found.items() if text},
    )


def judge(machine: RdmaMachine, place: Place = ANYWHERE) -> tuple[Check, ...]:
    """What to think of a machine."""
    if not machine.nics:
        mend = "" if not machine.has_pyverbs else "Load the adapter's driver: `modprobe mlx5_ib`."
        found = "the kernel knows no device: nodes talk over TCP"
        return (Check(name="devices", state="ok", found=found, mend=mend),)
    choices = choose_nics(machine.nics, place)
    return (
        *(_judge_choice(machine, choice) for choice in choices),
        *_judge_ports(machine, choices),
        _judge_pyverbs(machine),
        _judge_access(machine),
        _judge_memlock(machine),
        *_judge_gpus(machine),
    )


# ---- the choice --------------------------------------------------------------------------------


def _judge_choice(machine: RdmaMachine, choice: Choice) -> Check:
    name = f"{choice.nic}/{choice.port}"
    if choice.is_taken:
        return Check(name=name, state="ok", found=f"used: {choice.why}")
    port = _port(machine, choice)
    return Check(name=name, state="warn", found=f"not used: {choice.why}", mend=_mend(port))


def _mend(port: Port) -> str:
    """How a port becomes one that can be used."""
    if not port.is_active:
        return "Plug the cable in, and set the network interface up: `ip link set IF up`."
    if port.link == ETHERNET and choose_gid(port.gids) is None:
        return "Give its network interface an address: `ip addr add ADDRESS/24 dev IF`."
    if port.link != ETHERNET and not port.lid:
        return "Start a subnet manager (opensm, or the one of the switch)."
    return "To use it all the same, name it in TENSORCAST_RDMA."


def _port(machine: RdmaMachine, choice: Choice) -> Port:
    nic = next(nic for nic in machine.nics if nic.name == choice.nic)
    return next(port for port in nic.ports if port.number == choice.port)


def _judge_ports(machine: RdmaMachine, choices: tuple[Choice, ...]) -> Iterator[Check]:
    """What may be wrong with the ports that are used."""
    for choice in choices:
        port = _port(machine, choice)
        if choice.is_taken and port.link == ETHERNET:
            yield _judge_gid(choice.nic, port)
            yield _judge_mtu(choice.nic, port)
            yield _judge_congestion(machine, choice.nic, port)


def _judge_gid(nic: str, port: Port) -> Check:
    gid = choose_gid(port.gids)
    assert gid is not None, "a port without one is not taken"
    found = f"GID {gid.index}: {gid.kind} over {gid.family}, {gid.address}"
    if gid.family in ("ipv4", "ipv6"):
        return Check(name=f"{nic} GID", state="ok", found=found)
    mend = "It reaches one link only: give the network interface an IP address."
    return Check(name=f"{nic} GID", state="warn", found=found, mend=mend)


def _judge_mtu(nic: str, port: Port) -> Check:
    found = f"the network interface carries {port.mtu_bytes} bytes"
    if port.mtu_bytes >= MTU_GOOD or not port.mtu_bytes:
        return Check(name=f"{nic} MTU", state="ok", found=found)
    mend = "Set the MTU of interfaces and switches to 9000: packets of 4096 bytes need 4200."
    return Check(name=f"{nic} MTU", state="warn", found=found, mend=mend)


def _judge_congestion(machine: RdmaMachine, nic: str, port: Port) -> Check:
    """RoCE wants a fabric that loses nothing (PFC) or marks in time (ECN)."""
    interfaces = {gid.interface for gid in port.gids} & machine.congestion.keys()
    if not interfaces:
        found = "ECN and PFC cannot be read here"
        mend = "Look with `mlnx_qos -i IF` or `dcb pfc show dev IF`, and at the switches."
        return Check(name=f"{nic} ECN", state="ok", found=found, mend=mend)
    text = "; ".join(machine.congestion[name] for name in sorted(interfaces))
    if "off" not in text:
        return Check(name=f"{nic} ECN", state="ok", found=text)
    mend = "Switch ECN on for the priority of RoCE, here and in the switches."
    return Check(name=f"{nic} ECN", state="warn", found=text, mend=mend)


# ---- the machine -------------------------------------------------------------------------------


def _judge_pyverbs(machine: RdmaMachine) -> Check:
    if machine.has_pyverbs:
        return Check(name="pyverbs", state="ok", found="it is there")
    mend = "Install python3-pyverbs (Debian, Ubuntu) or python3-pyverbs and rdma-core (RHEL)."
    return Check(
        name="pyverbs", state="warn", found="it is missing: nodes talk over TCP", mend=mend
    )


def _judge_access(machine: RdmaMachine) -> Check:
    if machine.is_readable:
        return Check(name="access", state="ok", found="/dev/infiniband can be opened")
    mend = "Load ib_uverbs; give a container --device=/dev/infiniband or its device plugin's."
    return Check(name="access", state="fail", found="no /dev/infiniband/uverbs* to open", mend=mend)


def _judge_memlock(machine: RdmaMachine) -> Check:
    limit = machine.memlock_bytes
    if limit == resource.RLIM_INFINITY or limit >= MEMLOCK_BYTES_GOOD:
        return Check(name="locked memory", state="ok", found=_limit(limit))
    mend = "Set LimitMEMLOCK=infinity (systemd), `ulimit -l unlimited`, or IPC_LOCK (containers)."
    return Check(name="locked memory", state="fail", found=_limit(limit), mend=mend)


def _limit(limit: int) -> str:
    return "no limit" if limit == resource.RLIM_INFINITY else f"at most {format_bytes(limit)}"


def _judge_gpus(machine: RdmaMachine) -> Iterator[Check]:
    """Whether adapters could reach the memory of GPUs."""
    if not machine.gpus:
        return
    name = "GPUDirect"
    if "nvidia_peermem" in machine.modules:
        yield Check(name=name, state="ok", found="nvidia_peermem is loaded")
    elif machine.kernel >= DMABUF_KERNEL and "nvidia" in machine.modules:
        yield Check(name=name, state="ok", found="the kernel has dmabuf")
    else:
        mend = "`modprobe nvidia-peermem`, or a kernel of 5.12 or newer with the open GPU driver."
        yield Check(name=name, state="warn", found="neither peermem nor dmabuf", mend=mend)
    for address, place in machine.places.items():
        taken = [one for one in choose_nics(machine.nics, place) if one.is_taken]
        near = "; ".join(f"{one.nic}: {one.why}" for one in taken) or "no adapter works"
        yield Check(name=f"GPU {address}", state="ok", found=near)


# ---- reading -----------------------------------------------------------------------------------


def _has_pyverbs() -> bool:
    from importlib.util import find_spec

    return find_spec("pyverbs") is not None or Path(DEBIAN_PYVERBS).exists()


def _read_ecn(interface: str) -> str:
    """What mlx5 tells of ECN, as notification and reaction point, by priority."""
    found = []
    for role in _ECN:
        folder = Path("/sys/class/net", interface, "ecn", role, "enable")
        values = [_text(folder / name) for name in _listed(folder)]
        if values:
            found.append(f"{interface} {role} {'on' if '1' in values else 'off'}")
    return ", ".join(found)


def _listed(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _kernel(release: str) -> tuple[int, int]:
    numbers = release.replace("-", ".").split(".")
    try:
        return int(numbers[0]), int(numbers[1])
    except (ValueError, IndexError):
        return 0, 0
