"""Verbs that wait: until an operation has ended, until replicas are there."""

from __future__ import annotations

from datetime import UTC, datetime

from tensorcast.controlplane.core.view import is_pending, is_ready, operations_of, size_bytes
from tensorcast.controlplane.services.api_answers import describe_operation
from tensorcast.controlplane.services.api_desk import Desk
from tensorcast.schema.aggregates.operation import Operation, OperationStatus
from tensorcast.schema.api import OperationInfo, ReplicasProgress, WaitOperation, WaitReplicas
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.errors import NotFound
from tensorcast.schema.ids import EventId, NodeId, replica_id
from tensorcast.schema.work import target_tier

_UUID7 = "7"


async def wait_operation(desk: Desk, request: WaitOperation) -> OperationInfo:
    """The operation once it has ended for good: a failed one that will be retried has not. Raises
    NotFound."""
    name = request.operation
    if name not in desk.follower.view.operations:
        view = await desk.view_after(await desk.writer.last_seq())
        if name not in view.operations:
            raise NotFound(
                f"There is no operation {name!r}.",
                hint="`tcctl op ls` shows what there is.",
                operation=name,
            )
    view = await desk.view_when(
        lambda view: not is_pending(view.operations[name]), request.timeout_s
    )
    return describe_operation(view, view.operations[name])


async def wait_replicas(desk: Desk, request: WaitReplicas) -> ReplicasProgress:
    """How far the replicas of a request are, once each is ready or will not come by itself. Raises
    NotFound."""
    await desk.view_after(await desk.writer.last_seq())
    if request.artifact not in desk.follower.view.artifacts:
        raise NotFound(
            f"There is no artifact {request.artifact}.",
            hint="`tcctl artifact ls` shows what there is.",
            artifact=request.artifact,
        )
    view = await desk.view_when(
        lambda view: measure_progress(view, request).done, request.timeout_s
    )
    return measure_progress(view, request)


def measure_progress(view: ClusterView, request: WaitReplicas) -> ReplicasProgress:
    """How far a request for replicas is in this view. Pure.

    A node is settled when it has the replica, or when the last operation that made it for this
    request has ended without a retry to come. Before a scheduler has seen the request there is no
    operation: that is not settled.
    """
    since = _time_of(request.request)
    operations: list[Operation] = []
    failed: list[Operation] = []
    ready: list[NodeId] = []
    settled = 0
    for node in dict.fromkeys(request.nodes):
        makers = _makers(view, request, node, since)
        operations.extend(makers)
        if is_ready(view, request.artifact, node, request.tier):
            ready.append(node)
            settled += 1
        elif makers and not any(map(is_pending, makers)):
            settled += _has_ended(makers[-1], request)
            if makers[-1].status is not OperationStatus.SUCCEEDED:
                failed.append(makers[-1])
    nodes = len(dict.fromkeys(request.nodes))
    return ReplicasProgress(
        done=settled == nodes,
        ready=tuple(ready),
        operations=tuple(describe_operation(view, found) for found in operations),
        failed=tuple(describe_operation(view, found) for found in failed),
        bytes_ready=sum(_bytes_ready(view, request, node) for node in dict.fromkeys(request.nodes)),
        bytes_total=nodes * size_bytes(view, request.artifact),
    )


def _has_ended(last: Operation, request: WaitReplicas) -> bool:
    """Whether nothing follows: after DRAM was filled for a disk replica, a `persist` does."""
    return last.status is not OperationStatus.SUCCEEDED or target_tier(last.work) is request.tier


def _makers(
    view: ClusterView, request: WaitReplicas, node: NodeId, since: datetime | None
) -> list[Operation]:
    """The operations that make the replica on the node, for this request or on their way already
    when it came; the last issued last."""
    found = [
        operation
        for operation in operations_of(view, request.artifact)
        if operation.node == node
        and target_tier(operation.work) is not None
        and (
            operation.cause == request.request
            or operation.ended_at is None
            or (since is not None and operation.ended_at >= since)
        )
    ]
    return sorted(found, key=lambda operation: (operation.issued_at, operation.version))


def _bytes_ready(view: ClusterView, request: WaitReplicas, node: NodeId) -> int:
    artifact = view.artifacts[request.artifact]
    replica = view.replicas.get(replica_id(request.artifact, node, request.tier))
    if replica is None:
        return 0
    manifest = artifact.manifest
    return min(manifest.size_bytes, len(replica.chunks) * manifest.chunk_bytes)


def _time_of(event: EventId) -> datetime | None:
    """When an event was made, as its id says (UUIDv7); None for an id that does not."""
    digits = event.replace("-", "")
    if len(digits) != 32 or digits[12] != _UUID7:
        return None
    try:
        return datetime.fromtimestamp(int(digits[:12], 16) / 1000, UTC)
    except ValueError:
        return None
