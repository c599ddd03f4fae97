"""Bytes into a segment: what tensors and files hold, chunk by chunk. Knows neither torch nor files:
an `Intake` says what goes where. The mover digests what was written; `digest` tells beforehand, of
contents that may need no segment.

Memory of a segment that was never touched costs more than the copy into it, except in huge pages:
where they can be had, bytes are copied through a mapping (docs/data-plane.md). In other pages
writing through the descriptor costs least (through a mapping it is nearly twice as much, because
each page is cleared first and then mapped), but the kernel lets only one thread write to a file at
a time. So one thread writes, and what further threads there are copy through a mapping meanwhile.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

import blake3
import xxhash

from tensorcast.schema.chunks import ByteRange, choose_chunk_bytes, count_chunks
from tensorcast.schema.errors import OutOfCapacity
from tensorcast.schema.ids import ArtifactId
from tensorcast.schema.tensors import Index, Manifest, derive_artifact_id
from tensorcast.storage.crew import count_cores, spread
from tensorcast.storage.hugepages import AlignedMapping, HugePages
from tensorcast.storage.memory import HUGE_BYTES, address_of, populate

THREADS_MAX = 4
UNIT_BYTES = 4 << 20
LARGE_BYTES = 64 << 20
VECTORS_MAX = 512
"""Buffers of one system call; the kernel takes 1024."""
_ZEROS = memoryview(bytes(1 << 20))
_FULL = (errno.ENOMEM, errno.ENOSPC, errno.EFBIG)
Progress = Callable[[int, int], None]
"""Called from threads, one at a time, with the bytes that are done and all bytes."""


class Piece(NamedTuple):
    """Bytes of the artifact that are read in order: `read(target, start)` fills `target` with
    those from `start` on, counted from the beginning of `place`. None: they are there already.
    `memory` are the bytes themselves, when they lie in ordinary memory."""

    place: ByteRange
    read: Callable[[memoryview, int], None] | None
    memory: memoryview | None = None


class Block(NamedTuple):
    """Bytes of the artifact that do not come in order: `write(target)` writes them into `place`.
    `has_gaps`: not all of them, so the others must be zero before."""

    place: ByteRange
    write: Callable[[memoryview], None]
    has_gaps: bool


@dataclass(frozen=True)
class Intake:
    """What a put will write: first the blocks, then the pieces, which are sorted and disjoint.
    `pieces` cover the blocks too (with `read` None); what lies between them is zero. `confirm`
    raises if what was read cannot be relied on; it is called after the last byte. `reads_wanted`:
    so many should be under way at once, because they wait for a disk or a store. `group_bytes`:
    what lies between two multiples of it is read by one thread, in order (0: by any). `labels` are
    those that the files give by themselves."""

    index: Index
    size_bytes: int
    pieces: tuple[Piece, ...]
    blocks: tuple[Block, ...] = ()
    confirm: Callable[[], None] = lambda: None
    reads_wanted: int = 0
    group_bytes: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_in_memory(self) -> bool:
        """Whether nothing has to be read or converted on the way."""
        return not self.blocks and all(piece.memory is not None for piece in self.pieces)


class Sealed(NamedTuple):
    """The identity of content, and its manifest."""

    artifact: ArtifactId
    manifest: Manifest


def write(
    descriptor: int,
    intake: Intake,
    *,
    is_zero: bool,
    stop: threading.Event,
    progress: Progress | None = None,
) -> None:
    """Writes all bytes of `intake` into the segment behind `descriptor`; `is_zero`: it holds only
    zeros. No thread and no mapping is left when it returns or raises.

    Raises Cancelled once `stop` is set, OutOfCapacity when the machine's memory is full, and what
    the pieces raise.
    """
    if not intake.size_bytes:
        return
    cores = count_cores()
    # The other half of the cores is for the mover, which digests what is written.
    threads = _choose_threads(intake, cores // 2 if intake.is_in_memory else cores)
    # Up to the end of the last huge page, as far as the segment goes.
    whole = -(-intake.size_bytes // HUGE_BYTES) * HUGE_BYTES
    mapped = AlignedMapping(descriptor, min(whole, os.fstat(descriptor).st_size))
    with mapped as memory, HugePages(descriptor, memory) as pages:
        work = _Writing(descriptor, memory, pages, intake, is_zero, progress)
        spread(work.write_block, intake.blocks, threads, stop)
        spread(work.write_group, _group(intake, _ranges(intake)), threads, stop)
    intake.confirm()


def digest(intake: Intake, *, stop: threading.Event, progress: Progress | None = None) -> Sealed:
    """The identity and the manifest that these bytes will have. Takes a chunk of memory for each
    thread, and the blocks that these chunks lie in. Raises as `write`."""
    held = {block.place: _HeldBlock(block) for block in intake.blocks}
    pieces = tuple(
        piece if piece.read is not None else Piece(piece.place, held[piece.place].read)
        for piece in intake.pieces
    )
    work = _Digesting(replace(intake, pieces=pieces, blocks=()), progress)
    threads = _choose_threads(intake, count_cores())
    groups = spread(
        work.digest_group, _group(intake, _ranges(intake, is_chunks=True)), threads, stop
    )
    intake.confirm()
    found = sorted(chunk for group in groups for chunk in group)
    manifest = Manifest(
        index=intake.index,
        size_bytes=intake.size_bytes,
        chunk_bytes=choose_chunk_bytes(intake.size_bytes),
        digests=b"".join(digest for _, digest, _ in found),
    )
    content = (digest for _, _, digest in found)
    return Sealed(derive_artifact_id(intake.index, intake.size_bytes, content), manifest)


def _choose_threads(intake: Intake, wanted: int) -> int:
    chunks = count_chunks(intake.size_bytes, choose_chunk_bytes(intake.size_bytes))
    return max(1, min(max(min(THREADS_MAX, wanted), intake.reads_wanted), chunks))


def _group(intake: Intake, places: Iterable[ByteRange]) -> Iterator[list[ByteRange]]:
    """What one thread does in order."""
    unit = intake.group_bytes
    numbered = enumerate(places)
    for _, group in groupby(numbered, lambda one: one[1].offset // unit if unit else one[0]):
        yield [place for _, place in group]


def _ranges(intake: Intake, *, is_chunks: bool = False) -> Iterator[ByteRange]:
    """In which parts an intake is written: large ones need fewer calls, but what is read first
    should still be in the cache when it is written. Or (`is_chunks`) its chunks."""
    unit = choose_chunk_bytes(intake.size_bytes)
    if not is_chunks and intake.is_in_memory and intake.size_bytes > LARGE_BYTES:
        unit = max(unit, UNIT_BYTES)
    for start in range(0, intake.size_bytes, unit):
        yield ByteRange(start, min(unit, intake.size_bytes - start))


class _HeldBlock:
    """A block for those who read its bytes in pieces: made by the first one, kept until all of
    them were read."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._bytes: bytearray | None = None
        self._left_bytes = block.place.size
        self._lock = threading.Lock()

    def read(self, target: memoryview, start: int) -> None:
        with self._lock:
            if self._bytes is None:
                self._bytes = bytearray(self._block.place.size)
                self._block.write(memoryview(self._bytes))
            found = self._bytes
        target[:] = memoryview(found)[start : start + len(target)]
        with self._lock:
            self._left_bytes -= len(target)
            if not self._left_bytes:
                self._bytes = None


class _Share(NamedTuple):
    """The part of a range that a piece gives, or (None) zeros: `start` and `end` count from the
    beginning of the range, `skip` from that of the piece."""

    piece: Piece | None
    start: int
    end: int
    skip: int


class _Shares:
    """The pieces of an intake by ranges, and how far the work is. Shared by threads."""

    def __init__(self, intake: Intake, progress: Progress | None) -> None:
        self._pieces = intake.pieces
        self._starts = [piece.place.offset for piece in intake.pieces]
        self._size_bytes = intake.size_bytes
        self._progress = progress
        self._done_bytes = 0
        self._lock = threading.Lock()

    def of(self, place: ByteRange) -> Iterator[_Share]:
        """What a range consists of, in order and without gaps."""
        filled = 0
        at = max(0, bisect_right(self._starts, place.offset) - 1)
        for piece in self._pieces[at:]:
            if piece.place.offset >= place.end:
                break
            start = max(piece.place.offset, place.offset) - place.offset
            end = min(piece.place.end, place.end) - place.offset
            if start >= end:
                continue
            if filled < start:
                yield _Share(None, filled, start, 0)
            yield _Share(piece, start, end, place.offset + start - piece.place.offset)
            filled = end
        if filled < place.size:
            yield _Share(None, filled, place.size, 0)

    def report(self, size_bytes: int) -> None:
        if self._progress is not None:
            with self._lock:
                self._done_bytes += size_bytes
                self._progress(self._done_bytes, self._size_bytes)


class _Digesting:
    """The state that the threads of one `digest` share."""

    def __init__(self, intake: Intake, progress: Progress | None) -> None:
        self._shares = _Shares(intake, progress)
        self._scratch = _Scratch(choose_chunk_bytes(intake.size_bytes))

    def digest_group(self, places: Sequence[ByteRange]) -> list[tuple[int, bytes, bytes]]:
        """The offsets of chunks, and their XXH3-64 and BLAKE3 digests."""
        return [self._digest_chunk(place) for place in places]

    def _digest_chunk(self, place: ByteRange) -> tuple[int, bytes, bytes]:
        with self._scratch.take(place.size) as target:
            for share in self._shares.of(place):
                with target[share.start : share.end] as part:
                    _read(share, part)
            digests = xxhash.xxh3_64_digest(target), blake3.blake3(target).digest()
        self._shares.report(place.size)
        return place.offset, *digests


class _Scratch(threading.local):
    """Memory for one chunk in each thread."""

    def __init__(self, size_bytes: int) -> None:
        self._memory = bytearray(size_bytes)

    def take(self, size_bytes: int) -> memoryview:
        return memoryview(self._memory)[:size_bytes]


class _Writing:
    """The state that the threads of one `write` share."""

    def __init__(
        self,
        descriptor: int,
        memory: memoryview,
        pages: HugePages,
        intake: Intake,
        is_zero: bool,
        progress: Progress | None,
    ) -> None:
        self._descriptor = descriptor
        self._memory = memory
        self._pages = pages
        self._is_zero = is_zero
        self._shares = _Shares(intake, progress)
        needed = 0 if intake.is_in_memory else choose_chunk_bytes(intake.size_bytes)
        self._scratch = _Scratch(needed)
        self._may_write = threading.Lock()

    def write_block(self, block: Block) -> None:
        self._pages.make(block.place.offset, block.place.end)
        with self._memory[block.place.offset : block.place.end] as target:
            populate(target)
            if block.has_gaps and not self._is_zero:
                _clear(target)
            block.write(target)

    def write_group(self, places: Sequence[ByteRange]) -> None:
        for place in places:
            self._write_range(place)

    def _write_range(self, place: ByteRange) -> None:
        if self._pages.make(place.offset, place.end):
            self._write_through_mapping(place)
        elif self._may_write.acquire(blocking=False):
            try:
                self._write_through_descriptor(place)
            finally:
                self._may_write.release()
        else:
            self._write_through_mapping(place)
        self._shares.report(place.size)

    def _write_through_mapping(self, place: ByteRange) -> None:
        with self._memory[place.offset : place.end] as target:
            populate(target)
            for share in self._shares.of(place):
                if share.piece is None and self._is_zero:
                    continue
                with target[share.start : share.end] as part:
                    _read(share, part)

    def _write_through_descriptor(self, place: ByteRange) -> None:
        """Zeros between tensors are written too: they are few, and the next tensor follows."""
        start, buffers = 0, list[memoryview]()
        for share in self._shares.of(place):
            is_there = share.piece is not None and share.piece.read is None
            if is_there or len(buffers) == VECTORS_MAX:
                self._write_all(buffers, place.offset + start)
                start, buffers = share.end if is_there else share.start, []
            if not is_there:
                buffers.extend(self._buffers(share))
        self._write_all(buffers, place.offset + start)

    def _buffers(self, share: _Share) -> Iterator[memoryview]:
        size = share.end - share.start
        if share.piece is None:
            for start in range(0, size, len(_ZEROS)):
                yield _ZEROS[: min(len(_ZEROS), size - start)]
        elif share.piece.memory is not None:
            yield share.piece.memory[share.skip : share.skip + size]
        else:
            part = self._scratch.take(share.end)[share.start :]
            _read(share, part)
            yield part

    def _write_all(self, buffers: list[memoryview], offset: int) -> None:
        while buffers:
            try:
                count = os.pwritev(self._descriptor, buffers, offset)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                raise OutOfCapacity(
                    f"The machine has no memory left for the put: {error.strerror}.",
                    hint="Evict artifacts, or see `ulimit -f`.",
                ) from error
            offset += count
            buffers = _after(buffers, count)


def _after(buffers: list[memoryview], count: int) -> list[memoryview]:
    """What is left of the buffers when their first `count` bytes are written."""
    for number, buffer in enumerate(buffers):
        if count < len(buffer):
            return [buffer[count:], *buffers[number + 1 :]]
        count -= len(buffer)
    return []


def _read(share: _Share, target: memoryview) -> None:
    """The bytes of a share into memory."""
    if share.piece is None:
        _clear(target)
    elif share.piece.read is not None:
        share.piece.read(target, share.skip)


def _clear(target: memoryview) -> None:
    if target.nbytes:
        ctypes.memset(address_of(target), 0, target.nbytes)
