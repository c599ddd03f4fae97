"""The pulls of a channel that no rail has taken yet. For threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from tensorcast.movers.core.reading import Reading
from tensorcast.movers.transports.rdma.region import RdmaRegion


class Posted(msgspec.Struct, frozen=True):
    """A pull and the memory that it fills."""

    reading: Reading
    region: RdmaRegion


class Work:
    """A queue from which several rails take what they can carry."""

    def __init__(self) -> None:
        self._waiting: deque[Posted] = deque()
        self._wakes: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def serve(self, wake: Callable[[], None]) -> None:
        """`wake` is called from any thread when there is something to take."""
        with self._lock:
            self._wakes.append(wake)

    def leave(self, wake: Callable[[], None]) -> None:
        """It is called no more."""
        with self._lock:
            self._wakes.remove(wake)

    def put(self, posted: Iterable[Posted], *, first: bool = False) -> bool:
        """Adds pulls, at the head of the queue if they are `first`; False (and nothing added) when
        the queue is closed."""
        with self._lock:
            if self._is_closed:
                return False
            if first:
                self._waiting.extendleft(reversed(list(posted)))
            else:
                self._waiting.extend(posted)
            for wake in self._wakes:
                wake()
            return True

    def take(self) -> Posted | None:
        """The next pull; None when there is none now."""
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def close(self) -> tuple[Posted, ...]:
        """Ends the queue; returns what nobody has taken. Safe to repeat."""
        with self._lock:
            self._is_closed = True
            left = tuple(self._waiting)
            self._waiting.clear()
            return left
