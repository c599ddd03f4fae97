"""What is wrong with a replica: found, put into words, and made a report."""

from __future__ import annotations

from typing import Final

from tensorcast.movers.replicas import lose, on_disk
from tensorcast.movers.reports import Life
from tensorcast.movers.threads import in_thread
from tensorcast.movers.tiers.base import Tier as Store
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.commands import CorruptReplica, LoseReplica
from tensorcast.schema.errors import NotFound, TensorCastError
from tensorcast.schema.ids import ArtifactId, NodeId
from tensorcast.schema.tensors import Manifest

NAMED_MAX: Final = 8


async def check_disk(
    disk: Store, artifact: ArtifactId, manifest: Manifest, life: Life
) -> CorruptReplica | LoseReplica | None:
    """Compares the disk replica with its digests; the report of what is wrong with it, None when
    it is sound."""
    try:
        damaged = await in_thread(disk.verify, artifact, manifest)
    except TensorCastError as error:
        return explain_disk(error, artifact, manifest, life)
    return report_damage(damaged, artifact, manifest, life) if damaged.ranges else None


def explain_disk(
    error: TensorCastError, artifact: ArtifactId, manifest: Manifest, life: Life
) -> CorruptReplica | LoseReplica:
    """The report of a disk replica that could not be read at all."""
    everything = ChunkSet.full(manifest.chunks_total)
    if isinstance(error, NotFound) or not everything.ranges:
        detail = f"The file of the disk replica on node {life.node} is gone: {error}"
        return lose(on_disk(artifact, life), detail, life)
    detail = f"The disk replica on node {life.node} cannot be read: {error}"
    return CorruptReplica(
        replica=on_disk(artifact, life), epoch=life.epoch, chunks=everything, detail=detail
    )


def report_damage(
    damaged: ChunkSet, artifact: ArtifactId, manifest: Manifest, life: Life
) -> CorruptReplica:
    """The report of a disk replica with damaged chunks."""
    return CorruptReplica(
        replica=on_disk(artifact, life),
        epoch=life.epoch,
        chunks=damaged,
        detail=explain_damage(damaged, manifest, "the disk", life.node),
    )


def explain_damage(damaged: ChunkSet, manifest: Manifest, where: str, node: NodeId) -> str:
    """One sentence that names the damaged chunks, or the first of them."""
    verb = "does not match its digest" if len(damaged) == 1 else "do not match their digests"
    return (
        f"{len(damaged)} of {manifest.chunks_total} chunks in {where} of node {node} {verb}: "
        f"{name_chunks(damaged)}."
    )


def name_chunks(chunks: ChunkSet) -> str:
    """The numbers of the first runs: `3, 5-9 and more`."""
    runs = [f"{a}" if b == a + 1 else f"{a}-{b - 1}" for a, b in chunks.ranges[:NAMED_MAX]]
    word = "chunk" if len(chunks) == 1 else "chunks"
    more = " and more" if len(chunks.ranges) > NAMED_MAX else ""
    return f"{word} {', '.join(runs)}{more}"
