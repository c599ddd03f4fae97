"""Events that are legal and made before anything is timed: publications of small artifacts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime

from tensorcast.log.identity import new_event_id
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.commands import CompleteReplica, SealArtifact
from tensorcast.schema.envelope import Draft
from tensorcast.schema.events import (
    ArtifactSealed,
    Event,
    KeyMoved,
    ReplicaFilled,
    ReplicaReady,
    ReplicaStarted,
)
from tensorcast.schema.ids import ArtifactId, Epoch, Key, NodeId, Seq, Tier, replica_id
from tensorcast.schema.tensors import CHUNK_DIGEST_BYTES, Manifest, TensorSpec

MIB = 1 << 20
CHUNKS = 4
NODE, OTHER = NodeId("n1"), NodeId("n2")
ACTOR = "mover:n1"
EPOCH = Epoch(1)
EVENTS_A_STORY = 6


def artifact_of(name: str) -> ArtifactId:
    """An id that is always the same for a name."""
    return ArtifactId(hashlib.blake2s(name.encode(), digest_size=20).hexdigest())


def manifest_of() -> Manifest:
    """One tensor in four chunks."""
    return Manifest(
        index=(TensorSpec(name="w", dtype="F32", shape=(CHUNKS * MIB // 4,), offset=0),),
        size_bytes=CHUNKS * MIB,
        chunk_bytes=MIB,
        digests=bytes(range(CHUNK_DIGEST_BYTES)) * CHUNKS,
    )


def story(name: str) -> Iterator[tuple[Event, bool]]:
    """A put of one artifact with its key, and a copy of it to another node; with each event whether
    it is the first of its aggregate."""
    artifact = artifact_of(name)
    here = replica_id(artifact, NODE, Tier.DRAM)
    there = replica_id(artifact, OTHER, Tier.DRAM)
    place = {"artifact": artifact, "tier": Tier.DRAM, "epoch": EPOCH, "chunks_total": CHUNKS}
    yield ArtifactSealed(artifact=artifact, kind="weights", manifest=manifest_of()), True
    yield ReplicaReady(replica=here, node=NODE, **place), True
    yield KeyMoved(key=Key(f"key-{name}"), artifact=artifact, previous=None, version=1), True
    yield ReplicaStarted(replica=there, node=OTHER, **place), True
    chunks = ChunkSet.of(range(CHUNKS))
    yield ReplicaFilled(replica=there, epoch=EPOCH, chunks=chunks), False
    yield ReplicaReady(replica=there, node=OTHER, **place), False


def drafts_of(prefix: str, count: int) -> list[Draft]:
    """`count` events of stories, in an order that may stand in the log. What begins an aggregate
    expects it to be new."""
    drafts: list[Draft] = []
    number = 0
    while len(drafts) < count:
        for event, is_first in story(f"{prefix}-{number}"):
            expected = Seq(0) if is_first else None
            drafts.append(
                Draft(
                    id=new_event_id(),
                    at=datetime.now(UTC),
                    actor=ACTOR,
                    event=event,
                    expected=expected,
                )
            )
        number += 1
    return drafts[:count]


def registration(name: str) -> tuple[SealArtifact, CompleteReplica]:
    """What a mover has to say of a new artifact that it holds."""
    artifact = artifact_of(name)
    return (
        SealArtifact(artifact=artifact, kind="weights", manifest=manifest_of()),
        CompleteReplica(
            replica=replica_id(artifact, NODE, Tier.DRAM),
            artifact=artifact,
            node=NODE,
            tier=Tier.DRAM,
            epoch=EPOCH,
            chunks_total=CHUNKS,
        ),
    )
