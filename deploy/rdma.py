"""`tcctl doctor rdma`: which adapters a mover here would use and why, the usual faults, and how to
mend them. What is found is judged by pure functions over one snapshot of the machine."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Sequence
from typing import Final, Literal

from tensorcast.deploy.doctor import MEMLOCK_BYTES_GOOD, Check
from tensorcast.deploy.machine import format_bytes
from tensorcast.deploy.rdma_machine import RdmaMachine, read_rdma_machine
from tensorcast.storage.nics import (
    ANYWHERE,
    ETHERNET,
    Choice,
    Place,
    Port,
    choose_gid,
    choose_nics,
)

PACKET_BYTES: Final = 4096
HEADS_BYTES: Final = 104
"""What a network interface must carry beside the bytes of a RoCE packet."""

DMABUF_KERNEL: Final = (5, 12)
ADAPTERS: Final = "adapters"


def examine() -> tuple[Check, ...]:
    """Look at this machine, with the settings of this environment. Changes nothing."""
    return judge(read_rdma_machine(os.environ))


def conclude(checks: Sequence[Check]) -> str:
    """What it comes to: whether nodes talk over RDMA."""
    (found,) = [one.found for one in checks if one.name == ADAPTERS]
    return f"{found[:1].upper()}{found[1:]}."


def judge(machine: RdmaMachine, place: Place = ANYWHERE) -> tuple[Check, ...]:
    """What to think of a machine."""
    settings = tuple(_judge_settings(machine))
    if not machine.settings.is_on:
        found = "RDMA is switched off by TENSORCAST_RDMA: nodes talk over TCP"
        return (*settings, Check(name=ADAPTERS, state="ok", found=found))
    if not machine.nics:
        mend = "If this machine has one, load its driver, as in `modprobe mlx5_ib`."
        found = "the kernel knows no device: nodes talk over TCP"
        none = Check(name=ADAPTERS, state="ok", found=found, mend=mend)
        return (*settings, _judge_pyverbs(machine, "warn"), none)
    choices = choose_nics(machine.nics, place, machine.settings.devices)
    return (
        *settings,
        *(_judge_choice(machine, choice) for choice in choices),
        *_judge_ports(machine, choices),
        _judge_pyverbs(machine, "fail"),
        _judge_access(machine),
        _judge_memlock(machine),
        *_judge_gpus(machine),
        _judge_all(machine, choices),
    )


# ---- the settings ------------------------------------------------------------------------------


def _judge_settings(machine: RdmaMachine) -> Iterator[Check]:
    """What this environment says; a mover's may say something else."""
    if machine.refusal is not None:
        found, mend = machine.refusal
        found = f"a mover does not start with this: {found}"
        yield Check(name="settings", state="fail", found=found, mend=mend)
    known = [nic.name for nic in machine.nics]
    lacking = [name for name in machine.settings.devices if name not in known]
    if lacking:
        found = f"TENSORCAST_RDMA names {', '.join(lacking)}, which the kernel does not know"
        mend = f"It knows {', '.join(known) or 'none'}."
        yield Check(name="settings", state="fail", found=found, mend=mend)
    for sentence in machine.misspelt:
        mend = "docs/rdma.md lists the settings."
        yield Check(name="settings", state="warn", found=sentence, mend=mend)


# ---- the choice --------------------------------------------------------------------------------


def _judge_choice(machine: RdmaMachine, choice: Choice) -> Check:
    name = f"{choice.nic}/{choice.port}"
    if choice.is_taken:
        return Check(name=name, state="ok", found=f"used: {choice.why}")
    port = _port(machine, choice)
    found = f"not used: {choice.why}"
    if port.fault is None:
        mend = "To use it all the same, name it in TENSORCAST_RDMA."
        return Check(name=name, state="ok", found=found, mend=mend)
    return Check(name=name, state="warn", found=found, mend=_mend(port))


def _mend(port: Port) -> str:
    """How a port becomes one that can be used."""
    interface = port.interface or "IF"
    if not port.is_active and port.link == ETHERNET:
        return f"Plug the cable in, and set the interface up: `ip link set {interface} up`."
    if not port.is_active:
        return "Plug the cable in, and look at the port of the switch."
    if port.link == ETHERNET:
        return f"Give its interface an address: `ip addr add ADDRESS/24 dev {interface}`."
    return "Start a subnet manager (opensm, or the one of the switch)."


def _port(machine: RdmaMachine, choice: Choice) -> Port:
    nic = next(nic for nic in machine.nics if nic.name == choice.nic)
    return next(port for port in nic.ports if port.number == choice.port)


def _judge_ports(machine: RdmaMachine, choices: tuple[Choice, ...]) -> Iterator[Check]:
    """What may be wrong with the ports that are used."""
    for choice in choices:
        port = _port(machine, choice)
        if choice.is_taken and port.link == ETHERNET:
            yield _judge_gid(machine, choice.nic, port)
            yield _judge_mtu(machine, choice.nic, port)
            yield _judge_congestion(machine, choice.nic, port)


def _judge_gid(machine: RdmaMachine, nic: str, port: Port) -> Check:
    name, index = f"{nic} GID", machine.settings.gid_index
    gid = choose_gid(port.gids, index)
    if gid is None:
        known = ", ".join(str(one.index) for one in port.gids)
        mend = f"It has {known}: name one of these, or none."
        found = f"it has no GID {index}, which TENSORCAST_RDMA_GID_INDEX names"
        return Check(name=name, state="fail", found=found, mend=mend)
    found = f"GID {gid.index}: {gid.kind} over {gid.family}, {gid.address}"
    if gid.family in ("ipv4", "ipv6"):
        return Check(name=name, state="ok", found=found)
    interface = port.interface or "IF"
    mend = f"It reaches one link only: `ip addr add ADDRESS/24 dev {interface}`."
    return Check(name=name, state="warn", found=found, mend=mend)


def _judge_mtu(machine: RdmaMachine, nic: str, port: Port) -> Check:
    found = f"the network interface carries {port.mtu_bytes} bytes"
    wished = machine.settings.mtu_bytes or PACKET_BYTES
    needed = wished + HEADS_BYTES
    if port.mtu_bytes >= needed or not port.mtu_bytes:
        return Check(name=f"{nic} MTU", state="ok", found=found)
    command = f"`ip link set {port.interface or 'IF'} mtu 9000`"
    mend = f"{command}, and on switches: packets of {wished} bytes need {needed}."
    return Check(name=f"{nic} MTU", state="warn", found=found, mend=mend)


def _judge_congestion(machine: RdmaMachine, nic: str, port: Port) -> Check:
    """RoCE wants a fabric that loses nothing (PFC) or marks in time (ECN)."""
    interfaces = {gid.interface for gid in port.gids} & machine.congestion.keys()
    if not interfaces:
        found, name = "ECN and PFC cannot be read here", port.interface or "IF"
        mend = f"Look with `mlnx_qos -i {name}` or `dcb pfc show dev {name}`, and at the switches."
        return Check(name=f"{nic} ECN", state="ok", found=found, mend=mend)
    text = "; ".join(machine.congestion[name] for name in sorted(interfaces))
    if "off" not in text:
        return Check(name=f"{nic} ECN", state="ok", found=text)
    mend = "Switch ECN on for the priority of RoCE, here and in the switches."
    return Check(name=f"{nic} ECN", state="warn", found=text, mend=mend)


# ---- the machine -------------------------------------------------------------------------------


def _judge_pyverbs(machine: RdmaMachine, otherwise: Literal["warn", "fail"]) -> Check:
    if not machine.pyverbs_fault:
        return Check(name="pyverbs", state="ok", found="a mover can load it")
    mend = "Install python3-pyverbs (Debian, Ubuntu) or python3-pyverbs and rdma-core (RHEL)."
    found = f"a mover cannot load it: {machine.pyverbs_fault}"
    return Check(name="pyverbs", state=otherwise, found=found, mend=mend)


def _judge_access(machine: RdmaMachine) -> Check:
    if machine.is_readable:
        return Check(name="access", state="ok", found="/dev/infiniband can be opened")
    mend = "Load ib_uverbs; give a container --device=/dev/infiniband or its device plugin's."
    return Check(name="access", state="fail", found="no /dev/infiniband/uverbs* to open", mend=mend)


def _judge_memlock(machine: RdmaMachine) -> Check:
    limit = machine.lockable_bytes
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
    elif machine.kernel >= DMABUF_KERNEL and machine.has_dmabuf:
        found = "the driver gives dmabufs, which adapters may take: the first registration tells"
        yield Check(name=name, state="ok", found=found)
    else:
        mend = "`modprobe nvidia-peermem`, or a kernel of 5.12 or newer with the open GPU driver."
        yield Check(name=name, state="warn", found="neither peermem nor dmabuf", mend=mend)
    for address, place in machine.places.items():
        chosen = choose_nics(machine.nics, place, machine.settings.devices)
        taken = [one for one in chosen if one.is_taken]
        near = "; ".join(f"{one.nic}: {one.why}" for one in taken) or "no adapter works"
        yield Check(name=f"GPU {address}", state="ok", found=near)


def _judge_all(machine: RdmaMachine, choices: tuple[Choice, ...]) -> Check:
    """Whether bytes would move by RDMA at all."""
    index = machine.settings.gid_index
    usable = [
        choice.nic
        for choice in choices
        if choice.is_taken
        and (
            (port := _port(machine, choice)).link != ETHERNET
            or choose_gid(port.gids, index) is not None
        )
    ]
    if not usable or machine.pyverbs_fault or not machine.is_readable or machine.refusal:
        found = "no adapter can be used: nodes talk over TCP"
        return Check(name=ADAPTERS, state="fail", found=found, mend="Mend what is said above.")
    return Check(name=ADAPTERS, state="ok", found=f"movers use {', '.join(dict.fromkeys(usable))}")
