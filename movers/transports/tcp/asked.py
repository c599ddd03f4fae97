"""What has come of one pull that a connection asked for. Pure; never touches a socket."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from tensorcast.movers.core.transfer import Broken, Completed, Progressed, Pull
from tensorcast.movers.transports.tcp.wire import Status
from tensorcast.movers.transports.tcp.work import Posted
from tensorcast.schema.chunks import ByteRange, ChunkSet
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.faults import Fault, FaultKind


class Asked:
    """A pull is asked for range by range, which are answered in order. Its chunks come in order;
    those that match are told of once, as progress or with the pull's end. Belongs to the thread of
    its connection."""

    def __init__(self, posted: Posted) -> None:
        self.pull: Pull = posted.pull
        self.memory = posted.memory
        self.since = posted.since
        self._share = posted.share
        self._shared = 0
        self.holds: ChunkSet | None = None
        self.has_begun = False
        self._next = posted.pull.first
        self._asked_stop = posted.pull.first
        self._range_stops: deque[int] = deque()
        self._refusal: Status | None = None
        self._fresh: list[int] = []
        self._wrong: list[int] = []

    def wait_s(self, now: float, arrived_at: float) -> float:
        """How long the peer may still wait for the next chunk. The time in which the pull has
        waited for its turn counts, unless something arrived: of many pulls that wait for a peer
        that gets nothing, all together wait for no longer than one."""
        return max(0.0, self.pull.wait_s - (now - max(self.since, arrived_at)))

    @property
    def has_more(self) -> bool:
        """Whether there is more to ask for. Not after a range of it was refused."""
        return self._refusal is None and self._asked_stop < self.pull.stop

    def ask(self, size_bytes: int) -> ByteRange:
        """The next range to ask for, of whole chunks: so many bytes, or one chunk when that is
        more. A pull that may have to wait is asked for as a whole: the peer goes on by itself."""
        first, stop = self._asked_stop, self.pull.stop
        if not self.pull.wait_s:
            stop = min(stop, first + max(1, size_bytes // self.pull.chunk_bytes))
        self._asked_stop = stop
        self._range_stops.append(stop)
        return self._range(first, stop)

    @property
    def left(self) -> ByteRange:
        """What has not come of the range that is being answered, in the source's byte space."""
        return self._range(self._next, self._range_stops[0])

    @property
    def owed(self) -> list[ByteRange]:
        """What has been asked for and has not come."""
        firsts = [self._next, *self._range_stops]
        return [self._range(*pair) for pair in zip(firsts, self._range_stops, strict=False)]

    def _range(self, first: int, stop: int) -> ByteRange:
        whole, step = self.pull.source_range, self.pull.chunk_bytes
        start = min(whole.size, (first - self.pull.first) * step)
        end = min(whole.size, (stop - self.pull.first) * step)
        return ByteRange(whole.offset + start, end - start)

    def targets_by(self, size_bytes: int, step_bytes: int) -> Iterator[memoryview]:
        """Where the next so many bytes belong, so many at a time."""
        space = self.targets(size_bytes)
        return (space[at : at + step_bytes] for at in range(0, size_bytes, step_bytes))

    def targets(self, size_bytes: int) -> memoryview:
        """Where the next so many bytes belong."""
        passed = self._range(self.pull.first, self._next).size
        start = self.pull.target_range.offset + passed
        return self.memory[start : start + size_bytes]

    def settle_chunk(self, digest: bytes | None) -> None:
        """The next chunk is there and has this digest (None: nobody looked)."""
        matches = digest is None or digest == self.pull.digest(self._next)
        (self._fresh if matches else self._wrong).append(self._next)
        self._next += 1

    def share(self) -> None:
        """Tells of what has come since the last time, who wants to know it at once."""
        if self._share is not None and self._shared < len(self._fresh):
            self._share(ChunkSet.of(self._fresh[self._shared :]))
            self._shared = len(self._fresh)

    def take_progress(self) -> Progressed | None:
        """What has arrived since the last time; None when there is nothing."""
        if not self._fresh:
            return None
        return Progressed(pull=self.pull, arrived=self._take_fresh(), holds=self.holds)

    def end_range(self, status: Status) -> bool:
        """The answer to a range has ended; whether all that was asked for has been answered and
        nothing more is to be asked. Raises Corrupt for a peer that speaks of another artifact."""
        if status is Status.INVALID:
            raise Corrupt(f"Node {self.pull.peer} has another artifact {self.pull.artifact}.")
        self._next = self._range_stops.popleft()
        if status is not Status.OK and self._refusal is None:
            self._refusal = status
        return not self._range_stops and not self.has_more

    def end(self) -> Completed | Broken:
        """How the pull ended."""
        pull = self.pull
        if self._wrong:
            detail = f"Node {pull.peer} sent chunk {self._wrong[0]} of artifact {pull.artifact}"
            return self._break(FaultKind.CORRUPT, f"{detail} damaged.")
        if self._refusal is None:
            return Completed(pull=pull, holds=self.holds)
        what = "" if self._refusal is Status.NOT_FOUND else "all chunks of "
        detail = f"Node {pull.peer} does not have {what}artifact {pull.artifact}."
        return self._break(FaultKind.NOT_FOUND, detail)

    def lose(self, reason: str) -> Broken:
        """The end of a pull whose peer was lost."""
        return self._break(FaultKind.UNAVAILABLE, f"Node {self.pull.peer} was lost: {reason}")

    def _break(self, kind: FaultKind, detail: str) -> Broken:
        fault = Fault(kind=kind, detail=detail)
        holds = None if kind is FaultKind.UNAVAILABLE else self.holds
        return Broken(pull=self.pull, fault=fault, arrived=self._take_fresh(), holds=holds)

    def _take_fresh(self) -> ChunkSet:
        fresh, self._fresh, self._shared = self._fresh, [], 0
        return ChunkSet.of(fresh)
