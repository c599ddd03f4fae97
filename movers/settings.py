"""What a mover is told at its start: environment variables, read once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from tensorcast.gpu.finding import VARIABLE, check_wish
from tensorcast.movers.core.block_eviction import BlockPolicy
from tensorcast.movers.core.eviction import Watermarks
from tensorcast.movers.core.topology import parse_bandwidth, parse_labels
from tensorcast.schema.access import Access, read_access
from tensorcast.schema.environ import read_integer, read_number, read_switch
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import NodeId, Overflow, parse_cluster, parse_node
from tensorcast.schema.rdma import RdmaSettings, read_rdma
from tensorcast.storage.objects import parse_url

SOCKET_BYTES_MAX: Final = 100
DRAM_BYTES_MIN: Final = 1 << 20
DRAM_BYTES: Final = 1 << 30
DRAM_HIGH, DRAM_LOW = 0.95, 0.85
DISK_HIGH, DISK_LOW = 0.95, 0.9
ROOM_WAIT_S: Final = 10.0
KV_SHARE: Final = 4
"""One in so many bytes of the memory may be used for KV blocks, unless a number is set."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`listen` (host:port) and `advertise` (a host) are the data port's; everything that the node
    keeps is in `data_dir`. `disk_bytes` None: what is free, less a reserve;
    `bandwidth` of its network in bytes a second, 0: not known; `verify`: chunks are checked as
    they arrive; `object_url`: the store that all nodes share; `rdma`: its adapters; `shm`:
    other movers of this machine are reached through shared memory; `gpu`: its devices, of each of
    which replicas may take `gpu_bytes`. Times
    in seconds. The `*_max` are limits of this process."""

    cluster: str
    node: NodeId
    nats_url: str
    data_dir: Path
    socket: Path
    listen: str
    advertise: str | None
    dram_bytes: int
    heartbeat_s: float
    operations_max: int = 8
    connections_max: int = 1024
    puts_max: int = 64
    room_wait_s: float = ROOM_WAIT_S
    dram_marks: Watermarks = Watermarks(high=DRAM_HIGH, low=DRAM_LOW)
    disk_marks: Watermarks = Watermarks(high=DISK_HIGH, low=DISK_LOW)
    overflow: Overflow = Overflow.SPILL
    disk_bytes: int | None = None
    labels: dict[str, str] = {}
    kv_bytes: int = DRAM_BYTES // KV_SHARE
    kv_eviction: BlockPolicy = BlockPolicy.LRU
    kv_disk_bytes: int = 0
    bandwidth: int = 0
    verify: bool = True
    object_url: str | None = None
    rdma: RdmaSettings = RdmaSettings()
    shm: bool = False
    gpu: str = "auto"
    gpu_bytes: int = 0
    access: Access = Access()


def read_settings(environ: Mapping[str, str]) -> Settings:
    """The settings of a process with this environment. Raises InvalidArgument."""
    data_dir = Path(_required(environ, "TENSORCAST_DATA_DIR"))
    return Settings(
        cluster=parse_cluster(environ.get("TENSORCAST_CLUSTER", "default")),
        node=parse_node(_required(environ, "TENSORCAST_NODE")),
        nats_url=_required(environ, "TENSORCAST_NATS_URL"),
        data_dir=data_dir,
        socket=_socket(environ.get("TENSORCAST_SOCKET", str(data_dir / "mover.sock"))),
        listen=_host_port(environ.get("TENSORCAST_DATA_LISTEN", "127.0.0.1:0")),
        advertise=environ.get("TENSORCAST_DATA_ADVERTISE") or None,
        dram_bytes=read_integer(environ, "TENSORCAST_DRAM_BYTES", DRAM_BYTES, DRAM_BYTES_MIN),
        heartbeat_s=read_number(environ, "TENSORCAST_HEARTBEAT_S", 1.0, 0.05),
        operations_max=read_integer(environ, "TENSORCAST_OPERATIONS_MAX", 8, 1),
        room_wait_s=read_number(environ, "TENSORCAST_ROOM_WAIT_S", ROOM_WAIT_S, 0),
        dram_marks=_marks(environ, "TENSORCAST_DRAM", DRAM_HIGH, DRAM_LOW),
        disk_marks=_marks(environ, "TENSORCAST_DISK", DISK_HIGH, DISK_LOW),
        overflow=_overflow(environ.get("TENSORCAST_OVERFLOW") or Overflow.SPILL),
        disk_bytes=_disk_bytes(environ),
        labels=parse_labels(environ.get("TENSORCAST_LABELS", "")),
        kv_bytes=_kv_bytes(environ),
        kv_eviction=_kv_eviction(environ.get("TENSORCAST_KV_EVICTION") or BlockPolicy.LRU),
        kv_disk_bytes=read_integer(environ, "TENSORCAST_KV_DISK_BYTES", 0, 0),
        bandwidth=parse_bandwidth(environ.get("TENSORCAST_BANDWIDTH", "")),
        verify=_verify(environ.get("TENSORCAST_VERIFY") or "arrival"),
        object_url=_object_url(environ.get("TENSORCAST_OBJECT_URL", "")),
        rdma=read_rdma(environ),
        shm=read_switch(environ, "TENSORCAST_SHM"),
        gpu=check_wish(environ.get(VARIABLE) or "auto"),
        gpu_bytes=read_integer(environ, "TENSORCAST_GPU_BYTES", 0, 0),
        access=read_access(environ, f"mover.{_required(environ, 'TENSORCAST_NODE')}"),
    )


def _object_url(text: str) -> str | None:
    if text and parse_url(text).root.startswith("http"):
        raise InvalidArgument(
            f"TENSORCAST_OBJECT_URL is {text!r}.", hint="Write it as s3://bucket/prefix."
        )
    return text or None


def _verify(text: str) -> bool:
    if text not in ("arrival", "off"):
        raise InvalidArgument(
            f"TENSORCAST_VERIFY is {text!r}.", hint="Write arrival (the default) or off."
        )
    return text == "arrival"


def _required(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise InvalidArgument(f"{name} is not set.", hint="A mover cannot start without it.")
    return value


def _host_port(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise InvalidArgument(
            f"TENSORCAST_DATA_LISTEN is {text!r}.", hint="Write it as host:port; port 0 is any."
        )
    return text


def _socket(text: str) -> Path:
    if len(text.encode()) > SOCKET_BYTES_MAX:
        raise InvalidArgument(
            f"TENSORCAST_SOCKET is longer than {SOCKET_BYTES_MAX} bytes: {text}.",
            hint="The kernel does not take longer ones: choose a shorter folder.",
        )
    return Path(text)


def _marks(environ: Mapping[str, str], name: str, high: float, low: float) -> Watermarks:
    """Marks from NAME_HIGH and NAME_LOW. Who sets the high one alone moves the low one along."""
    marks = Watermarks(
        high=(top := read_number(environ, f"{name}_HIGH", high, 0)),
        low=read_number(environ, f"{name}_LOW", min(low, top * low / high), 0),
    )
    if not 0 < marks.low < marks.high <= 1:
        raise InvalidArgument(
            f"{name}_LOW is {marks.low:g} and {name}_HIGH is {marks.high:g}.",
            hint="They are shares of the capacity: 0 < low < high <= 1.",
        )
    return marks


def _overflow(text: str) -> Overflow:
    try:
        return Overflow(text)
    except ValueError:
        raise InvalidArgument(
            f"TENSORCAST_OVERFLOW is {text!r}.", hint="It must be spill, evict or reject."
        ) from None


def _kv_bytes(environ: Mapping[str, str]) -> int:
    """A part of the memory for artifacts, not in addition to it."""
    dram = read_integer(environ, "TENSORCAST_DRAM_BYTES", DRAM_BYTES, DRAM_BYTES_MIN)
    kv_bytes = read_integer(environ, "TENSORCAST_KV_BYTES", dram // KV_SHARE, 0)
    if kv_bytes > dram:
        raise InvalidArgument(
            f"TENSORCAST_KV_BYTES is {kv_bytes}, TENSORCAST_DRAM_BYTES {dram}.",
            hint="Blocks take their memory from the node's: it cannot be more.",
        )
    return kv_bytes


def _kv_eviction(text: str) -> BlockPolicy:
    try:
        return BlockPolicy(text)
    except ValueError:
        raise InvalidArgument(
            f"TENSORCAST_KV_EVICTION is {text!r}.", hint="It must be lru, lfu or priority."
        ) from None


def _disk_bytes(environ: Mapping[str, str]) -> int | None:
    if not environ.get("TENSORCAST_DISK_BYTES"):
        return None
    return read_integer(environ, "TENSORCAST_DISK_BYTES", 0, 0)
