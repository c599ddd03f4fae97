"""Verbs that the live view answers: what there is now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec

from tensorcast.controlplane.core.names import (
    find_key,
    resolve_artifact,
    resolve_node,
    resolve_operation,
)
from tensorcast.controlplane.core.view import replicas_of
from tensorcast.controlplane.services.api_answers import (
    describe_artifact,
    describe_key,
    describe_node,
    describe_nodes,
    describe_operation,
    describe_tensors,
)
from tensorcast.controlplane.services.api_desk import Desk
from tensorcast.controlplane.services.heartbeats import Heartbeat
from tensorcast.schema.aggregates.artifact import Artifact, ArtifactStatus
from tensorcast.schema.aggregates.key import KeyState, KeyStatus
from tensorcast.schema.aggregates.node import NodeStatus
from tensorcast.schema.aggregates.operation import Operation, OperationStatus
from tensorcast.schema.api import (
    LIST_MAX,
    ArtifactInfo,
    Browse,
    KeyInfo,
    NodeInfo,
    OperationInfo,
    Show,
    TensorInfo,
)
from tensorcast.schema.cluster import LIVE, ClusterView
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.ids import NodeId

ALL = "all"
T = TypeVar("T")


# ---- one -------------------------------------------------------------------------------------


async def show_artifact(desk: Desk, request: Show) -> ArtifactInfo:
    """The artifact that a key or id stands for. Raises NotFound."""
    view = await desk.view_for(request)
    return describe_artifact(view, view.artifacts[resolve_artifact(view, request.what)])


async def show_tensors(desk: Desk, request: Show) -> tuple[TensorInfo, ...]:
    """What such an artifact holds. Raises NotFound."""
    view = await desk.view_for(request)
    artifact = view.artifacts[resolve_artifact(view, request.what)]
    return describe_tensors(artifact.manifest.index)


async def show_operation(desk: Desk, request: Show) -> OperationInfo:
    """The operation of this id, or of which it is the beginning. Raises NotFound."""
    view = await desk.view_for(request)
    return describe_operation(view, view.operations[resolve_operation(view, request.what)])


async def show_node(desk: Desk, request: Show) -> NodeInfo:
    """The node of this name, whether it is up or not. Raises NotFound."""
    view = await desk.view_for(request)
    found = describe_node(view, view.nodes[resolve_node(view, request.what)])
    heartbeat = None if request.at is not None else _heartbeat(desk, found)
    if heartbeat is None:
        return found
    return msgspec.structs.replace(with_heartbeat(found, heartbeat), peers=heartbeat.peers)


def _heartbeat(desk: Desk, node: NodeInfo) -> Heartbeat | None:
    """The last one of this life of the node."""
    heard = desk.heartbeats.nodes.get(node.node)
    is_own = heard is not None and heard.heartbeat.epoch == node.epoch
    return heard.heartbeat if heard is not None and is_own else None


def as_heard(desk: Desk, node: NodeInfo) -> NodeInfo:
    """The node with what it says of itself, if it has been heard of in this life."""
    return with_heartbeat(node, _heartbeat(desk, node))


def with_heartbeat(node: NodeInfo, heartbeat: Heartbeat | None) -> NodeInfo:
    """The node with what it says of itself: its tiers hold more than replicas (slabs for KV blocks,
    open puts, what readers still map). Of a node that is not up, only the log speaks."""
    if heartbeat is None or node.state != NodeStatus.UP.value:
        return node
    tiers = {
        tier: msgspec.structs.replace(info, used=heartbeat.tiers[tier].used)
        if tier in heartbeat.tiers
        else info
        for tier, info in node.tiers.items()
    }
    return msgspec.structs.replace(node, tiers=tiers, trouble=heartbeat.trouble)


def require_key(view: ClusterView, text: str) -> KeyState:
    """The key of this name, if it points to something now. Raises NotFound."""
    found = find_key(view, text)
    if found is None:
        raise NotFound(f"There is no key {text!r}.", hint="`tcctl key ls` shows what there is.")
    return found


# ---- many ------------------------------------------------------------------------------------


async def list_artifacts(desk: Desk, request: Browse) -> tuple[ArtifactInfo, ...]:
    """The artifacts that are not removed (or those of `status`; `all` for all), the last sealed
    first; those with a replica on `node`."""
    view = await desk.view_for(request)
    wanted = _parse_status(request.status or ArtifactStatus.SEALED, ArtifactStatus)
    found = (
        artifact
        for artifact in view.artifacts.values()
        if wanted in (ALL, artifact.status) and _is_on(view, artifact, request.node)
    )
    newest = _newest(found, lambda artifact: artifact.sealed_at.timestamp(), request.limit)
    return tuple(describe_artifact(view, artifact) for artifact in newest)


def _is_on(view: ClusterView, artifact: Artifact, node: NodeId | None) -> bool:
    return node is None or any(
        replica.node == node and replica.status in LIVE
        for replica in replicas_of(view, artifact.id)
    )


async def list_keys(desk: Desk, request: Browse) -> tuple[KeyInfo, ...]:
    """The keys that point to something (or those of `status`), the last moved first; those of one
    artifact."""
    view = await desk.view_for(request)
    wanted = _parse_status(request.status or KeyStatus.SET, KeyStatus)
    artifact = resolve_artifact(view, request.artifact) if request.artifact else None
    found = (
        key
        for key in view.keys.values()
        if wanted in (ALL, key.status) and artifact in (None, key.artifact)
    )
    return tuple(map(describe_key, _newest(found, lambda key: key.version, request.limit)))


async def list_operations(desk: Desk, request: Browse) -> tuple[OperationInfo, ...]:
    """The operations, the last issued first; of one status, node or artifact."""
    view = await desk.view_for(request)
    wanted = _parse_status(request.status or ALL, OperationStatus)
    found = (
        operation
        for operation in _operations(view, request.artifact)
        if wanted in (ALL, operation.status) and request.node in (None, operation.node)
    )
    newest = _newest(found, lambda operation: operation.issued_at.timestamp(), request.limit)
    return tuple(describe_operation(view, operation) for operation in newest)


def _operations(view: ClusterView, artifact: str | None) -> Iterator[Operation]:
    if artifact is None:
        yield from view.operations.values()
        return
    for name in view.operations_by_artifact.get(resolve_artifact(view, artifact), ()):
        yield view.operations[name]


async def list_nodes(desk: Desk, request: Browse) -> tuple[NodeInfo, ...]:
    """All nodes that ever joined (or those of `status`), by name."""
    view = await desk.view_for(request)
    wanted = _parse_status(request.status or ALL, NodeStatus)
    found = (node for node in describe_nodes(view) if wanted in (ALL, node.state))
    nodes = tuple(found)[: _limit(request.limit)]
    return nodes if request.at is not None else tuple(as_heard(desk, node) for node in nodes)


def _newest(found: Iterable[T], age: Callable[[T], float], limit: int) -> list[T]:
    return sorted(found, key=age, reverse=True)[: _limit(limit)]


def _limit(limit: int) -> int:
    if limit < 1:
        raise InvalidArgument(f"A limit of {limit} makes no sense.", hint="Ask for 1 or more.")
    return min(limit, LIST_MAX)


def _parse_status(
    text: str,
    statuses: type[ArtifactStatus] | type[KeyStatus] | type[OperationStatus] | type[NodeStatus],
) -> str:
    known = [status.value for status in statuses]
    if text != ALL and text not in known:
        raise InvalidArgument(
            f"{text!r} is not a status.", hint=f"Use one of {', '.join(known)}, or all."
        )
    return text
