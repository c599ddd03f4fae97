"""Sums of what was moved, added to by several threads and taken by one."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

NAMES: Final[Mapping[str, str]] = {
    "lookups": "Requests whose blocks were asked for",
    "hit_blocks": "Blocks that were found and began to be loaded",
    "loaded_blocks": "Blocks loaded into the KV cache",
    "loaded_bytes": "Bytes loaded into the KV cache",
    "load_s": "Seconds that loads took",
    "load_failures": "Loads of which a part was computed instead",
    "failed_blocks": "Blocks that were computed because their load failed",
    "saved_blocks": "Blocks that became stored",
    "saved_bytes": "Bytes that became stored",
    "save_s": "Seconds that saves took",
    "rejected_blocks": "Blocks for which the node had no room",
    "saves_dropped": "Saves that were not begun: the node was away, or far behind",
    "saves_given_up": "Saves that ended because the engine needed the blocks",
}
"""What is counted, and what it means."""


class Counters:
    """For any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, float] = {}

    def add(self, name: str, amount: float) -> None:
        """Raises KeyError for a name that is not in NAMES."""
        if name not in NAMES:
            raise KeyError(name)
        if amount:
            with self._lock:
                self._sums[name] = self._sums.get(name, 0) + amount

    def take(self) -> dict[str, float]:
        """The sums since the last call; only those that are not zero."""
        with self._lock:
            found, self._sums = self._sums, {}
        return found


def add_up(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """The sums of both."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in {*one, *other}}
