"""The operations of a step: which to issue, which to wait for, and how they ended. Pure.

Two requests for the same thing share one operation: what somebody else is doing already is waited
for, and what is there already is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from tensorcast.controlplane.core.decisions import is_right
from tensorcast.controlplane.core.routes import plan_routes
from tensorcast.controlplane.core.view import (
    Aim,
    aim_of,
    fill_work,
    has_store,
    is_pending,
    is_ready,
    is_requested,
    is_up,
    live_replica,
    operations_of,
    sealed,
)
from tensorcast.schema.aggregates.operation import Operation, OperationStatus
from tensorcast.schema.aggregates.plan import ACTIVE, Plan, StepState
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import CancelOperation, Command, IssueOperation
from tensorcast.schema.faults import Fault, FaultKind
from tensorcast.schema.ids import (
    ArtifactId,
    NodeId,
    OperationId,
    PlanId,
    Seq,
    Tier,
    derive_operation_id,
)
from tensorcast.schema.plan_events import StepPath
from tensorcast.schema.plans import OperationStep, ReplicateStep
from tensorcast.schema.work import Evict, Load, Materialize, Persist, Verify, Work, target_tier

ISSUED_AT_ONCE_MAX: Final = 256
"""Most operations of one append."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a try of a step wants: the same work on nodes, so many at a time."""

    plan: PlanId
    step: StepPath
    attempt: int
    work: str
    artifact: ArtifactId
    nodes: tuple[NodeId, ...]
    tier: Tier
    sources: tuple[NodeId, ...] = ()
    at_once: int = ISSUED_AT_ONCE_MAX


class Standing(StrEnum):
    """How far one node is."""

    DONE = "done"
    RUNNING = "running"
    WANTED = "wanted"
    FAILED = "failed"


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One node's part of an order; `operation` is what does it, whoever issued that. `because` is
    the event that brought it where it is."""

    node: NodeId
    standing: Standing
    operation: OperationId | None = None
    fault: Fault | None = None
    bytes_moved: int = 0
    because: Seq = Seq(0)


def order_of(
    plan: Plan, path: StepPath, step: OperationStep | ReplicateStep, state: StepState
) -> Order:
    """What the present try of a step wants, from the values that it began with."""
    values = state.inputs
    return make_order(plan.id, path, step, state.attempt, values)


def make_order(
    plan: PlanId,
    path: StepPath,
    step: OperationStep | ReplicateStep,
    attempt: int,
    values: dict[str, object],
) -> Order:
    """An order from resolved values: `artifact`, `nodes`, `sources`."""
    limit = step.concurrency_max if isinstance(step, ReplicateStep) else None
    return Order(
        plan=plan,
        step=path,
        attempt=attempt,
        work=step.work if isinstance(step, OperationStep) else "fill",
        artifact=ArtifactId(str(values["artifact"])),
        nodes=tuple(NodeId(str(node)) for node in _listed(values["nodes"])),
        tier=step.tier,
        sources=tuple(NodeId(str(node)) for node in _listed(values.get("sources", ()))),
        at_once=min(limit or ISSUED_AT_ONCE_MAX, ISSUED_AT_ONCE_MAX),
    )


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


def own_id(order: Order, index: int) -> OperationId:
    """The id of the operation that this try issues for its node number `index`."""
    return derive_operation_id(order.plan, f"{order.step}#{order.attempt}", index)


def inspect(view: ClusterView, order: Order, joined: Sequence[str] = ()) -> tuple[Task, ...]:
    """How far each node of the order is; `joined` are operations that the step waits for since it
    began."""
    return tuple(
        _inspect_one(view, order, index, node, joined) for index, node in enumerate(order.nodes)
    )


def _inspect_one(
    view: ClusterView, order: Order, index: int, node: NodeId, joined: Sequence[str]
) -> Task:
    own = view.operations.get(own_id(order, index))
    if own is not None:
        return _from_operation(view, own)
    aim = _aim(order, node)
    for name in joined:
        other = view.operations.get(OperationId(name))
        if other is not None and aim_of(other.node, other.work) == aim:
            known = _from_operation(view, other)
            if known.standing is not Standing.FAILED:
                return known
    if _is_there(view, order, node):
        return Task(node=node, standing=Standing.DONE)
    pending = _pending(view, aim)
    if pending is not None:
        return _from_operation(view, pending)
    fault = _obstacle(view, order, index, node)
    if fault is not None:
        return Task(node=node, standing=Standing.FAILED, fault=fault)
    return Task(node=node, standing=Standing.WANTED)


def _from_operation(view: ClusterView, operation: Operation) -> Task:
    standing, fault = Standing.RUNNING, None
    if operation.status is OperationStatus.SUCCEEDED:
        standing = Standing.DONE
    elif operation.status is OperationStatus.CANCELLED:
        standing = Standing.FAILED
        fault = Fault(
            kind=FaultKind.CANCELLED, detail=f"Somebody cancelled operation {operation.id}."
        )
    elif not is_pending(operation):
        standing, fault = Standing.FAILED, operation.fault
    elif not is_up(view, operation.node):
        standing, fault = Standing.FAILED, _away(operation.node)
    return Task(
        node=operation.node,
        standing=standing,
        operation=operation.id,
        fault=fault,
        bytes_moved=operation.bytes_moved,
        because=operation.version,
    )


def _away(node: NodeId) -> Fault:
    return Fault(kind=FaultKind.UNAVAILABLE, detail=f"Node {node} is not up.")


def _is_there(view: ClusterView, order: Order, node: NodeId) -> bool:
    """Whether what is wanted is so already."""
    match order.work:
        case "verify":
            return False
        case "evict":
            return live_replica(view, order.artifact, node, order.tier) is None
        case "load":
            return is_ready(view, order.artifact, node, Tier.DRAM)
        case _:
            return is_ready(view, order.artifact, node, order.tier)


def _aim(order: Order, node: NodeId) -> Aim:
    kind, tier = "fill", order.tier
    if order.work in ("evict", "verify"):
        kind = order.work
    elif order.work == "load":
        tier = Tier.DRAM
    return node, order.artifact, kind, tier


def _pending(view: ClusterView, aim: Aim) -> Operation | None:
    for other in operations_of(view, aim[1]):
        if is_pending(other) and aim_of(other.node, other.work) == aim:
            return other
    return None


def _obstacle(view: ClusterView, order: Order, index: int, node: NodeId) -> Fault | None:
    """What speaks against issuing the operation now."""
    if not is_up(view, node):
        return _away(node)
    if sealed(view, order.artifact) is None and order.work != "evict":
        return Fault(kind=FaultKind.NOT_FOUND, detail=f"Artifact {order.artifact} was removed.")
    if order.work in ("load", "persist") and order.tier is Tier.OBJECT:
        if not has_store(view, node):
            return Fault(kind=FaultKind.INVALID, detail=f"Node {node} has no access to a store.")
        return None
    if order.work not in ("evict", "verify"):
        return None
    command = _issue(order, index, node, _work(view, order, node, ()))
    if is_right(view, command):
        return None
    if order.work == "verify":
        detail = f"Node {node} has no complete replica in {order.tier} to verify."
        return Fault(kind=FaultKind.NOT_FOUND, detail=detail)
    detail = f"The replica on {node} may not go: it is pinned, leased, or the last copy."
    return Fault(kind=FaultKind.DENIED, detail=detail)


def issue_wanted(
    view: ClusterView, order: Order, tasks: Sequence[Task], labels: Sequence[str]
) -> tuple[IssueOperation, ...]:
    """The operations to issue now, as many as the order's limit leaves room for. A fan-out is
    planned for all of them at once."""
    running = sum(task.standing is Standing.RUNNING for task in tasks)
    wanted = [i for i, task in enumerate(tasks) if task.standing is Standing.WANTED]
    chosen = wanted[: max(0, order.at_once - running)]
    nodes = [order.nodes[index] for index in chosen]
    works = {node: _work(view, order, node, order.sources) for node in nodes}
    pulls = {
        node: order.tier
        for node, work in works.items()
        if isinstance(work, Materialize) and not order.sources
    }
    routes = plan_routes(view, order.artifact, pulls, labels) if pulls else {}
    for node, sources in routes.items():
        works[node] = Materialize(artifact=order.artifact, sources=sources, tier=order.tier)
    return tuple(
        _issue(order, index, order.nodes[index], works[order.nodes[index]]) for index in chosen
    )


def _issue(order: Order, index: int, node: NodeId, work: Work) -> IssueOperation:
    return IssueOperation(operation=own_id(order, index), node=node, work=work, policy=order.plan)


def _work(view: ClusterView, order: Order, node: NodeId, sources: tuple[NodeId, ...]) -> Work:
    artifact, tier = order.artifact, order.tier
    match order.work:
        case "materialize":
            return Materialize(artifact=artifact, sources=sources, tier=tier)
        case "load":
            return Load(artifact=artifact, tier=tier)
        case "persist":
            return Persist(artifact=artifact, tier=tier)
        case "evict":
            return Evict(artifact=artifact, tier=tier, reason=f"plan {order.plan}")
        case "verify":
            return Verify(artifact=artifact, tier=tier)
        case _:
            return fill_work(view, artifact, node, tier)


def stop_operations(
    view: ClusterView, plan: Plan, path: StepPath, state: StepState
) -> list[Command]:
    """Cancels what a step has issued and nobody else waits for."""
    return [
        CancelOperation(operation=name, reason=f"step {path} of {plan.id} was stopped")
        for name in own_operations(view, plan, path, state)
        if not _is_wanted_elsewhere(view, plan, path, view.operations[name])
    ]


def own_operations(
    view: ClusterView, plan: Plan, path: StepPath, state: StepState
) -> list[OperationId]:
    """The open operations that the present try of a step has issued."""
    nodes = _listed(state.inputs.get("nodes", ()))
    prefix = f"{path}#{state.attempt}"
    names = (derive_operation_id(plan.id, prefix, index) for index in range(len(nodes)))
    return [
        name
        for name in names
        if name in view.operations and view.operations[name].status in _CANCELLABLE
    ]


_CANCELLABLE: Final = frozenset({OperationStatus.ISSUED, OperationStatus.RUNNING})


def _is_wanted_elsewhere(
    view: ClusterView, plan: Plan, path: StepPath, operation: Operation
) -> bool:
    """Whether the replica was asked for, or another step waits for this operation."""
    tier = target_tier(operation.work)
    artifact = operation.work.artifact
    if tier is not None and is_requested(view, artifact, operation.node, tier):
        return True
    return any(
        (name, other) != (plan.id, path) and operation.id in step.operations
        for name in view.open_plans
        for other, step in view.plans[name].steps.items()
        if step.status in ACTIVE
    )
