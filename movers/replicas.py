"""The commands about a replica of this node, as its mover says them."""

from __future__ import annotations

from tensorcast.movers.reports import Life
from tensorcast.movers.residents import Resident
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.commands import (
    CompleteReplica,
    CorruptReplica,
    DropReplica,
    EvictReplica,
    FillReplica,
    LoseReplica,
    StartReplica,
)
from tensorcast.schema.ids import ArtifactId, ReplicaId, Tier, replica_id


def start(resident: Resident, life: Life) -> StartReplica:
    """Its memory is reserved."""
    return StartReplica(
        replica=resident.replica,
        artifact=resident.id,
        node=life.node,
        tier=Tier.DRAM,
        epoch=life.epoch,
        chunks_total=resident.manifest.chunks_total,
    )


def filled(resident: Resident, chunks: ChunkSet, life: Life) -> FillReplica:
    """These chunks have arrived."""
    return FillReplica(replica=resident.replica, epoch=life.epoch, chunks=chunks)


def complete(resident: Resident, life: Life) -> CompleteReplica:
    """All chunks are there."""
    return CompleteReplica(
        replica=resident.replica,
        artifact=resident.id,
        node=life.node,
        tier=Tier.DRAM,
        epoch=life.epoch,
        chunks_total=resident.manifest.chunks_total,
    )


def corrupt(resident: Resident, chunks: ChunkSet, detail: str, life: Life) -> CorruptReplica:
    """These chunks do not match their digests any more."""
    return CorruptReplica(replica=resident.replica, epoch=life.epoch, chunks=chunks, detail=detail)


def evict(resident: Resident, reason: str, life: Life) -> EvictReplica:
    """It serves no new reader."""
    return EvictReplica(replica=resident.replica, epoch=life.epoch, reason=reason)


def drop(resident: Resident, life: Life) -> DropReplica:
    """Its bytes are dropped."""
    return DropReplica(replica=resident.replica, epoch=life.epoch)


def lose(replica: ReplicaId, detail: str, life: Life) -> LoseReplica:
    """Its bytes are not there, whatever the log says."""
    return LoseReplica(replica=replica, epoch=life.epoch, detail=detail)


def in_store(artifact: ArtifactId, life: Life) -> ReplicaId:
    """The node's replica of an artifact in the store that all nodes share."""
    return replica_id(artifact, life.node, Tier.OBJECT)


def on_disk(artifact: ArtifactId, life: Life) -> ReplicaId:
    """The node's disk replica of an artifact."""
    return replica_id(artifact, life.node, Tier.DISK)
