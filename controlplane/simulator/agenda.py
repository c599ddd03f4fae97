"""What happens when: a clock that jumps from one thing to the next."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

Action = Callable[[], None]


class Agenda:
    """Things to do, in the order of their times, then of their making. `now_s` counts from 0."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._entries: list[tuple[float, int, Action]] = []
        self._order = count()

    def after(self, delay_s: float, action: Action) -> None:
        """Has something done `delay_s` seconds from now."""
        heapq.heappush(self._entries, (self.now_s + delay_s, next(self._order), action))

    def run(self, until_s: float) -> None:
        """Does all that is due up to a time, which it is then."""
        while self._entries and self._entries[0][0] <= until_s:
            self.now_s, _, action = heapq.heappop(self._entries)
            action()
        self.now_s = max(self.now_s, until_s)

    @property
    def waiting(self) -> int:
        """How many things are still to be done."""
        return len(self._entries)
