"""A replica: one artifact's bytes on one node in one tier, written by the node's own mover."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import assert_never

import msgspec

from tensorcast.schema.aggregates.machine import check_epoch, next_status
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.commands import (
    CompleteReplica,
    CorruptReplica,
    DropReplica,
    EvictReplica,
    FillReplica,
    LoseReplica,
    ReplicaCommand,
    StartReplica,
)
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.events import (
    Event,
    ReplicaCorrupted,
    ReplicaEvent,
    ReplicaEvicting,
    ReplicaFilled,
    ReplicaGone,
    ReplicaLost,
    ReplicaReady,
    ReplicaStarted,
)
from tensorcast.schema.ids import ArtifactId, Epoch, NodeId, ReplicaId, Seq, Tier


class ReplicaStatus(StrEnum):
    FILLING = "filling"
    READY = "ready"
    EVICTING = "evicting"
    GONE = "gone"
    LOST = "lost"


TRANSITIONS: Mapping[tuple[ReplicaStatus | None, type[Event]], ReplicaStatus] = {
    (None, ReplicaStarted): ReplicaStatus.FILLING,
    (None, ReplicaReady): ReplicaStatus.READY,
    (ReplicaStatus.FILLING, ReplicaStarted): ReplicaStatus.FILLING,
    (ReplicaStatus.FILLING, ReplicaFilled): ReplicaStatus.FILLING,
    (ReplicaStatus.FILLING, ReplicaReady): ReplicaStatus.READY,
    (ReplicaStatus.FILLING, ReplicaCorrupted): ReplicaStatus.FILLING,
    (ReplicaStatus.FILLING, ReplicaEvicting): ReplicaStatus.EVICTING,
    (ReplicaStatus.FILLING, ReplicaGone): ReplicaStatus.GONE,
    (ReplicaStatus.FILLING, ReplicaLost): ReplicaStatus.LOST,
    (ReplicaStatus.READY, ReplicaCorrupted): ReplicaStatus.FILLING,
    (ReplicaStatus.READY, ReplicaEvicting): ReplicaStatus.EVICTING,
    (ReplicaStatus.READY, ReplicaLost): ReplicaStatus.LOST,
    (ReplicaStatus.EVICTING, ReplicaGone): ReplicaStatus.GONE,
    (ReplicaStatus.EVICTING, ReplicaLost): ReplicaStatus.LOST,
    (ReplicaStatus.GONE, ReplicaStarted): ReplicaStatus.FILLING,
    (ReplicaStatus.GONE, ReplicaReady): ReplicaStatus.READY,
    (ReplicaStatus.LOST, ReplicaStarted): ReplicaStatus.FILLING,
    (ReplicaStatus.LOST, ReplicaReady): ReplicaStatus.READY,
}

_ABSENT = (None, ReplicaStatus.GONE, ReplicaStatus.LOST)


class Replica(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Invariant: status is READY only if `chunks` holds all of 0 .. chunks_total - 1."""

    id: ReplicaId
    artifact: ArtifactId
    node: NodeId
    tier: Tier
    status: ReplicaStatus
    epoch: Epoch
    chunks: ChunkSet
    chunks_total: int
    version: Seq = Seq(0)


def decide(state: Replica | None, command: ReplicaCommand) -> tuple[ReplicaEvent, ...]:
    """The events that the command leads to. Raises NotFound, InvalidArgument or Rejected (also
    for a stale epoch)."""
    if state is not None:
        check_epoch(state.epoch, command.epoch, f"replica {state.id}")
    status = state.status if state else None
    event: ReplicaEvent
    match command:
        case StartReplica():
            return _start(state, command)
        case CompleteReplica():
            return _complete(status, command)
        case EvictReplica() | DropReplica() | LoseReplica() if status in _ABSENT:
            return ()
        case FillReplica():
            if state is not None and _is_filled(state, command.chunks):
                return ()
            event = ReplicaFilled(
                replica=command.replica, epoch=command.epoch, chunks=command.chunks
            )
        case CorruptReplica():
            if state is not None and _is_without(state, command.chunks):
                return ()
            event = ReplicaCorrupted(
                replica=command.replica,
                epoch=command.epoch,
                chunks=command.chunks,
                detail=command.detail,
            )
        case EvictReplica():
            if status is ReplicaStatus.EVICTING:
                return ()
            event = ReplicaEvicting(
                replica=command.replica, epoch=command.epoch, reason=command.reason
            )
        case DropReplica():
            event = ReplicaGone(replica=command.replica, epoch=command.epoch)
        case LoseReplica():
            event = ReplicaLost(replica=command.replica, epoch=command.epoch, detail=command.detail)
        case _:
            assert_never(command)
    if state is None:
        raise NotFound(f"There is no replica {command.replica}.")
    next_status(TRANSITIONS, status, event, f"replica {command.replica}")
    return (event,)


def _is_filled(state: Replica, chunks: ChunkSet) -> bool:
    """Whether the replica holds these chunks already. Raises InvalidArgument for one that no chunk
    of the artifact is."""
    if len(chunks - ChunkSet.full(state.chunks_total)):
        raise InvalidArgument(f"Replica {state.id} has {state.chunks_total} chunks, not more.")
    return state.status is ReplicaStatus.FILLING and not len(chunks - state.chunks)


def _is_without(state: Replica, chunks: ChunkSet) -> bool:
    """Whether the replica is in use and holds none of these chunks."""
    in_use = state.status in (ReplicaStatus.FILLING, ReplicaStatus.READY)
    return in_use and state.chunks - chunks == state.chunks


def _start(state: Replica | None, command: StartReplica) -> tuple[ReplicaEvent, ...]:
    if state and state.status is ReplicaStatus.READY:
        return ()
    if state and state.status is ReplicaStatus.FILLING and state.epoch == command.epoch:
        return ()
    event = ReplicaStarted(
        replica=command.replica,
        artifact=command.artifact,
        node=command.node,
        tier=command.tier,
        epoch=command.epoch,
        chunks_total=command.chunks_total,
    )
    status = state.status if state else None
    next_status(TRANSITIONS, status, event, f"replica {command.replica}")
    return (event,)


def _complete(status: ReplicaStatus | None, command: CompleteReplica) -> tuple[ReplicaEvent, ...]:
    if status is ReplicaStatus.READY:
        return ()
    event = ReplicaReady(
        replica=command.replica,
        artifact=command.artifact,
        node=command.node,
        tier=command.tier,
        epoch=command.epoch,
        chunks_total=command.chunks_total,
    )
    next_status(TRANSITIONS, status, event, f"replica {command.replica}")
    return (event,)


def evolve(state: Replica | None, recorded: Recorded, event: ReplicaEvent) -> Replica:
    """The state after `event`. Raises Rejected when the event cannot follow."""
    status = next_status(
        TRANSITIONS, state.status if state else None, event, f"replica {event.replica}"
    )
    if isinstance(event, ReplicaStarted | ReplicaReady):
        return _appeared(state, status, recorded, event)
    assert state is not None
    match event:
        case ReplicaFilled():
            chunks = state.chunks | event.chunks
        case ReplicaCorrupted():
            chunks = state.chunks - event.chunks
        case ReplicaEvicting():
            chunks = state.chunks
        case ReplicaGone() | ReplicaLost():
            chunks = ChunkSet()
        case _:
            assert_never(event)
    return msgspec.structs.replace(
        state, status=status, chunks=chunks, epoch=event.epoch, version=recorded.seq
    )


def _appeared(
    state: Replica | None,
    status: ReplicaStatus,
    recorded: Recorded,
    event: ReplicaStarted | ReplicaReady,
) -> Replica:
    is_ready = isinstance(event, ReplicaReady)
    return Replica(
        id=event.replica,
        artifact=event.artifact,
        node=event.node,
        tier=event.tier,
        status=status,
        epoch=event.epoch,
        chunks=ChunkSet.full(event.chunks_total) if is_ready else ChunkSet(),
        chunks_total=event.chunks_total,
        version=recorded.seq,
    )
