"""`tcctl serve`: the processes of a real deployment. Each replaces this process, so that a service
manager sees only one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tensorcast.cli.output import Nothing, Result
from tensorcast.cli.session import Session, session_of
from tensorcast.cli.units import parse_size
from tensorcast.schema.ids import Overflow

app = typer.Typer(
    help="Run a process of a real deployment.", add_completion=False, rich_markup_mode=None
)
Cluster = Annotated[
    str, typer.Option(envvar="TENSORCAST_CLUSTER", help="The cluster it belongs to.")
]
NatsUrl = Annotated[
    str,
    typer.Option(
        envvar="TENSORCAST_NATS_URL", metavar="URL", help="nats://user:password@host:port"
    ),
]
DataDir = Annotated[
    Path,
    typer.Option(
        envvar="TENSORCAST_DATA_DIR", help="The node's own folder: journal and disk tier."
    ),
]
Socket = Annotated[
    Path,
    typer.Option(envvar="TENSORCAST_SOCKET", help="Where applications of this machine connect."),
]
Listen = Annotated[
    str,
    typer.Option(
        envvar="TENSORCAST_DATA_LISTEN",
        metavar="HOST:PORT",
        help="Where other movers pull from; port 0: any. Beyond this machine: its own address.",
    ),
]
Advertise = Annotated[
    str | None,
    typer.Option(
        envvar="TENSORCAST_DATA_ADVERTISE",
        metavar="HOST",
        help="The host name by which other movers reach this one.",
    ),
]


@app.command()
def controlplane(
    call: typer.Context,
    nats_url: NatsUrl,
    postgres_url: Annotated[
        str,
        typer.Option(
            envvar="TENSORCAST_POSTGRES_URL", metavar="URL", help="postgresql://user@host/database"
        ),
    ],
    cluster: Cluster = "default",
    services: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,NAME...]",
            help="Only these of persister, scheduler, timers, api; default: all.",
        ),
    ] = None,
    audit_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="TENSORCAST_AUDIT_DIR",
            help="Folder for the key and the file of signed heads; without it none are signed.",
        ),
    ] = None,
    node_timeout: Annotated[
        float | None,
        typer.Option(
            envvar="TENSORCAST_NODE_TIMEOUT_S", help="A node silent for so many seconds is lost."
        ),
    ] = None,
) -> Result:
    """Run the control plane, or some of its services."""
    settings = {
        "TENSORCAST_CLUSTER": cluster,
        "TENSORCAST_NATS_URL": nats_url,
        "TENSORCAST_POSTGRES_URL": postgres_url,
        "TENSORCAST_AUDIT_DIR": str(audit_dir or ""),
        "TENSORCAST_NODE_TIMEOUT_S": _text(node_timeout),
    }
    arguments = ["--services", services] if services else []
    return become(session_of(call), "tensorcast.controlplane.main", arguments, settings)


@app.command()
def mover(
    call: typer.Context,
    node: Annotated[
        str, typer.Option(envvar="TENSORCAST_NODE", help="The name of this node, unique.")
    ],
    nats_url: NatsUrl,
    data_dir: DataDir,
    socket: Socket,
    listen: Listen = "127.0.0.1:0",
    advertise: Advertise = None,
    dram: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory for replicas, for example 4GiB.")
    ] = None,
    disk: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Disk for replicas (default: what is free)."),
    ] = None,
    overflow: Annotated[
        Overflow | None, typer.Option(help="What the node does when its memory is full.")
    ] = None,
    kv_disk: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Disk for KV blocks, for example 20GiB.")
    ] = None,
    cluster: Cluster = "default",
) -> Result:
    """Run the mover of this node."""
    settings = {
        "TENSORCAST_CLUSTER": cluster,
        "TENSORCAST_NATS_URL": nats_url,
        "TENSORCAST_NODE": node,
        "TENSORCAST_DATA_DIR": str(data_dir),
        "TENSORCAST_SOCKET": str(socket),
        "TENSORCAST_DATA_LISTEN": listen,
        "TENSORCAST_DATA_ADVERTISE": advertise or "",
        "TENSORCAST_DRAM_BYTES": str(parse_size(dram)) if dram else "",
        "TENSORCAST_DISK_BYTES": str(parse_size(disk)) if disk else "",
        "TENSORCAST_OVERFLOW": overflow or "",
        "TENSORCAST_KV_DISK_BYTES": str(parse_size(kv_disk)) if kv_disk else "",
    }
    return become(session_of(call), "tensorcast.movers.main", [], settings)


def become(
    session: Session, module: str, arguments: list[str], settings: dict[str, str]
) -> Nothing:
    """Replace this process by `python -m module`. Empty settings are left as they are; a secret
    travels in the environment, where other users cannot see it."""
    environ = {
        **session.world.environ,
        **{name: value for name, value in settings.items() if value},
        "PYTHONSAFEPATH": "1",
    }
    command = [sys.executable, "-m", module, *arguments]
    session.world.replace_process(sys.executable, command, environ)
    return Nothing()


def _text(number: float | None) -> str:
    return "" if number is None else f"{number:g}"
