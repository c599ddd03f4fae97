"""Digests of what an application has written into a segment: each chunk's XXH3-64, for transfers,
and its BLAKE3, for the identity of the content.

Those that count are computed when nobody can write to the segment any more. BLAKE3 takes longest,
so most of it is done before, chunk after chunk behind the writer; in the end a chunk whose XXH3-64
is still the same has not changed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import blake3
import xxhash

from tensorcast.movers.memory.memfd import Segment
from tensorcast.schema.chunks import ByteRange, choose_chunk_bytes, chunk_range, count_chunks

THREADS_MAX: Final = 4
WATCHED_BYTES_MIN: Final = 32 << 20
AHEAD_BYTES: Final = 16 << 20
"""Pages may be there before they are written: as much of them as four writers fill at once."""
LOOK_AGAIN_S: Final = 0.002
LOOK_AGAIN_S_MAX: Final = 0.02


class Digest(NamedTuple):
    """Of one chunk: 8 and 32 bytes."""

    check: bytes
    content: bytes


class Digester:
    """The digests of the first `size_bytes` of a segment. `stop` it before the segment is released;
    every method may be called from any thread."""

    def __init__(self, segment: Segment, size_bytes: int) -> None:
        self._segment = segment
        self.size_bytes = size_bytes
        self._chunk_bytes = choose_chunk_bytes(size_bytes)
        self._early: dict[int, Digest] = {}
        self._stopping = threading.Event()
        self._watching: threading.Thread | None = None

    def watch(self) -> None:
        """Begins to digest what is written, while it is written, in a thread. For new memory: in
        used memory nobody can see how far a writer has come."""
        if self.size_bytes >= WATCHED_BYTES_MIN:
            self._watching = threading.Thread(target=self._follow, name="digest", daemon=True)
            self._watching.start()

    def stop(self) -> None:
        """Ends the watching; waits for the chunk that is being digested (a millisecond for most).
        Safe to repeat."""
        self._stopping.set()
        if self._watching is not None:
            self._watching.join()

    def finish(self) -> list[Digest]:
        """The digests of all chunks, as the bytes are now. Blocks: 0.3 CPU seconds per GiB that
        nobody had watched. When it returns nobody may have been able to write since it began."""
        self.stop()
        threads = min(THREADS_MAX, len(os.sched_getaffinity(0)))
        numbers = range(count_chunks(self.size_bytes, self._chunk_bytes))
        with ThreadPoolExecutor(threads, thread_name_prefix="digest") as pool:
            shares = pool.map(self._digest_all, (numbers[n::threads] for n in range(threads)))
            found = {number: digest for share in shares for number, digest in share}
        return [found[number] for number in numbers]

    def _digest_all(self, numbers: Sequence[int]) -> list[tuple[int, Digest]]:
        return [(number, self._digest(number)) for number in numbers]

    def _follow(self) -> None:
        """Digests chunks in order, when they are written for sure; the last ones are not."""
        wait_s = LOOK_AGAIN_S
        written_bytes = 0
        for number in range(count_chunks(self.size_bytes, self._chunk_bytes)):
            end = self._place(number).end
            while written_bytes < end + AHEAD_BYTES:
                if self._stopping.wait(wait_s):
                    return
                found = self._segment.written_bytes(written_bytes)
                wait_s = (
                    LOOK_AGAIN_S if found > written_bytes else min(2 * wait_s, LOOK_AGAIN_S_MAX)
                )
                written_bytes = found
            if self._stopping.is_set():
                return
            self._early[number] = self._compute(number)

    def _digest(self, number: int) -> Digest:
        early = self._early.get(number)
        if early is not None:
            place = self._place(number)
            with self._segment.memory[place.offset : place.end] as chunk:
                if xxhash.xxh3_64_digest(chunk) == early.check:
                    return early
        return self._compute(number)

    def _compute(self, number: int) -> Digest:
        place = self._place(number)
        with self._segment.memory[place.offset : place.end] as chunk:
            return Digest(xxhash.xxh3_64_digest(chunk), blake3.blake3(chunk).digest())

    def _place(self, number: int) -> ByteRange:
        return chunk_range(number, self.size_bytes, self._chunk_bytes)
