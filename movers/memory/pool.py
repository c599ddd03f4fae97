"""The budget of a node's memory: which segments there are, which are free, which may be reused.

A segment is in use (`allocate`, `adopt`) until `release`; then it is free, or retired as long as
somebody still maps it. All of them count against the budget, which `allocate` never exceeds. A
free one is reused without new page faults, or closed when its room is needed.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from typing import Protocol

import msgspec

from tensorcast.movers.core.layout import gaps
from tensorcast.movers.memory.memfd import Segment, adopt_segment, create_segment, round_up
from tensorcast.schema.errors import OutOfCapacity
from tensorcast.schema.tensors import Index

WASTE_RATIO_MAX = 1.25
"""A free segment is reused for content that is at most so many times smaller."""


class DescriptorStore(Protocol):
    """Keeps descriptors alive while the mover is not (the supervisor's descriptor store)."""

    def keep(self, name: str, fd: int) -> None: ...

    def forget(self, name: str) -> None: ...


class NoStore:
    """A descriptor store that keeps nothing: segments end with the mover."""

    def keep(self, name: str, fd: int) -> None:
        pass

    def forget(self, name: str) -> None:
        pass


class DeviceSegment(Protocol):
    """Memory of a GPU, as a watcher needs it."""

    address: int
    nbytes: int

    def open_dmabuf(self) -> int: ...

    def read(self, start: int, stop: int) -> memoryview: ...


Watched = memoryview | DeviceSegment


class SegmentWatcher(Protocol):
    """Is told of segments, in any thread, by their memory; must be quick."""

    def mapped(self, memory: Watched) -> None:
        """A segment begins."""
        ...

    def emptied(self, memory: Watched) -> None:
        """Its content is not needed any more; it may be used again for other content."""
        ...

    def unmapped(self, memory: Watched) -> None:
        """It is about to end."""
        ...


class NoWatcher:
    """A watcher that does nothing."""

    def mapped(self, memory: Watched) -> None:
        pass

    def emptied(self, memory: Watched) -> None:
        pass

    def unmapped(self, memory: Watched) -> None:
        pass


class Lent(msgspec.Struct, frozen=True):
    """A segment for new content; unless `is_zero`, its bytes are those of an older use."""

    segment: Segment
    is_zero: bool


class PoolStats(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes by state; `retired_bytes` are released but still mapped by readers."""

    capacity_bytes: int
    used_bytes: int
    free_bytes: int
    retired_bytes: int
    segments: int
    segments_free: int


class Pool:
    """Owns its segments. Every method may be called from any thread; `allocate` may block for
    0.25 s per GiB while the kernel makes pages. `released_bytes` counts all that ever was."""

    def __init__(
        self,
        capacity_bytes: int,
        store: DescriptorStore | None = None,
        watcher: SegmentWatcher | None = None,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self._store = store or NoStore()
        self._watcher = watcher or NoWatcher()
        self._lock = threading.Lock()
        self._used: dict[str, Segment] = {}
        self._free: dict[str, Segment] = {}
        self._retired: dict[str, Segment] = {}
        self._untouched: set[str] = set()
        self._reserved_bytes = 0
        self.released_bytes = 0
        self._free_since: dict[str, float] = {}

    def allocate(self, size_bytes: int, *, is_touched: bool = True) -> Lent:
        """A segment of at least `size_bytes`, reused or new; unless `is_touched`, a new one has no
        pages before they are written to (`settle` it then). Raises OutOfCapacity; it says what
        is needed and what is free, and `shortfall` gives the difference."""
        needed = round_up(size_bytes)
        with self._lock:
            self._reclaim()
            segment = self._take_fitting(needed)
            if segment is not None:
                return Lent(segment, is_zero=False)
            self._make_room(needed)
            self._reserved_bytes += needed
            owed_bytes = sum(self._used[name].capacity_bytes for name in self._owing())
        return Lent(self._create(needed, is_touched, owed_bytes), is_zero=True)

    def settle(self, segment: Segment, written_bytes: int) -> None:
        """The pages of an untouched segment that lie after its first `written_bytes` are made too:
        now it is like any other. Blocks. Raises OutOfCapacity."""
        if segment.name in self._untouched:
            segment.touch(min(written_bytes, segment.capacity_bytes - 1))
            with self._lock:
                self._untouched.discard(segment.name)

    def shortfall(self, size_bytes: int) -> int:
        """How many bytes must be released before `size_bytes` can be allocated; 0: none."""
        with self._lock:
            self._reclaim()
            return max(0, round_up(size_bytes) - self._room())

    def release(self, segment: Segment) -> None:
        """Its content is no longer needed. The caller must have released its views of it. Safe to
        repeat."""
        with self._lock:
            if self._used.pop(segment.name, None) is not None:
                self.released_bytes += segment.capacity_bytes
                self._watcher.emptied(segment.memory)
                self._retired[segment.name] = segment
                self._reclaim()

    def trim(self, free_s_max: float) -> None:
        """Closes the segments that have been free for so long: their memory goes back to the
        machine. Blocks."""
        with self._lock:
            self._reclaim()
            now = time.monotonic()
            idle = [s for s in self._free.values() if now - self._free_since[s.name] >= free_s_max]
            for segment in idle:
                del self._free[segment.name], self._free_since[segment.name]
        for segment in idle:
            self._close(segment)

    def adopt(self, name: str, fd: int, *, is_touched: bool = True) -> Segment:
        """Takes over a segment from the descriptor store (which keeps it), as one in use; the
        budget does not stop it. Raises Corrupt."""
        segment = adopt_segment(name, fd)
        self._watcher.mapped(segment.memory)
        with self._lock:
            self._used[name] = segment
            if not is_touched:
                self._untouched.add(name)
        return segment

    def stats(self) -> PoolStats:
        """The state now."""
        with self._lock:
            self._reclaim()
            return PoolStats(
                capacity_bytes=self.capacity_bytes,
                used_bytes=_total(self._used) + self._reserved_bytes,
                free_bytes=_total(self._free),
                retired_bytes=_total(self._retired),
                segments=sum(1 for _ in self._all()),
                segments_free=len(self._free),
            )

    def close(self) -> None:
        """Closes every segment. What the descriptor store keeps, it keeps."""
        with self._lock:
            for segment in self._all():
                self._watcher.unmapped(segment.memory)
                segment.close()
            for group in (self._used, self._free, self._retired):
                group.clear()

    def _all(self) -> Iterator[Segment]:
        for group in (self._used, self._free, self._retired):
            yield from group.values()

    def _owing(self) -> set[str]:
        """The segments in use whose pages may still come."""
        return self._untouched & self._used.keys()

    def _reclaim(self) -> None:
        for name, segment in list(self._retired.items()):
            if segment.is_mapped():
                continue
            del self._retired[name]
            if name in self._untouched:  # it may lack pages, and has few
                self._close(segment)
            else:
                self._free[name] = segment
                self._free_since[name] = time.monotonic()

    def _take_fitting(self, needed: int) -> Segment | None:
        """The smallest free segment that fits without much waste."""
        fitting = [
            s for s in self._free.values() if needed <= s.capacity_bytes <= needed * WASTE_RATIO_MAX
        ]
        if not fitting:
            return None
        best = min(fitting, key=lambda s: s.capacity_bytes)
        self._used[best.name] = self._free.pop(best.name)
        del self._free_since[best.name]
        return best

    def _room(self) -> int:
        """Bytes that new segments could take if all free ones were closed."""
        taken = _total(self._used) + _total(self._retired) + self._reserved_bytes
        return self.capacity_bytes - taken

    def _make_room(self, needed: int) -> None:
        """Closes free segments, the largest first, until `needed` more bytes fit."""
        if needed > self._room():
            raise OutOfCapacity(
                f"{needed} bytes of memory are needed; {max(0, self._room())} of the mover's "
                f"{self.capacity_bytes} are free.",
                hint="Evict or unpin artifacts, or raise the mover's memory budget.",
            )
        for segment in sorted(self._free.values(), key=lambda s: -s.capacity_bytes):
            if needed <= self._room() - _total(self._free):
                return
            del self._free[segment.name], self._free_since[segment.name]
            self._close(segment)

    def _close(self, segment: Segment) -> None:
        self._untouched.discard(segment.name)
        self._watcher.unmapped(segment.memory)
        segment.discard()
        self._store.forget(segment.name)

    def _create(self, capacity_bytes: int, is_touched: bool, owed_bytes: int) -> Segment:
        """Makes a segment for which room is reserved, outside of the lock: it takes long."""
        segment: Segment | None = None
        try:
            segment = create_segment(
                f"segment-{secrets.token_hex(8)}",
                capacity_bytes,
                is_touched=is_touched,
                owed_bytes=owed_bytes,
            )
            self._watcher.mapped(segment.memory)
            self._store.keep(segment.name, segment.fd)
            return segment
        finally:
            with self._lock:
                self._reserved_bytes -= capacity_bytes
                if segment is not None:
                    self._used[segment.name] = segment
                    if not is_touched:
                        self._untouched.add(segment.name)


def _total(group: dict[str, Segment]) -> int:
    return sum(segment.capacity_bytes for segment in group.values())


def zero_gaps(segment: Segment, index: Index, size_bytes: int) -> None:
    """Zeroes what belongs to no tensor in the first `size_bytes`, as the byte space wants it."""
    for gap in gaps(index, size_bytes):
        segment.memory[gap.offset : gap.end] = bytes(gap.size)
