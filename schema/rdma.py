"""What is said of RDMA in the environment: to movers, and to the doctor who looks for them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from tensorcast.schema.environ import read_integer, read_switch
from tensorcast.schema.errors import InvalidArgument

MTU_BYTES: Final = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}
"""Path MTUs and their numbers (IBTA, and `enum ibv_mtu`)."""

QUEUE_PAIRS_MAX: Final = 16
READS_MAX: Final = 255
GID_INDEX_MAX: Final = 255
TRAFFIC_CLASS_MAX: Final = 255
SERVICE_LEVEL_MAX: Final = 15

_WISHES: Final = "TENSORCAST_RDMA"
_QUEUE_PAIRS: Final = "TENSORCAST_RDMA_QUEUE_PAIRS"
_READS: Final = "TENSORCAST_RDMA_READS"
_GID_INDEX: Final = "TENSORCAST_RDMA_GID_INDEX"
_MTU: Final = "TENSORCAST_RDMA_MTU"
_TRAFFIC_CLASS: Final = "TENSORCAST_RDMA_TRAFFIC_CLASS"
_SERVICE_LEVEL: Final = "TENSORCAST_RDMA_SERVICE_LEVEL"
_POLL: Final = "TENSORCAST_RDMA_POLL"
_ODP: Final = "TENSORCAST_RDMA_ODP"
_GUEST: Final = "TENSORCAST_RDMA_GUEST"
"""Where the tests keep their guest."""

_SETTINGS: Final = (
    _QUEUE_PAIRS,
    _READS,
    _GID_INDEX,
    _MTU,
    _TRAFFIC_CLASS,
    _SERVICE_LEVEL,
    _POLL,
    _ODP,
)
_DEVICE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")
_NO_DEVICES: Final = frozenset(
    ("auto", "on", "off", "yes", "no", "true", "false", "none", "all", "any", "0", "1")
)


class RdmaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`devices`: names, () chooses; `queue_pairs` of each device. `mtu_bytes` and `gid_index` None
    choose. `reads_max`: READs that one queue pair has in flight. `polls`: a rail spins for
    completions instead of sleeping. `windows`: keys come from memory windows where the device has
    them. `odp`: memory is not pinned where the device can fault pages. `pushes`: what is small
    comes by WRITE_WITH_IMM. `ack_exponent` and
    `retries` are the queue pair's: 4.096 us times 2 to that power, so often."""

    is_on: bool = True
    devices: tuple[str, ...] = ()
    queue_pairs: int = 1
    gid_index: int | None = None
    mtu_bytes: int | None = None
    traffic_class: int = 0
    service_level: int = 0
    reads_max: int = 16
    polls: bool = False
    windows: bool = True
    odp: bool = False
    pushes: bool = True
    ack_exponent: int = 14
    retries: int = 7
    rebuilds_max: int = 1


def read_rdma(environ: Mapping[str, str]) -> RdmaSettings:
    """The settings that an environment asks for: `TENSORCAST_RDMA` is `auto` (the default), `off`,
    or devices. Raises InvalidArgument."""
    text = environ.get(_WISHES) or "auto"
    mtu_bytes = read_integer(environ, _MTU, 0, 0)
    if mtu_bytes and mtu_bytes not in MTU_BYTES:
        known = ", ".join(map(str, MTU_BYTES))
        raise InvalidArgument(
            f"{_MTU} is {environ.get(_MTU)!r}.", hint=f"It must be one of {known}."
        )
    has_gid = bool(environ.get(_GID_INDEX))
    return RdmaSettings(
        is_on=text != "off",
        devices=() if text in ("auto", "off") else _devices(text),
        queue_pairs=read_integer(environ, _QUEUE_PAIRS, 1, 1, QUEUE_PAIRS_MAX),
        gid_index=read_integer(environ, _GID_INDEX, 0, 0, GID_INDEX_MAX) if has_gid else None,
        mtu_bytes=mtu_bytes or None,
        traffic_class=read_integer(environ, _TRAFFIC_CLASS, 0, 0, TRAFFIC_CLASS_MAX),
        service_level=read_integer(environ, _SERVICE_LEVEL, 0, 0, SERVICE_LEVEL_MAX),
        reads_max=read_integer(environ, _READS, 16, 1, READS_MAX),
        polls=read_switch(environ, _POLL),
        odp=read_switch(environ, _ODP),
    )


def _devices(text: str) -> tuple[str, ...]:
    """Names of devices, separated by commas."""
    names = tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))
    odd = [name for name in names if name.lower() in _NO_DEVICES or not _DEVICE.fullmatch(name)]
    if odd or not names:
        raise InvalidArgument(
            f"{_WISHES} is {text!r}.",
            hint="It must be auto, off, or names of devices, as in mlx5_0,mlx5_1.",
        )
    return names


def find_misspelt(environ: Mapping[str, str]) -> Iterator[str]:
    """A sentence on each variable that looks like a setting of RDMA, and is none."""
    prefix = f"{_WISHES}_"
    endings = [name.removeprefix(prefix) for name in _SETTINGS]
    for name in sorted(environ):
        if name.startswith(prefix) and name not in (*_SETTINGS, _GUEST):
            near = difflib.get_close_matches(name.removeprefix(prefix), endings, n=1)
            meant = f" {prefix}{near[0]} may be meant." if near else ""
            yield f"{name} is no setting, and has no effect.{meant}"
