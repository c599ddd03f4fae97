"""Small valid values of the language for tests: artifacts, envelopes, a clock that only counts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import TYPE_NAMES, Event
from tensorcast.schema.ids import ArtifactId, Epoch, EventId, NodeId, Seq
from tensorcast.schema.socket import Stats
from tensorcast.schema.tensors import CHUNK_DIGEST_BYTES, Manifest, TensorSpec
from tensorcast.schema.upcast import current_version

MIB = 1 << 20
BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")


def artifact_id(name: str) -> ArtifactId:
    """An id of the right form that is always the same for a name."""
    return ArtifactId(hashlib.blake2s(name.encode(), digest_size=20).hexdigest())


def manifest(chunks: int = 4) -> Manifest:
    """One F32 tensor that fills `chunks` chunks of 1 MiB."""
    size = chunks * MIB
    index = (TensorSpec(name="w", dtype="F32", shape=(size // 4,), offset=0),) if chunks else ()
    return Manifest(
        index=index,
        size_bytes=size,
        chunk_bytes=MIB,
        digests=bytes(range(CHUNK_DIGEST_BYTES)) * chunks,
    )


def event_id(seq: int) -> EventId:
    """A fixed id for the event at a position."""
    return EventId(f"00000000-0000-7000-8000-{seq:012x}")


def record(
    event: Event, seq: int = 1, *, cause: EventId | None = None, actor: str = "user:ada@desk"
) -> Recorded:
    """An event at a position, one second after the event before it."""
    name = TYPE_NAMES[type(event)]
    return Recorded(
        seq=Seq(seq),
        id=event_id(seq),
        type=name,
        v=current_version(name),
        at=BEGIN + timedelta(seconds=seq),
        actor=actor,
        cause=cause,
        event=event,
    )


def record_all(events: Sequence[Event], first: int = 1) -> tuple[Recorded, ...]:
    """Events at consecutive positions."""
    return tuple(record(event, first + i) for i, event in enumerate(events))


SOCKET_STATS = Stats(
    node=N1,
    epoch=Epoch(1),
    capacity_bytes=1,
    used_bytes=0,
    segments=0,
    segments_free=0,
    replicas=0,
    puts_open=0,
    readers=0,
    journal_pending=0,
    log_seq=Seq(0),
    descriptors=1,
)
