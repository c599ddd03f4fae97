"""What this machine tells of RDMA: a snapshot, for the doctor to judge."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from tensorcast.deploy.doctor import read_gpus
from tensorcast.deploy.machine import lockable_bytes, nvidia_devices
from tensorcast.gpu.places import read_places
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.rdma import RdmaSettings, find_misspelt, read_rdma
from tensorcast.storage.nics import Nic, Place, read_nics

PYVERBS_S_MAX: Final = 30.0
_VERBS: Final = "tensorcast.movers.transports.rdma.verbs"
_ECN: Final = ("roce_np", "roce_rp")


class RdmaMachine(msgspec.Struct, frozen=True, kw_only=True):
    """What was read. `settings` are those of the environment; `refusal` says why a mover would not
    take them, and how to mend it. `lockable_bytes`: -1 is any amount. `pyverbs_fault`: why a mover
    could not load it. `congestion`: by network interface, what its ECN settings say (absent: they
    cannot be read); `kernel` as (major, minor); `places` of GPUs by their PCI address;
    `has_dmabuf`: the driver of the GPUs gives descriptors of their memory."""

    nics: tuple[Nic, ...]
    settings: RdmaSettings = RdmaSettings()
    refusal: tuple[str, str] | None = None
    misspelt: tuple[str, ...] = ()
    lockable_bytes: int
    pyverbs_fault: str
    is_readable: bool
    modules: frozenset[str]
    gpus: tuple[str, ...]
    kernel: tuple[int, int]
    congestion: dict[str, str]
    places: dict[str, Place] = {}
    has_dmabuf: bool = False


def read_rdma_machine(environ: Mapping[str, str]) -> RdmaMachine:
    """A snapshot of what kernel, drivers and environment tell."""
    nics = read_nics()
    names = {gid.interface for nic in nics for port in nic.ports for gid in port.gids}
    found = {name: _read_ecn(name) for name in sorted(names) if name}
    nodes = list(Path("/dev/infiniband").glob("uverbs*"))
    settings, refusal = _read_settings(environ)
    gpus = nvidia_devices()
    return RdmaMachine(
        nics=nics,
        settings=settings,
        refusal=refusal,
        misspelt=tuple(find_misspelt(environ)),
        lockable_bytes=lockable_bytes(),
        pyverbs_fault=try_pyverbs(),
        is_readable=any(os.access(node, os.R_OK | os.W_OK) for node in nodes),
        modules=frozenset(_listed(Path("/sys/module"))),
        gpus=gpus,
        places=read_places(),
        has_dmabuf=bool(gpus) and any(one.has_dmabuf for one in read_gpus()[0]),
        kernel=_kernel(platform.release()),
        congestion={name: text for name, text in found.items() if text},
    )


def _read_settings(environ: Mapping[str, str]) -> tuple[RdmaSettings, tuple[str, str] | None]:
    try:
        return read_rdma(environ), None
    except InvalidArgument as error:
        return RdmaSettings(), (error.message, error.hint)


def try_pyverbs() -> str:
    """Why a mover cannot load pyverbs: a child tries it as one does. "" when it can."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", f"import {_VERBS}"],
            capture_output=True,
            text=True,
            timeout=PYVERBS_S_MAX,
        )
    except subprocess.TimeoutExpired:
        return f"it takes longer than {PYVERBS_S_MAX:g} s"
    if done.returncode == 0:
        return ""
    last = (done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"])[-1]
    return last.partition("Error: ")[2] or last


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
