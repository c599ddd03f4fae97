"""Bytes into a segment: copied chunk by chunk in a few threads, each chunk digested while it is
still in the cache. Or digested only, without a segment. Knows neither torch nor files: an `Intake`
says what goes where.
"""

from __future__ import annotations

import ctypes
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple, TypeVar

import blake3
import xxhash

from tensorcast.schema.chunks import ByteRange, choose_chunk_bytes, chunk_range, count_chunks
from tensorcast.schema.errors import Cancelled
from tensorcast.schema.ids import ArtifactId
from tensorcast.schema.tensors import Index, Manifest, derive_artifact_id

T = TypeVar("T")
R = TypeVar("R")

THREADS_MAX = 4
MADV_POPULATE_WRITE = 23
_ZEROS = memoryview(bytes(1 << 20))
Progress = Callable[[int, int], None]
"""Called from threads, one at a time, with the bytes that are done and all bytes."""


class Piece(NamedTuple):
    """Bytes of the artifact that are read in order: `read(target, start)` fills `target` with
    those from `start` on, counted from the beginning of `place`. None: they are there already."""

    place: ByteRange
    read: Callable[[memoryview, int], None] | None


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
    raises if what was read cannot be relied on; it is called after the last byte."""

    index: Index
    size_bytes: int
    pieces: tuple[Piece, ...]
    blocks: tuple[Block, ...] = ()
    confirm: Callable[[], None] = lambda: None


class Sealed(NamedTuple):
    """The identity of what was written, and its manifest."""

    artifact: ArtifactId
    manifest: Manifest


def fill(
    memory: memoryview,
    intake: Intake,
    *,
    is_zero: bool,
    stop: threading.Event,
    progress: Progress | None = None,
) -> Sealed:
    """Writes all bytes of `intake` into `memory` and digests them. No thread is left when it
    returns or raises.

    Raises Cancelled once `stop` is set, and what the pieces raise.
    """

    def place_in_memory(place: ByteRange) -> memoryview:
        target = memory[place.offset : place.end]
        _populate(target)
        return target

    work = _Filling(place_in_memory, intake, is_zero, progress)
    return _carry_out(work, intake, stop)


def digest(intake: Intake, *, stop: threading.Event, progress: Progress | None = None) -> Sealed:
    """What `fill` would return, without a place for the bytes: it takes a chunk of memory for each
    thread, and the blocks that these chunks lie in. Raises as `fill`."""
    scratch = threading.local()

    def place_in_scratch(place: ByteRange) -> memoryview:
        if not hasattr(scratch, "chunk"):
            scratch.chunk = bytearray(choose_chunk_bytes(intake.size_bytes))
        return memoryview(scratch.chunk)[: place.size]

    held = {block.place: _HeldBlock(block) for block in intake.blocks}
    pieces = tuple(
        piece if piece.read is not None else Piece(piece.place, held[piece.place].read)
        for piece in intake.pieces
    )
    bare = replace(intake, pieces=pieces, blocks=())
    return _carry_out(_Filling(place_in_scratch, bare, False, progress), bare, stop)


def _carry_out(work: _Filling, intake: Intake, stop: threading.Event) -> Sealed:
    chunk_bytes = choose_chunk_bytes(intake.size_bytes)
    count = count_chunks(intake.size_bytes, chunk_bytes)
    threads = max(1, min(THREADS_MAX, len(os.sched_getaffinity(0)), count))
    ranges = ((n, chunk_range(n, intake.size_bytes, chunk_bytes)) for n in range(count))
    with ThreadPoolExecutor(threads, thread_name_prefix="tensorcast fill") as pool:
        _spread(pool, threads, stop, work.write_block, iter(intake.blocks))
        found = _spread(pool, threads, stop, work.write_chunk, ranges)
    intake.confirm()
    found.sort()
    manifest = Manifest(
        index=intake.index,
        size_bytes=intake.size_bytes,
        chunk_bytes=chunk_bytes,
        digests=b"".join(digest for _, digest, _ in found),
    )
    content = (digest for _, _, digest in found)
    return Sealed(derive_artifact_id(intake.index, intake.size_bytes, content), manifest)


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


class _End:
    """What stands after the last item."""


_END = _End()


class _Filling:
    """The state that the threads of one `fill` or `digest` share. `target` gives the memory for a
    range of the artifact; `is_zero`: it holds only zeros."""

    def __init__(
        self,
        target: Callable[[ByteRange], memoryview],
        intake: Intake,
        is_zero: bool,
        progress: Progress | None,
    ) -> None:
        self._target = target
        self._pieces = intake.pieces
        self._starts = [piece.place.offset for piece in intake.pieces]
        self._size_bytes = intake.size_bytes
        self._is_zero = is_zero
        self._progress = progress
        self._done_bytes = 0
        self._lock = threading.Lock()

    def write_block(self, block: Block) -> None:
        with self._target(block.place) as target:
            if block.has_gaps and not self._is_zero:
                _clear(target)
            block.write(target)

    def write_chunk(self, chunk: tuple[int, ByteRange]) -> tuple[int, bytes, bytes]:
        """Writes one chunk; its number and its XXH3-64 and BLAKE3 digests."""
        number, place = chunk
        with self._target(place) as target:
            filled = 0
            for piece in self._pieces_in(place):
                start = max(piece.place.offset, place.offset) - place.offset
                end = min(piece.place.end, place.end) - place.offset
                self._clear_gap(target, filled, start)
                if piece.read is not None:
                    with target[start:end] as part:
                        piece.read(part, place.offset + start - piece.place.offset)
                filled = end
            self._clear_gap(target, filled, place.size)
            digests = xxhash.xxh3_64_digest(target), blake3.blake3(target).digest()
        self._report(place.size)
        return number, *digests

    def _pieces_in(self, place: ByteRange) -> Iterator[Piece]:
        at = max(0, bisect_right(self._starts, place.offset) - 1)
        while at < len(self._pieces) and self._starts[at] < place.end:
            if self._pieces[at].place.end > place.offset:
                yield self._pieces[at]
            at += 1

    def _clear_gap(self, target: memoryview, start: int, end: int) -> None:
        if start < end and not self._is_zero:
            with target[start:end] as gap:
                _clear(gap)

    def _report(self, size_bytes: int) -> None:
        if self._progress is not None:
            with self._lock:
                self._done_bytes += size_bytes
                self._progress(self._done_bytes, self._size_bytes)


def _populate(target: memoryview) -> None:
    """Has the kernel map the pages of a chunk at once, which takes a third of the time of one
    fault for each. Before Linux 5.14, or for memory that is not mapped so, it does nothing."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(target))
    _system().madvise(ctypes.c_void_p(address), ctypes.c_size_t(len(target)), MADV_POPULATE_WRITE)


@cache
def _system() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _clear(target: memoryview) -> None:
    for start in range(0, len(target), len(_ZEROS)):
        size = min(len(_ZEROS), len(target) - start)
        target[start : start + size] = _ZEROS[:size]


def _spread(
    pool: ThreadPoolExecutor,
    threads: int,
    stop: threading.Event,
    do: Callable[[T], R],
    items: Iterator[T],
) -> list[R]:
    """`do` for every item, in any order, in all threads of the pool. After the first error no new
    item is begun, and that error is raised once all threads have ended."""
    lock = threading.Lock()
    failed = threading.Event()

    def work() -> list[R]:
        found: list[R] = []
        while not failed.is_set():
            with lock:
                item = next(items, _END)
            if isinstance(item, _End):
                break
            if stop.is_set():
                raise Cancelled("The put was cancelled.")
            try:
                found.append(do(item))
            except BaseException:
                failed.set()
                raise
        return found

    futures = [pool.submit(work) for _ in range(threads)]
    wait(futures)
    return [result for future in futures for result in future.result()]
