"""The services of a cluster as values: which program, which environment, after what. Pure."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from tensorcast.deploy import nats_server, postgres_server
from tensorcast.deploy.home import Layout
from tensorcast.deploy.options import (
    LOOPBACK,
    ClusterConfig,
    EmbeddedNats,
    EmbeddedPostgres,
    External,
    NodeConfig,
    hide_password,
)
from tensorcast.deploy.probes import AnyProbe, NatsProbe, PostgresProbe, Probe
from tensorcast.schema.access import CREDENTIALS
from tensorcast.schema.nats_rights import Role, identity_of
from tensorcast.schema.servers import split_servers

NATS: Final = "nats"
POSTGRES: Final = "postgres"
CONTROLPLANE: Final = "controlplane"
SUPERVISOR: Final = "supervisor"
FDS_MAX: Final = 4096


class ServiceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How to run one service. Without a `command` it is run by somebody else and only probed.

    It starts when its `needs` are ready, for the first time also its `needs_at_first`. `probe` is
    None for a service that announces itself on NOTIFY_SOCKET. `stage` orders stopping: the highest
    first. `stop_timeout_s` counts from the service's last sign of progress.
    """

    name: str
    command: tuple[str, ...] = ()
    environ: dict[str, str] = {}
    needs: tuple[str, ...] = ()
    needs_at_first: tuple[str, ...] = ()
    probe: Probe | None = None
    stage: int = 0
    stop_signal: signal.Signals = signal.SIGTERM
    stop_timeout_s: float = 15.0
    folder: str = "/"
    run_as: str | None = None
    inherits_environ: bool = True
    fds_max: int = 0
    about: str = ""


def plan_services(
    config: ClusterConfig, layout: Layout, *, nats_program: Path | None
) -> tuple[ServiceSpec, ...]:
    """The services of a cluster, in the order in which people think of them.

    `nats_program` is None when the NATS server is external.
    """
    return (
        _plan_nats(config.nats, layout, nats_program),
        _plan_postgres(config.postgres),
        _plan_controlplane(config, layout),
        *(_plan_mover(config, layout, node) for node in config.nodes),
    )


def _plan_nats(nats: EmbeddedNats | External, layout: Layout, program: Path | None) -> ServiceSpec:
    if isinstance(nats, External):
        probes = [
            NatsProbe(host=parts.hostname or LOOPBACK, port=parts.port or 4222)
            for parts in map(urlsplit, split_servers(nats.url))
        ]
        probe = probes[0] if len(probes) == 1 else AnyProbe(probes=tuple(probes))
        return ServiceSpec(name=NATS, probe=probe, about=hide_password(nats.url))
    assert program is not None
    return ServiceSpec(
        name=NATS,
        command=(str(program), "-c", str(nats_server.config_file(layout))),
        probe=NatsProbe(host=LOOPBACK, port=nats.port),
        folder=str(layout.nats),
        about=f"port {nats.port}",
    )


def _plan_postgres(postgres: EmbeddedPostgres | External) -> ServiceSpec:
    if isinstance(postgres, External):
        return ServiceSpec(
            name=POSTGRES, probe=_external_probe(postgres.url), about=hide_password(postgres.url)
        )
    return ServiceSpec(
        name=POSTGRES,
        command=postgres_server.command(postgres),
        environ=postgres_server.environment(),
        inherits_environ=False,
        probe=PostgresProbe(
            host=LOOPBACK,
            port=postgres.port,
            user=postgres_server.ROLE,
            database=postgres_server.DATABASE,
        ),
        stage=1,
        stop_signal=signal.SIGINT,  # "fast" shutdown: does not wait for clients to leave
        stop_timeout_s=60.0,
        folder=postgres.folder,
        run_as=postgres.run_as,
        about=f"port {postgres.port}",
    )


def _external_probe(url: str) -> Probe | None:
    servers = [urlsplit(one) for one in split_servers(url)]
    database = servers[-1].path.lstrip("/") or postgres_server.DATABASE
    probes = [
        PostgresProbe(
            host=parts.hostname,
            port=parts.port or 5432,
            user=parts.username or postgres_server.ROLE,
            database=database,
        )
        for parts in servers
        if parts.hostname
    ]
    if not probes:
        return None  # a unix socket in ?host=: the control plane says whether it works
    return probes[0] if len(probes) == 1 else AnyProbe(probes=tuple(probes))


def _common_environ(config: ClusterConfig, layout: Layout, identity: str) -> dict[str, str]:
    nats = config.nats
    is_known = isinstance(nats, EmbeddedNats) and identity in {one.id for one in nats.identities}
    return {
        "TENSORCAST_CLUSTER": config.cluster,
        "TENSORCAST_NATS_URL": reach(nats),
        **({CREDENTIALS: str(layout.key(identity))} if is_known else {}),
        "PYTHONUNBUFFERED": "1",
        # The folder that `up` is run in must not be able to shadow a module.
        "PYTHONSAFEPATH": "1",
    }


def reach(nats: EmbeddedNats | External) -> str:
    """The URL of NATS for who proves by a key who it is, or by what is in the URL."""
    if isinstance(nats, EmbeddedNats) and nats.identities:
        return nats.address
    return nats.url


def _python(module: str) -> tuple[str, ...]:
    return (sys.executable, "-m", module)


def _plan_controlplane(config: ClusterConfig, layout: Layout) -> ServiceSpec:
    return ServiceSpec(
        name=CONTROLPLANE,
        command=config.controlplane_command or _python("tensorcast.controlplane.main"),
        environ={
            **_common_environ(config, layout, identity_of(Role.CONTROLPLANE, "")),
            "TENSORCAST_POSTGRES_URL": config.postgres.url,
            "TENSORCAST_AUDIT_DIR": str(layout.audit),
            "TENSORCAST_ARCHIVE_DIR": str(layout.archive),
        },
        needs=(NATS, POSTGRES),
        stage=2,
        stop_timeout_s=20.0,
    )


def _plan_mover(config: ClusterConfig, layout: Layout, node: NodeConfig) -> ServiceSpec:
    return ServiceSpec(
        name=node.name,
        command=config.mover_command or _python("tensorcast.movers.main"),
        environ={
            **_common_environ(config, layout, identity_of(Role.MOVER, node.name)),
            "TENSORCAST_NODE": node.name,
            "TENSORCAST_DATA_DIR": str(layout.nodes / node.name),
            "TENSORCAST_SOCKET": f"{config.sockets}/{node.name}.sock",
            "TENSORCAST_DATA_LISTEN": f"{LOOPBACK}:0",
            "TENSORCAST_DRAM_BYTES": str(node.dram_bytes),
            **({"TENSORCAST_DISK_BYTES": str(node.disk_bytes)} if node.disk_bytes else {}),
            **({"TENSORCAST_OVERFLOW": node.overflow} if node.overflow else {}),
            **({"TENSORCAST_KV_DISK_BYTES": str(node.kv_disk_bytes)} if node.kv_disk_bytes else {}),
        },
        needs=(NATS,),
        # It knows whether the log is the one whose events Postgres has; nobody may add to another.
        needs_at_first=(CONTROLPLANE,),
        stage=3,
        stop_timeout_s=120.0,  # it may have gigabytes to write
        fds_max=FDS_MAX,
    )
