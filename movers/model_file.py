"""The safetensors file of an artifact, wherever it is stored: read into memory chunk by chunk, each
checked against its digest, and written from memory block by block.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from tensorcast.movers.core.digests import chunk_digest
from tensorcast.movers.core.file_plan import FilePlan, contiguous_bytes
from tensorcast.movers.core.layout import Layout
from tensorcast.movers.pages import prefault
from tensorcast.schema.chunks import ByteRange, ChunkSet, chunk_range
from tensorcast.schema.ids import ArtifactId
from tensorcast.schema.tensors import Manifest
from tensorcast.storage.crew import spread
from tensorcast.storage.memory import allocate
from tensorcast.storage.reader import Part, Source
from tensorcast.storage.spans import Span, cut_blocks

MODEL: Final = "model.safetensors"
MANIFEST: Final = "manifest.json"
MANIFEST_BYTES_MAX: Final = 64 << 20
_COPY_BYTES: Final = 1 << 20

Arrived = Callable[[ChunkSet], None]
"""Told of chunks that are in their place and match their digests; called from several threads."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What `manifest.json` holds, beside the file: it is written last, and tells what is there."""

    artifact: ArtifactId
    manifest: Manifest


# ---- in ----------------------------------------------------------------------------------------


def read_chunks(
    source: Source,
    layout: Layout,
    manifest: Manifest,
    memory: memoryview,
    *,
    chunks: ChunkSet,
    run_bytes: int,
    threads: int,
    arrived: Arrived | None = None,
) -> ChunkSet:
    """Reads chunks into their places in `memory`, neighbours together in reads of up to
    `run_bytes`; returns those that match. What cannot be read is as good as damaged. Raises what
    the source raises other than OSError."""

    def read_run(run: ByteRange) -> ChunkSet:
        where = _bytes_of(run, manifest)
        target = memory[where.offset : where.end]
        prefault(target)
        if not _is_read(source, layout, where, target):
            return ChunkSet()
        good = _matching(target, run, manifest)
        if arrived is not None and good.ranges:
            arrived(good)
        return good

    found = spread(read_run, _runs(chunks, manifest, run_bytes), threads)
    return ChunkSet.merge(r for good in found for r in good.ranges)


def find_damage(
    source: Source, layout: Layout, manifest: Manifest, *, run_bytes: int, threads: int
) -> ChunkSet:
    """The chunks that do not match their digests, or cannot be read. Raises as `read_chunks`."""
    scratch = threading.local()
    run_bytes = max(run_bytes, manifest.chunk_bytes)

    def read_run(run: ByteRange) -> ChunkSet:
        where = _bytes_of(run, manifest)
        if not hasattr(scratch, "memory"):
            scratch.memory = allocate(run_bytes)
        target = scratch.memory[: where.size]
        everything = ChunkSet(((run.offset, run.end),))
        if not _is_read(source, layout, where, target):
            return everything
        return everything - _matching(target, run, manifest)

    chunks = ChunkSet.full(manifest.chunks_total)
    found = spread(read_run, _runs(chunks, manifest, run_bytes), threads)
    return ChunkSet.merge(r for bad in found for r in bad.ranges)


def _runs(chunks: ChunkSet, manifest: Manifest, run_bytes: int) -> Iterator[ByteRange]:
    """Neighbouring chunks, up to `run_bytes` together: (first chunk, how many)."""
    step = max(1, run_bytes // manifest.chunk_bytes)
    for start, stop in chunks.ranges:
        for first in range(start, stop, step):
            yield ByteRange(first, min(step, stop - first))


def _bytes_of(run: ByteRange, manifest: Manifest) -> ByteRange:
    first = chunk_range(run.offset, manifest.size_bytes, manifest.chunk_bytes)
    last = chunk_range(run.end - 1, manifest.size_bytes, manifest.chunk_bytes)
    return ByteRange(first.offset, last.end - first.offset)


def _matching(target: memoryview, run: ByteRange, manifest: Manifest) -> ChunkSet:
    """Those chunks of a run, whose bytes `target` is, that match."""
    size = manifest.chunk_bytes
    return ChunkSet.of(
        run.offset + n
        for n in range(run.size)
        if chunk_digest(target[n * size : (n + 1) * size]) == manifest.digest(run.offset + n)
    )


def _is_read(source: Source, layout: Layout, wanted: ByteRange, target: memoryview) -> bool:
    """Reads a range of the byte space into `target` of the same size; gaps become zero. What lies
    in one range of the byte space lies in one range of the file, without the gaps."""
    parts: list[Part] = []
    start: int | None = None
    at = stored_bytes = 0
    for piece in layout.locate(wanted):
        part = target[at : at + piece.size]
        at += piece.size
        if piece.position is None:
            part[:] = bytes(piece.size)
            continue
        start = piece.position if start is None else start
        stored_bytes += piece.size
        parts.append(part)
    try:
        return source.read(parts, start or 0) == stored_bytes
    except OSError:
        return False


# ---- out ---------------------------------------------------------------------------------------


def blocks_of(layout: Layout) -> Iterator[tuple[int, tuple[ByteRange, ...]]]:
    """The stored parts of a byte space as blocks of the file: the position of each, and the ranges
    of the byte space that follow each other in it."""
    spans = (Span(position, size, offset) for offset, size, position in layout.parts)
    for block in cut_blocks(spans, gap_bytes_max=0):
        yield block[0].position, tuple(ByteRange(span.target, span.size) for span in block)


def copies_of(plan: FilePlan, memory: memoryview) -> Iterator[tuple[int, bytes]]:
    """The tensors that follow behind the byte space, in pieces with their positions."""
    for start, spec in plan.copies:
        position = start
        for piece in _gather(contiguous_bytes(spec, memory)):
            yield position, piece
            position += len(piece)


def stream_of(plan: FilePlan, memory: memoryview) -> Iterator[memoryview]:
    """The whole file from its first byte to its last."""
    yield memoryview(plan.head)
    for _, ranges in blocks_of(plan.layout):
        yield from (memory[place.offset : place.end] for place in ranges)
    for _, piece in copies_of(plan, memory):
        yield memoryview(piece)


def _gather(pieces: Iterable[memoryview | bytes]) -> Iterator[bytes]:
    """Many small pieces as few large ones."""
    gathered = bytearray()
    for piece in pieces:
        gathered += piece
        if len(gathered) >= _COPY_BYTES:
            yield bytes(gathered)
            gathered.clear()
    if gathered:
        yield bytes(gathered)
