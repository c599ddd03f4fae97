"""Transfers without a network: sources, pulls and their ends, for tests of the transfer machine."""

from __future__ import annotations

from tensorcast.movers.core.sources import Limits, Source
from tensorcast.movers.core.transfer import (
    Broken,
    Completed,
    Target,
    TransferStatus,
    advance,
    begin,
)
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.faults import Fault, FaultKind
from tensorcast.schema.tensors import Manifest, TensorSpec

MIB = 1 << 20
ARTIFACT = "a" * 40
TARGET = Target(artifact=ARTIFACT, node="n9", epoch=3, operation="op-1")
LIMITS = Limits(
    pulls_in_flight_max=2,
    run_bytes_min=MIB,
    run_bytes_max=2 * MIB,
    report_bytes_min=MIB,
    reports_max=5,
    report_s=0.0,
)


def manifest(chunks, short_by=100):
    size = max(0, chunks * MIB - short_by) if chunks else 0
    return Manifest(
        index=(TensorSpec(name="t", dtype="U8", shape=(size,), offset=0),),
        size_bytes=size,
        chunk_bytes=MIB,
        digests=b"".join(n.to_bytes(8, "big") for n in range(chunks)),
    )


def ready(node, chunks, **more):
    return Source(node=node, chunks=ChunkSet.full(chunks), **more)


def filling(node, chunks=ChunkSet(), **more):  # noqa: B008  (a frozen value)
    return Source(node=node, chunks=chunks, is_filling=True, **more)


def start(chunks, sources, *, target=TARGET, missing=None, limits=LIMITS):
    wanted = ChunkSet.full(chunks) if missing is None else missing
    return begin(target, manifest(chunks), wanted, sources, limits)


def broken(pull, kind, **more):
    return Broken(pull=pull, fault=Fault(kind=kind, detail=f"{pull.peer} {kind}."), **more)


def lost(pull):
    return broken(pull, FaultKind.UNAVAILABLE)


def finish(turn):
    """Completes everything that is in flight, first in, first out; returns all turns."""
    turns = [turn]
    while turn.status is TransferStatus.RUNNING:
        turn = advance(turn.transfer, Completed(pull=turn.transfer.in_flight[0]))
        turns.append(turn)
    return turns


def events_of(turns):
    return [event for turn in turns for event in turn.events]
