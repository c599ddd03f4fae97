"""What a mover is told at its start: environment variables, read once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import NodeId, parse_cluster, parse_node

SOCKET_BYTES_MAX: Final = 100
DRAM_BYTES_MIN: Final = 1 << 20
DRAM_BYTES: Final = 1 << 30


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`listen` (host:port) and `advertise` (a host) are the data port's; everything that the node
    keeps is in `data_dir`. Times in seconds. The `*_max` are limits of this process."""

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
    room_wait_s: float = 10.0


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
        dram_bytes=int(_number(environ, "TENSORCAST_DRAM_BYTES", DRAM_BYTES, DRAM_BYTES_MIN)),
        heartbeat_s=_number(environ, "TENSORCAST_HEARTBEAT_S", 1.0, 0.05),
        operations_max=int(_number(environ, "TENSORCAST_OPERATIONS_MAX", 8, 1)),
    )


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


def _number(environ: Mapping[str, str], name: str, default: float, least: float) -> float:
    text = environ.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = least - 1
    if not least <= value < float("inf"):
        raise InvalidArgument(f"{name} is {text!r}.", hint=f"It must be {least:g} or more.")
    return value
