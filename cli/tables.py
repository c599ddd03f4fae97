"""How artifacts, keys, operations, nodes and services look to people. Pure: values to tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tensorcast.cli.output import (
    Block,
    Fields,
    Heading,
    Table,
    shorten,
    shorten_operation,
)
from tensorcast.cli.units import (
    format_age,
    format_rate,
    format_second,
    format_seconds,
    format_size,
    format_time,
)
from tensorcast.schema.api import (
    ArtifactInfo,
    KeyInfo,
    KeyMove,
    NodeInfo,
    OperationInfo,
    PeerInfo,
    ReplicaInfo,
    TensorInfo,
)


def table_artifacts(found: Sequence[ArtifactInfo], now: datetime) -> Table:
    """One artifact a line."""
    return Table(
        titles=("id", "keys", "kind", "state", "size", "tensors", "where", "age"),
        rows=[
            (
                shorten(one.id),
                ", ".join(one.keys),
                one.kind,
                one.state,
                format_size(one.bytes),
                str(one.tensors),
                ", ".join(_place(replica) for replica in one.replicas),
                format_age(one.sealed_at, now),
            )
            for one in found
        ],
        right=frozenset({"size", "tensors", "age"}),
        fold=frozenset({"keys", "where"}),
        empty="No artifacts. `tcctl put` registers one.",
    )


def describe_artifact(info: ArtifactInfo) -> Sequence[Block]:
    """Everything about one artifact."""
    pairs = (
        ("id", info.id),
        ("kind", info.kind),
        ("state", info.state),
        ("size", f"{format_size(info.bytes)} ({info.bytes} bytes)"),
        ("tensors", str(info.tensors)),
        ("keys", ", ".join(info.keys)),
        ("labels", ", ".join(f"{name}={value}" for name, value in info.labels.items())),
        ("pinned", "yes" if info.pinned else ""),
        ("leases", str(info.leases) if info.leases else ""),
        ("sealed", format_time(info.sealed_at)),
    )
    return (Fields(pairs), Heading("Replicas"), table_replicas(info.replicas))


def table_replicas(replicas: Sequence[ReplicaInfo]) -> Table:
    """One replica a line."""
    return Table(
        titles=("node", "tier", "state", "chunks", "filled"),
        rows=[
            (
                one.node,
                one.tier,
                one.state,
                f"{one.chunks_ready}/{one.chunks_total}",
                _percent(one.chunks_ready, one.chunks_total),
            )
            for one in replicas
        ],
        right=frozenset({"chunks", "filled"}),
        empty="No replicas: the bytes are nowhere.",
    )


def table_tensors(found: Sequence[TensorInfo]) -> Table:
    """One tensor a line."""
    return Table(
        titles=("name", "dtype", "shape", "offset", "size"),
        rows=[
            (
                one.name,
                one.dtype,
                "x".join(str(length) for length in one.shape) or "scalar",
                str(one.offset),
                format_size(one.bytes),
            )
            for one in found
        ],
        right=frozenset({"offset", "size"}),
        fold=frozenset({"name"}),
        empty="No tensors.",
    )


def _place(replica: ReplicaInfo) -> str:
    state = "" if replica.state == "ready" else f" ({replica.state})"
    return f"{replica.node}/{replica.tier}{state}"


def _percent(ready: int, total: int) -> str:
    return f"{100 * ready // total}%" if total else "100%"


def table_keys(found: Sequence[KeyInfo]) -> Table:
    """One key a line."""
    return Table(
        titles=("key", "artifact", "version"),
        rows=[(one.key, shorten(one.artifact) or "removed", str(one.version)) for one in found],
        right=frozenset({"version"}),
        fold=frozenset({"key"}),
        empty="No keys. `tcctl put --key` makes one.",
    )


def describe_key(info: KeyInfo) -> Sequence[Block]:
    """A key and all its moves."""
    pairs = (
        ("key", info.key),
        ("artifact", info.artifact or "none: the key is removed"),
        ("version", str(info.version)),
    )
    return (Fields(pairs), Heading("History"), table_moves(info.history))


def table_moves(moves: Sequence[KeyMove]) -> Table:
    """One move of a key a line."""
    return Table(
        titles=("seq", "at", "artifact", "actor"),
        rows=[
            (str(one.seq), format_second(one.at), shorten(one.artifact) or "removed", one.actor)
            for one in moves
        ],
        right=frozenset({"seq"}),
        empty="No moves.",
    )


def table_operations(found: Sequence[OperationInfo], now: datetime) -> Table:
    """One operation a line."""
    return Table(
        titles=("id", "kind", "node", "artifact", "status", "try", "moved", "policy", "age", "why"),
        rows=[
            (
                shorten_operation(one.id),
                one.kind,
                one.node,
                shorten(one.artifact),
                one.status,
                str(one.attempt),
                format_size(one.bytes_moved),
                one.policy,
                format_age(one.issued_at, now),
                one.fault.detail if one.fault else "",
            )
            for one in found
        ],
        right=frozenset({"try", "moved", "age"}),
        fold=frozenset({"why"}),
        empty="No operations.",
    )


def describe_operation(info: OperationInfo) -> Sequence[Block]:
    """Everything about one operation."""
    transports = ", ".join(
        f"{name} {format_size(moved)}" for name, moved in info.transports.items()
    )
    chunks = f"{info.chunks_ready}/{info.chunks_total}" if info.chunks_total else ""
    pairs = (
        ("id", info.id),
        ("kind", info.kind),
        ("status", info.status),
        ("fault", f"{info.fault.kind}: {info.fault.detail}" if info.fault else ""),
        ("node", info.node),
        ("artifact", info.artifact),
        ("policy", info.policy),
        ("cause", info.cause or ""),
        ("attempt", str(info.attempt)),
        ("chunks", chunks),
        ("moved", f"{format_size(info.bytes_moved)} ({info.bytes_moved} bytes)"),
        ("transports", transports),
        ("detours", "; ".join(f"{d.before} to {d.after}: {d.why}" for d in info.detours)),
        ("issued", format_time(info.issued_at)),
        ("ended", _ended(info)),
    )
    return (Fields(pairs),)


def table_nodes(found: Sequence[NodeInfo]) -> Table:
    """One node a line."""
    return Table(
        titles=("node", "state", "epoch", "dram", "disk", "replicas", "transports", "address"),
        rows=[
            (
                one.node,
                describe_state(one),
                str(one.epoch),
                _fill(one, "dram"),
                _fill(one, "disk"),
                str(one.replicas),
                ", ".join(one.transports),
                one.address,
            )
            for one in found
        ],
        right=frozenset({"epoch", "replicas"}),
        empty="No node has joined.",
    )


def describe_node(info: NodeInfo) -> Sequence[Block]:
    """Everything about one node."""
    tiers = tuple((tier, _fill(info, tier)) for tier in info.tiers)
    pairs = (
        ("node", info.node),
        ("state", describe_state(info)),
        ("epoch", str(info.epoch)),
        ("address", info.address),
        *tiers,
        ("overflow", info.overflow.value),
        ("replicas", str(info.replicas)),
        ("transports", ", ".join(info.transports)),
        ("labels", ", ".join(f"{name}={value}" for name, value in info.labels.items())),
        ("bandwidth", f"{format_size(info.bandwidth)}/s" if info.bandwidth else ""),
        ("joined", format_time(info.joined_at)),
        *(("avoids", _describe_peer(peer)) for peer in info.peers),
        *((("trouble", info.trouble),) if info.trouble else ()),
    )
    return (Fields(pairs),)


def _describe_peer(peer: PeerInfo) -> str:
    """A node that this one does not rely on: "n4 (quarantined for 3.2 s: it fell silent)"."""
    until = f" for {peer.quarantined_s:.1f} s" if peer.quarantined_s else ""
    return f"{peer.node} ({peer.standing}{until}: {peer.reason})"


def describe_state(info: NodeInfo) -> str:
    """The state in a word or two: "up", "up, cordoned", "up, in trouble"."""
    state = f"{info.state}, in trouble" if info.trouble else info.state
    if info.draining:
        return f"{state}, draining"
    return f"{state}, cordoned" if info.cordoned else state


def _fill(info: NodeInfo, tier: str) -> str:
    for name, one in info.tiers.items():
        if name == tier:
            return f"{format_size(one.used)} of {format_size(one.capacity)}"
    return ""


def _ended(info: OperationInfo) -> str:
    if info.ended_at is None:
        return ""
    took_s = (info.ended_at - info.issued_at).total_seconds()
    rate = f", {format_rate(info.bytes_moved / took_s)}" if info.bytes_moved and took_s > 0 else ""
    return f"{format_time(info.ended_at)} (after {format_seconds(took_s)}{rate})"
