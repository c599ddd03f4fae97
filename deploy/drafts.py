"""Configurations of a cluster: a new one, a known one with new options, one with other ports."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable

import msgspec

from tensorcast.deploy import machine
from tensorcast.deploy.home import Layout, choose_sockets
from tensorcast.deploy.options import (
    ClusterConfig,
    EmbeddedNats,
    EmbeddedPostgres,
    External,
    NodeConfig,
    UpOptions,
    grow_nodes,
    merge_server,
)
from tensorcast.deploy.ports import choose_port, keep_or_choose
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.wording import tell_count


def draft(options: UpOptions, layout: Layout, *, made: bool) -> ClusterConfig:
    """The configuration of a new cluster: ports and passwords are drawn here, once."""
    ports: list[int] = []
    for _ in range(3):
        ports.append(choose_port(taken=ports))
    cluster = options.cluster or "default"
    node = _draft_node(options)
    return ClusterConfig(
        cluster=cluster,
        context=options.context or cluster,
        nats=External(url=options.nats_url)
        if options.nats_url
        else EmbeddedNats(
            port=ports[0],
            monitor_port=ports[1],
            user="tensorcast",
            password=secrets.token_hex(20),
        ),
        postgres=External(url=options.postgres_url)
        if options.postgres_url
        else EmbeddedPostgres(
            port=ports[2], password=secrets.token_hex(20), admin_password=secrets.token_hex(20)
        ),
        nodes=grow_nodes(
            (),
            count=options.nodes,
            dram_bytes=node.dram_bytes,
            kv_disk_bytes=node.kv_disk_bytes,
            disk_bytes=node.disk_bytes,
            overflow=node.overflow,
        ),
        sockets=str(choose_sockets(layout.home, uid=os.geteuid())),
        home_is_ours=made,
        controlplane_command=options.controlplane_command,
        mover_command=options.mover_command,
    )


def _draft_node(options: UpOptions) -> NodeConfig:
    """What each node of a cluster gets that has none yet."""
    dram = options.dram_bytes or machine.suggest_dram_bytes(
        machine.total_memory_bytes(), nodes=max(1, options.nodes)
    )
    return NodeConfig(
        name="",
        dram_bytes=dram,
        kv_disk_bytes=options.kv_disk_bytes or 0,
        disk_bytes=options.disk_bytes,
        overflow=options.overflow or "",
    )


def merge(known: ClusterConfig, options: UpOptions) -> ClusterConfig:
    """What a known cluster becomes by new options; what they leave open stays.

    Raises `InvalidArgument` when they contradict the data that is there.
    """
    if options.cluster not in (None, known.cluster):
        raise InvalidArgument(
            f"This home belongs to the cluster {known.cluster!r}, not {options.cluster!r}.",
            hint="Choose another folder with --data-dir.",
        )
    changes = _changes(options)
    nodes = tuple(msgspec.structs.replace(node, **changes) for node in known.nodes)
    check_memory(options, len(nodes))
    like = nodes[0] if nodes else _draft_node(options)
    return msgspec.structs.replace(
        known,
        context=options.context or known.context,
        nats=merge_server("NATS", known.nats, options.nats_url) or known.nats,
        postgres=merge_server("Postgres", known.postgres, options.postgres_url) or known.postgres,
        nodes=grow_nodes(
            nodes,
            count=options.nodes,
            dram_bytes=like.dram_bytes,
            kv_disk_bytes=like.kv_disk_bytes,
            disk_bytes=like.disk_bytes,
            overflow=like.overflow,
        ),
        controlplane_command=options.controlplane_command or known.controlplane_command,
        mover_command=options.mover_command or known.mover_command,
    )


def _changes(options: UpOptions) -> dict[str, int | str]:
    """What the options say about every node."""
    said: dict[str, int | str | None] = {
        "dram_bytes": options.dram_bytes,
        "disk_bytes": options.disk_bytes,
        "kv_disk_bytes": options.kv_disk_bytes,
        "overflow": options.overflow,
    }
    return {name: value for name, value in said.items() if value is not None}


def check_memory(options: UpOptions, nodes: int) -> None:
    """Raises InvalidArgument when the nodes would get more memory than the machine has."""
    count, total = max(nodes, options.nodes), machine.total_memory_bytes()
    if options.dram_bytes is not None and count * options.dram_bytes > total:
        each, has = machine.format_bytes(options.dram_bytes), machine.format_bytes(total)
        raise InvalidArgument(
            f"{tell_count(count, 'node')} with {each} of memory would need more than this machine"
            f" has: {has}.",
            hint="Give less with --dram.",
        )


def keep_ports(config: ClusterConfig, progress: Callable[[str], None]) -> ClusterConfig:
    """The configuration with new ports for servers whose old ones somebody else took."""
    nats, postgres = config.nats, config.postgres
    taken: list[int] = []
    if isinstance(nats, EmbeddedNats):
        port = keep_or_choose(nats.port)
        monitor = keep_or_choose(nats.monitor_port, taken=[port])
        taken += [port, monitor]
        nats = msgspec.structs.replace(nats, port=port, monitor_port=monitor)
    if isinstance(postgres, EmbeddedPostgres):
        port = keep_or_choose(postgres.port, taken=taken)
        postgres = msgspec.structs.replace(postgres, port=port)
    changed = msgspec.structs.replace(config, nats=nats, postgres=postgres)
    if changed != config:
        progress("another program took a port of the cluster: it moves to a new one")
    return changed
