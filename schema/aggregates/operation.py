"""An operation: one unit of data-plane work on one node, issued by a policy, run by the mover."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import assert_never

import msgspec

from tensorcast.schema.aggregates.machine import check_epoch, next_status
from tensorcast.schema.commands import (
    CancelOperation,
    FailOperation,
    IssueOperation,
    OperationCommand,
    RerouteOperation,
    RetryOperation,
    StartOperation,
    SucceedOperation,
)
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import NotFound, Rejected
from tensorcast.schema.events import (
    Event,
    OperationCancelled,
    OperationEvent,
    OperationFailed,
    OperationIssued,
    OperationRerouted,
    OperationRetried,
    OperationStarted,
    OperationSucceeded,
)
from tensorcast.schema.faults import Detour, Fault
from tensorcast.schema.ids import Epoch, EventId, NodeId, OperationId, Seq
from tensorcast.schema.work import Materialize, Work


class OperationStatus(StrEnum):
    ISSUED = "issued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TRANSITIONS: Mapping[tuple[OperationStatus | None, type[Event]], OperationStatus] = {
    (None, OperationIssued): OperationStatus.ISSUED,
    (OperationStatus.ISSUED, OperationStarted): OperationStatus.RUNNING,
    (OperationStatus.ISSUED, OperationFailed): OperationStatus.FAILED,
    (OperationStatus.ISSUED, OperationCancelled): OperationStatus.CANCELLED,
    (OperationStatus.RUNNING, OperationStarted): OperationStatus.RUNNING,
    (OperationStatus.RUNNING, OperationSucceeded): OperationStatus.SUCCEEDED,
    (OperationStatus.RUNNING, OperationFailed): OperationStatus.FAILED,
    (OperationStatus.RUNNING, OperationCancelled): OperationStatus.CANCELLED,
    (OperationStatus.ISSUED, OperationRerouted): OperationStatus.ISSUED,
    (OperationStatus.RUNNING, OperationRerouted): OperationStatus.RUNNING,
    (OperationStatus.FAILED, OperationRerouted): OperationStatus.FAILED,
    (OperationStatus.FAILED, OperationRetried): OperationStatus.ISSUED,
    (OperationStatus.FAILED, OperationCancelled): OperationStatus.CANCELLED,
    (OperationStatus.CANCELLED, OperationRetried): OperationStatus.ISSUED,
}

OPEN = frozenset({OperationStatus.ISSUED, OperationStatus.RUNNING})


class Operation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`attempt` counts tries from 1; `cause` is the event that the policy answered; `epoch` is the
    life of the mover that runs it (0 before the first start)."""

    id: OperationId
    status: OperationStatus
    node: NodeId
    work: Work
    policy: str
    cause: EventId | None
    issued_at: datetime
    attempt: int = 1
    epoch: Epoch = Epoch(0)
    fault: Fault | None = None
    bytes_moved: int = 0
    transports: dict[str, int] = {}
    detours: tuple[Detour, ...] = ()
    ended_at: datetime | None = None
    version: Seq = Seq(0)


def decide(state: Operation | None, command: OperationCommand) -> tuple[OperationEvent, ...]:
    """The events that the command leads to. Raises NotFound or Rejected (also a stale epoch)."""
    if isinstance(command, IssueOperation):
        return () if state else (_issued(command),)
    if state is None:
        raise NotFound(
            f"There is no operation {command.operation}.",
            hint="`tcctl op ls` shows what there is.",
            operation=command.operation,
        )
    event = _follow(state, command)
    if event is None:
        return ()
    next_status(TRANSITIONS, state.status, event, f"operation {state.id}")
    return (event,)


def _issued(command: IssueOperation) -> OperationIssued:
    return OperationIssued(
        operation=command.operation, node=command.node, work=command.work, policy=command.policy
    )


def _follow(
    state: Operation,
    command: StartOperation
    | SucceedOperation
    | FailOperation
    | RetryOperation
    | RerouteOperation
    | CancelOperation,
) -> OperationEvent | None:
    match command:
        case StartOperation():
            check_epoch(state.epoch, command.epoch, f"operation {state.id}")
            if state.status is OperationStatus.RUNNING and state.epoch == command.epoch:
                return None
            return OperationStarted(operation=state.id, epoch=command.epoch, attempt=state.attempt)
        case SucceedOperation():
            check_epoch(state.epoch, command.epoch, f"operation {state.id}")
            if state.status is OperationStatus.SUCCEEDED:
                return None
            return OperationSucceeded(
                operation=state.id,
                epoch=command.epoch,
                bytes_moved=command.bytes_moved,
                transports=command.transports,
                detours=command.detours,
            )
        case FailOperation():
            check_epoch(state.epoch, command.epoch, f"operation {state.id}")
            return OperationFailed(
                operation=state.id,
                epoch=command.epoch,
                fault=command.fault,
                bytes_moved=command.bytes_moved,
                transports=command.transports,
                detours=command.detours,
            )
        case RetryOperation():
            return _retried(state, command)
        case RerouteOperation():
            return _rerouted(state, command)
        case CancelOperation():
            if state.status is OperationStatus.CANCELLED:
                return None
            if state.status is OperationStatus.SUCCEEDED:
                raise Rejected(
                    f"Operation {state.id} has succeeded already; there is nothing to cancel.",
                    operation=state.id,
                )
            return OperationCancelled(operation=state.id, reason=command.reason)
        case _:
            assert_never(command)


def _retried(state: Operation, command: RetryOperation) -> OperationRetried | None:
    following = state.attempt + 1
    attempt = following if command.attempt is None else command.attempt
    if state.attempt >= attempt:
        return None
    if command.attempt is not None and state.status is OperationStatus.CANCELLED:
        return None  # a scheduled try never revives what somebody cancelled; a person may
    if attempt != following:
        raise Rejected(f"Operation {state.id} is at attempt {state.attempt}, not {attempt - 1}.")
    return OperationRetried(operation=state.id, attempt=attempt)


def _rerouted(state: Operation, command: RerouteOperation) -> OperationRerouted | None:
    is_over = state.status in (OperationStatus.SUCCEEDED, OperationStatus.CANCELLED)
    if is_over or not isinstance(state.work, Materialize):
        return None
    if command.instead_of not in state.work.sources or command.sources == state.work.sources:
        return None
    return OperationRerouted(operation=state.id, sources=command.sources)


def evolve(state: Operation | None, recorded: Recorded, event: OperationEvent) -> Operation:
    """The state after `event`. Raises Rejected when the event cannot follow."""
    status = next_status(
        TRANSITIONS, state.status if state else None, event, f"operation {event.operation}"
    )
    if isinstance(event, OperationIssued):
        return Operation(
            id=event.operation,
            status=status,
            node=event.node,
            work=event.work,
            policy=event.policy,
            cause=recorded.cause,
            issued_at=recorded.at,
            version=recorded.seq,
        )
    assert state is not None
    return msgspec.structs.replace(
        state, status=status, version=recorded.seq, **_changes(state, recorded, event)
    )


def _changes(
    state: Operation,
    recorded: Recorded,
    event: OperationStarted
    | OperationSucceeded
    | OperationFailed
    | OperationRetried
    | OperationRerouted
    | OperationCancelled,
) -> dict[str, object]:
    match event:
        case OperationStarted():
            return {"epoch": event.epoch, "attempt": event.attempt}
        case OperationSucceeded():
            return {
                "bytes_moved": event.bytes_moved,
                "transports": event.transports,
                "detours": event.detours,
                "ended_at": recorded.at,
                "fault": None,
            }
        case OperationFailed():
            return {
                "bytes_moved": event.bytes_moved,
                "transports": event.transports,
                "detours": event.detours,
                "fault": event.fault,
                "ended_at": recorded.at,
            }
        case OperationRetried():
            return {"attempt": event.attempt, "ended_at": None}
        case OperationRerouted():
            if not isinstance(state.work, Materialize):
                return {}
            return {"work": msgspec.structs.replace(state.work, sources=event.sources)}
        case OperationCancelled():
            return {"ended_at": recorded.at}
        case _:
            assert_never(event)
