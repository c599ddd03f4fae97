"""What has come of one pull that a connection asked for. Pure; never touches a socket."""

from __future__ import annotations

from collections.abc import Iterator

from tensorcast.movers.core.transfer import Broken, Completed, Progressed, Pull
from tensorcast.movers.transports.tcp.wire import Status
from tensorcast.movers.transports.tcp.work import Posted
from tensorcast.schema.chunks import ByteRange, ChunkSet
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.faults import Fault, FaultKind


class Asked:
    """The chunks of a pull come in order; those that match are told of once, as progress or with
    the pull's end. Belongs to the thread of its connection."""

    def __init__(self, posted: Posted) -> None:
        self.pull: Pull = posted.pull
        self.memory = posted.memory
        self.since = posted.since
        self.holds: ChunkSet | None = None
        self.has_begun = False
        self._next = posted.pull.first
        self._fresh: list[int] = []
        self._wrong: list[int] = []

    def wait_s(self, now: float, arrived_at: float) -> float:
        """How long the peer may still wait for the next chunk. The time in which the pull has
        waited for its turn counts, unless something arrived: of many pulls that wait for a peer
        that gets nothing, all together wait for no longer than one."""
        return max(0.0, self.pull.wait_s - (now - max(self.since, arrived_at)))

    @property
    def left(self) -> ByteRange:
        """The part of the source's byte space that has not come."""
        wanted = self.pull.source_range
        passed = min(wanted.size, (self._next - self.pull.first) * self.pull.chunk_bytes)
        return ByteRange(wanted.offset + passed, wanted.size - passed)

    def targets_by_chunk(self, size_bytes: int) -> Iterator[memoryview]:
        """Where the chunks in the next so many bytes belong, each by itself."""
        space, step = self.targets(size_bytes), self.pull.chunk_bytes
        return (space[at : at + step] for at in range(0, size_bytes, step))

    def targets(self, size_bytes: int) -> memoryview:
        """Where the next so many bytes belong."""
        passed = self.pull.source_range.size - self.left.size
        start = self.pull.target_range.offset + passed
        return self.memory[start : start + size_bytes]

    def settle_chunk(self, digest: bytes | None) -> None:
        """The next chunk is there and has this digest (None: nobody looked)."""
        matches = digest is None or digest == self.pull.digest(self._next)
        (self._fresh if matches else self._wrong).append(self._next)
        self._next += 1

    def take_progress(self) -> Progressed | None:
        """What has arrived since the last time; None when there is nothing."""
        if not self._fresh:
            return None
        return Progressed(pull=self.pull, arrived=self._take_fresh(), holds=self.holds)

    def end(self, status: Status) -> Completed | Broken:
        """How the pull ended. Raises Corrupt for a peer that speaks of another artifact."""
        pull = self.pull
        if self._wrong:
            detail = f"Node {pull.peer} sent chunk {self._wrong[0]} of artifact {pull.artifact}"
            return self._break(FaultKind.CORRUPT, f"{detail} damaged.")
        match status:
            case Status.MISSING:
                detail = f"Node {pull.peer} does not have all chunks of artifact {pull.artifact}."
                return self._break(FaultKind.NOT_FOUND, detail)
            case Status.NOT_FOUND:
                detail = f"Node {pull.peer} does not have artifact {pull.artifact}."
                return self._break(FaultKind.NOT_FOUND, detail)
            case Status.INVALID:
                raise Corrupt(f"Node {pull.peer} has another artifact {pull.artifact}.")
            case Status.OK | Status.MORE:
                return Completed(pull=pull, holds=self.holds)

    def lose(self, reason: str) -> Broken:
        """The end of a pull whose peer was lost."""
        return self._break(FaultKind.UNAVAILABLE, f"Node {self.pull.peer} was lost: {reason}")

    def _break(self, kind: FaultKind, detail: str) -> Broken:
        fault = Fault(kind=kind, detail=detail)
        holds = None if kind is FaultKind.UNAVAILABLE else self.holds
        return Broken(pull=self.pull, fault=fault, arrived=self._take_fresh(), holds=holds)

    def _take_fresh(self) -> ChunkSet:
        fresh, self._fresh = self._fresh, []
        return ChunkSet.of(fresh)
