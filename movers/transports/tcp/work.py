"""The pulls of a channel that no connection has taken yet. For threads."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterable

import msgspec

from tensorcast.movers.core.transfer import Pull
from tensorcast.movers.transports.base import Share
from tensorcast.movers.transports.tcp.wire import RANGES_MAX

BATCH_BYTES_MAX = 8 << 20


class Posted(msgspec.Struct, frozen=True):
    """A pull, the memory that it fills, since when (steady clock) it waits, and who is told of
    chunks at once."""

    pull: Pull
    memory: memoryview
    since: float = 0.0
    share: Share | None = None


class Work:
    """A queue that several connections take batches from. One pull at a time may hold up its
    connection because its peer waits for a chunk; the others are there for what can be had now."""

    def __init__(self) -> None:
        self._waiting: deque[Posted] = deque()
        self._is_held_up = False
        self._changed = threading.Condition()
        self._is_closed = False

    @property
    def has_waiting(self) -> bool:
        """Whether somebody may be able to take something now. A glance without the lock."""
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
            self._changed.wait_for(lambda: self._is_closed or self._first() is not None, timeout_s)
            if self._is_closed:
                return None
            first = self._first()
            return self._take_from(first) if first is not None else ()

    def go_on(self) -> None:
        """The pull that held up its connection does so no longer."""
        with self._changed:
            self._is_held_up = False
            self._changed.notify_all()

    def _first(self) -> int | None:
        """The place in the queue of the next pull to be taken."""
        if not self._is_held_up:
            return 0 if self._waiting else None
        return next((n for n, each in enumerate(self._waiting) if not each.pull.wait_s), None)

    def _take_from(self, first: int) -> tuple[Posted, ...]:
        after = itertools.islice(self._waiting, first, None)
        count = count_together(posted.pull for posted in after)
        self._waiting.rotate(-first)
        batch = tuple(self._waiting.popleft() for _ in range(count))
        self._waiting.rotate(first)
        self._is_held_up = self._is_held_up or bool(batch[0].pull.wait_s)
        return batch

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
