"""A node: a machine that runs one mover; each life of the mover is an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import assert_never

import msgspec

from tensorcast.schema.aggregates.machine import check_epoch, next_status
from tensorcast.schema.commands import (
    CordonNode,
    DrainNode,
    JoinNode,
    LeaveNode,
    LoseNode,
    NodeCommand,
    ReportPressure,
    ReportRelief,
    UncordonNode,
)
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import NotFound, Rejected
from tensorcast.schema.events import (
    Event,
    NodeCordoned,
    NodeDrained,
    NodeEvent,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodePressured,
    NodeRelieved,
    NodeUncordoned,
)
from tensorcast.schema.ids import Epoch, NodeId, Overflow, Seq, Tier


class NodeStatus(StrEnum):
    UP = "up"
    LEFT = "left"
    LOST = "lost"


TRANSITIONS: Mapping[tuple[NodeStatus | None, type[Event]], NodeStatus] = {
    (None, NodeJoined): NodeStatus.UP,
    (NodeStatus.UP, NodeJoined): NodeStatus.UP,
    (NodeStatus.LEFT, NodeJoined): NodeStatus.UP,
    (NodeStatus.LOST, NodeJoined): NodeStatus.UP,
    (NodeStatus.UP, NodeLeft): NodeStatus.LEFT,
    (NodeStatus.LOST, NodeLeft): NodeStatus.LEFT,
    (NodeStatus.UP, NodeLost): NodeStatus.LOST,
    **{
        (status, event_type): status
        for event_type in (NodeCordoned, NodeUncordoned, NodeDrained)
        for status in NodeStatus
    },
    (NodeStatus.UP, NodePressured): NodeStatus.UP,
    (NodeStatus.UP, NodeRelieved): NodeStatus.UP,
}


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """`address` is host:port of the data port; `tiers` gives capacities in bytes. A cordoned node
    gets no new replicas; a draining one is cordoned and gives its replicas away; `cordoned_by` is
    the actor who said so last. `overflow` is what it does when its memory is full."""

    id: NodeId
    status: NodeStatus
    epoch: Epoch
    address: str
    tiers: dict[Tier, int]
    transports: tuple[str, ...]
    labels: dict[str, str]
    joined_at: datetime
    cordoned: bool = False
    draining: bool = False
    cordoned_by: str = ""
    overflow: Overflow = Overflow.SPILL
    bandwidth: int = 0
    ticket_key: str = ""
    version: Seq = Seq(0)


def decide(state: Node | None, command: NodeCommand) -> tuple[NodeEvent, ...]:
    """The events that the command leads to. Raises NotFound or Rejected (also a stale epoch)."""
    if isinstance(command, JoinNode):
        return _join(state, command)
    if state is None:
        raise NotFound(
            f"There is no node {command.node!r}.",
            hint="`tcctl node ls` shows what there is.",
            node=command.node,
        )
    match command:
        case LeaveNode():
            check_epoch(state.epoch, command.epoch, f"node {state.id}")
            if state.status is NodeStatus.LEFT:
                return ()
            return (NodeLeft(node=state.id, epoch=command.epoch),)
        case LoseNode():
            return _lose(state, command)
        case CordonNode():
            return () if state.cordoned else (NodeCordoned(node=state.id),)
        case UncordonNode():
            return (NodeUncordoned(node=state.id),) if state.cordoned else ()
        case DrainNode():
            return (NodeDrained(node=state.id),)
        case ReportPressure():
            return _pressured(state, command)
        case ReportRelief():
            return _relieved(state, command)
        case _:
            assert_never(command)


def _join(state: Node | None, command: JoinNode) -> tuple[NodeEvent, ...]:
    last = state.epoch if state else Epoch(0)
    if command.epoch <= last:
        raise Rejected(
            f"Node {command.node} has reached epoch {last}; it cannot join as {command.epoch}.",
            hint="Two movers may be running under this name: give each node its own.",
            node=command.node,
        )
    return (
        NodeJoined(
            node=command.node,
            epoch=command.epoch,
            address=command.address,
            tiers=command.tiers,
            transports=command.transports,
            labels=command.labels,
            overflow=command.overflow,
            bandwidth=command.bandwidth,
            ticket_key=command.ticket_key,
        ),
    )


def _lose(state: Node, command: LoseNode) -> tuple[NodeEvent, ...]:
    if state.status is not NodeStatus.UP or state.epoch != command.epoch:
        return ()
    return (NodeLost(node=state.id, epoch=command.epoch, silent_s=command.silent_s),)


def _pressured(state: Node, command: ReportPressure) -> tuple[NodeEvent, ...]:
    check_epoch(state.epoch, command.epoch, f"node {state.id}")
    event = NodePressured(
        node=state.id,
        epoch=command.epoch,
        tier=command.tier,
        needed_bytes=command.needed_bytes,
        candidates=command.candidates,
    )
    next_status(TRANSITIONS, state.status, event, f"node {state.id}")
    return (event,)


def _relieved(state: Node, command: ReportRelief) -> tuple[NodeEvent, ...]:
    check_epoch(state.epoch, command.epoch, f"node {state.id}")
    event = NodeRelieved(
        node=state.id,
        epoch=command.epoch,
        tier=command.tier,
        free_bytes=command.free_bytes,
        candidates=command.candidates,
    )
    next_status(TRANSITIONS, state.status, event, f"node {state.id}")
    return (event,)


def evolve(state: Node | None, recorded: Recorded, event: NodeEvent) -> Node:
    """The state after `event`. Raises Rejected when the event cannot follow."""
    status = next_status(TRANSITIONS, state.status if state else None, event, f"node {event.node}")
    if isinstance(event, NodeJoined):
        return Node(
            id=event.node,
            status=status,
            epoch=event.epoch,
            address=event.address,
            tiers=event.tiers,
            transports=event.transports,
            labels=event.labels,
            joined_at=recorded.at,
            cordoned=bool(state and state.cordoned),
            draining=bool(state and state.draining),
            cordoned_by=state.cordoned_by if state else "",
            overflow=event.overflow,
            bandwidth=event.bandwidth,
            ticket_key=event.ticket_key,
            version=recorded.seq,
        )
    assert state is not None
    match event:
        case NodeLeft() | NodeLost() | NodePressured() | NodeRelieved():
            change: dict[str, object] = {}
        case NodeCordoned():
            change = {"cordoned": True, "cordoned_by": recorded.actor}
        case NodeUncordoned():
            change = {"cordoned": False, "draining": False, "cordoned_by": ""}
        case NodeDrained():
            change = {"cordoned": True, "draining": True, "cordoned_by": recorded.actor}
        case _:
            assert_never(event)
    return msgspec.structs.replace(state, status=status, version=recorded.seq, **change)
