"""What has come of one pull whose bytes the receiver fetches by itself, as over RDMA: which read is
next, which chunks match. Pure."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tensorcast.movers.core.transfer import Broken, Completed, Progressed, Pull
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.faults import Fault, FaultKind

Share = Callable[[ChunkSet], None]


class Read(msgspec.Struct, frozen=True):
    """One read: a part of a chunk, at `source` in the artifact's byte space, to `target` in our
    memory."""

    chunk: int
    source: int
    target: int
    size_bytes: int


class Reading:
    """A pull whose chunks are READ in order, `step_bytes` at most at a time. Chunks that match are
    told of once, as progress or with the pull's end. `holds`: what the peer told that it has, None:
    everything; `is_granted`: it has told. `way` is how the transport is called. Belongs to one
    thread at a time."""

    def __init__(
        self, pull: Pull, since: float, share: Share | None = None, *, way: str = "RDMA"
    ) -> None:
        self._way = way
        self.pull = pull
        self.since = since
        self.is_granted = False
        self.holds: ChunkSet | None = ChunkSet()
        self._share = share
        self._next = (pull.first, 0)
        self._open: dict[int, int] = {}  # bytes that are still to come, by chunk
        self._fresh: list[int] = []
        self._wrong: list[int] = []
        self._arrived = 0

    # ---- reading ---------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """Whether nothing can be asked for now although something is missing."""
        return self._next[0] < self.pull.stop and not self._has_next()

    @property
    def is_stuck(self) -> bool:
        """Whether it waits, and no READ is on its way."""
        return self.is_waiting and not self._open

    @property
    def is_done(self) -> bool:
        """Whether every chunk has come."""
        return self._arrived == self.pull.stop - self.pull.first

    @property
    def left_bytes(self) -> int:
        """What is still to be asked for."""
        chunk, skipped = self._next
        done = (chunk - self.pull.first) * self.pull.chunk_bytes + skipped
        return max(0, self.pull.source_range.size - done)

    def next_read(self, step_bytes: int) -> Read | None:
        """The next READ; None when the peer does not have the chunk, or nothing is left."""
        chunk, skipped = self._next
        if not self._has_next():
            return None
        size = self._chunk_size(chunk)
        length = min(step_bytes, size - skipped)
        self._open.setdefault(chunk, size)
        at = (chunk - self.pull.first) * self.pull.chunk_bytes + skipped
        done = skipped + length
        self._next = (chunk + 1, 0) if done == size else (chunk, done)
        return Read(
            chunk,
            self.pull.source_range.offset + at,
            self.pull.target_range.offset + at,
            length,
        )

    def _has_next(self) -> bool:
        chunk = self._next[0]
        has = self.is_granted and (self.holds is None or chunk in self.holds)
        return has and chunk < self.pull.stop

    def _chunk_size(self, chunk: int) -> int:
        skipped = (chunk - self.pull.first) * self.pull.chunk_bytes
        return min(self.pull.chunk_bytes, self.pull.source_range.size - skipped)

    def arrive(self, read: Read) -> tuple[int, int] | None:
        """A READ has ended well; where the chunk lies in our memory (start, stop) when it is
        whole."""
        self._open[read.chunk] -= read.size_bytes
        if self._open[read.chunk]:
            return None
        del self._open[read.chunk]
        start = self.pull.target_range.offset
        start += (read.chunk - self.pull.first) * self.pull.chunk_bytes
        return start, start + self._chunk_size(read.chunk)

    def settle(self, chunk: int, digest: bytes | None) -> None:
        """A whole chunk has this digest (None: nobody looked)."""
        matches = digest is None or digest == self.pull.digest(chunk)
        (self._fresh if matches else self._wrong).append(chunk)
        self._arrived += 1
        if matches and self._share is not None:
            self._share(ChunkSet.of([chunk]))

    def restart(self) -> None:
        """The rail has failed: what was on its way, and the part of a chunk that had come, will be
        asked for again on another one."""
        if self._open:
            self._next = (min(self._open), 0)
        else:
            self._next = (self._next[0], 0)
        self._open.clear()
        self.is_granted = False
        self.holds = ChunkSet()

    # ---- telling ---------------------------------------------------------------------------

    def wait_s(self, now: float, arrived_at: float) -> float:
        """How long the peer may still wait for the next chunk. The time in which the pull has
        waited for its turn counts, unless something arrived."""
        return max(0.0, self.pull.wait_s - (now - max(self.since, arrived_at)))

    def take_progress(self) -> Progressed | None:
        """What has arrived since the last time; None when there is nothing."""
        if not self._fresh:
            return None
        return Progressed(pull=self.pull, arrived=self._take_fresh(), holds=self.holds)

    def end(self) -> Completed | Broken:
        """How the pull ended when every chunk has come."""
        pull = self.pull
        if not self._wrong:
            return Completed(pull=pull, holds=self.holds)
        detail = f"Node {pull.peer} sent chunk {min(self._wrong)} of artifact {pull.artifact}"
        return self._break(FaultKind.CORRUPT, f"{detail} damaged.")

    def miss(self) -> Completed | Broken:
        """The end of a pull whose next chunk the peer does not have."""
        if self._wrong:
            return self.end()
        detail = f"does not have all chunks of artifact {self.pull.artifact}."
        return self._break(FaultKind.NOT_FOUND, f"Node {self.pull.peer} {detail}")

    def lack(self) -> Broken:
        """The end of a pull of an artifact that the peer does not have at all."""
        self.holds = None
        detail = f"Node {self.pull.peer} does not have artifact {self.pull.artifact}."
        return self._break(FaultKind.NOT_FOUND, detail)

    def refuse(self, why: str) -> Broken:
        """The end of a pull that the peer cannot serve in this way."""
        self.holds = None
        detail = f"Node {self.pull.peer} does not lend over {self._way}: {why}"
        return self._break(FaultKind.INVALID, detail)

    def lose(self, why: str) -> Broken:
        """The end of a pull over a way that is lost."""
        detail = f"Node {self.pull.peer} was lost over {self._way}: {why.rstrip('.')}."
        self.holds = None
        return self._break(FaultKind.UNAVAILABLE, detail)

    def _break(self, kind: FaultKind, detail: str) -> Broken:
        fault = Fault(kind=kind, detail=detail)
        return Broken(pull=self.pull, fault=fault, arrived=self._take_fresh(), holds=self.holds)

    def _take_fresh(self) -> ChunkSet:
        fresh, self._fresh = self._fresh, []
        return ChunkSet.of(fresh)
