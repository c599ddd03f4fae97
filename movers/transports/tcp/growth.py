"""Watches what the connections of a channel bring, to decide whether more of them help."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from tensorcast.movers.core.streams import Path, Try, next_streams
from tensorcast.movers.core.transfer import Completed, Completion, Progressed, Pull

WATCH_S: Final = 0.15
"""So long a number of connections is watched before it is judged."""


class Growth:
    """Not safe in several threads at once. `clock` is seconds, steady."""

    def __init__(self, streams: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._streams = streams
        self._clock = clock
        self._tries: tuple[Try, ...] = ()
        self._is_over = False
        self._open: dict[int, int] = {}  # bytes that are still owed, by the number of the pull
        self._since = 0.0
        self._size_bytes = 0

    def post(self, pulls: Sequence[Pull]) -> None:
        """These are asked for. Times in which nothing is do not count."""
        if self._is_over:
            return
        if not self._open:
            self._since, self._size_bytes = self._clock(), 0
        self._open.update((pull.number, pull.source_range.size) for pull in pulls)

    def note(self, completions: Sequence[Completion]) -> bool:
        """These arrived; whether it is time to ask for `more`."""
        if self._is_over:
            return False
        for completion in completions:
            number = completion.pull.number
            owed = self._open.pop(number, 0)
            came = owed
            if not isinstance(completion, Completed):
                came = min(owed, len(completion.arrived) * completion.pull.chunk_bytes)
            if isinstance(completion, Progressed):
                self._open[number] = owed - came
            self._size_bytes += came
        return bool(self._open) and self._watched_s() >= WATCH_S

    def more(self, path: Path, cores: int) -> int:
        """How many connections to add now. After a 0 it never asks again."""
        self._tries += (Try(streams=self._streams, rate=self._size_bytes / self._watched_s()),)
        wanted = next_streams(self._tries, path, cores)
        added, self._streams = wanted - self._streams, wanted
        self._is_over = not added
        self._since, self._size_bytes = self._clock(), 0
        return added

    def _watched_s(self) -> float:
        return max(1e-9, self._clock() - self._since)
