"""The pulls of a channel that no connection has taken yet. For threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

import msgspec

from tensorcast.movers.core.transfer import Pull
from tensorcast.movers.transports.tcp.wire import RANGES_MAX

BATCH_BYTES_MAX = 8 << 20


class Posted(msgspec.Struct, frozen=True):
    """A pull, the memory that it fills, and since when (steady clock) it waits."""

    pull: Pull
    memory: memoryview
    since: float = 0.0


class Work:
    """A queue that several connections take batches from."""

    def __init__(self) -> None:
        self._waiting: deque[Posted] = deque()
        self._changed = threading.Condition()
        self._is_closed = False

    @property
    def has_waiting(self) -> bool:
        """Whether somebody could take something now. A glance without the lock."""
        return bool(self._waiting)

    def put(self, posted: list[Posted]) -> bool:
        """Adds pulls; False (and nothing added) when the queue is closed. Never blocks for
        long."""
        with self._changed:
            if self._is_closed:
                return False
            self._waiting.extend(posted)
            self._changed.notify(len(posted))
            return True

    def take(self, timeout_s: float | None) -> tuple[Posted, ...] | None:
        """Pulls that go into one request, so that small ones share it; () when there are none
        after `timeout_s` (None: no limit); None when the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed, timeout_s)
            if self._is_closed:
                return None
            return self._next_batch()

    def _next_batch(self) -> tuple[Posted, ...]:
        count = count_together(posted.pull for posted in self._waiting)
        return tuple(self._waiting.popleft() for _ in range(count))

    def close(self) -> tuple[Posted, ...]:
        """Ends the queue; returns what nobody has taken. Safe to repeat."""
        with self._changed:
            self._is_closed = True
            left = tuple(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
            return left


def count_together(pulls: Iterable[Pull]) -> int:
    """How many of these pulls, from the first one on, share a request: so many bytes of one
    artifact. One that may have to wait goes alone."""
    count = size_bytes = 0
    first: Pull | None = None
    for pull in pulls:
        size_bytes += pull.source_range.size
        if first is not None and (size_bytes > BATCH_BYTES_MAX or not _go_together(first, pull)):
            break
        first = first or pull
        count += 1
        if count == RANGES_MAX:
            break
    return count


def _go_together(first: Pull, other: Pull) -> bool:
    return first.artifact == other.artifact and not first.wait_s and not other.wait_s
