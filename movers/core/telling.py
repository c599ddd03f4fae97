"""How often a node tells what happens to its blocks: soon when little does, seldom when much does.

Each telling costs the node, the log, the control plane and Postgres some milliseconds, however much
it says.
"""

from __future__ import annotations

from typing import Final

FIRST: Final = 5.0
MOST: Final = 20.0
"""Tellings that follow one another are so many lingers apart: FIRST, then twice as many each time,
up to MOST."""


class TellingPace:
    """Times are seconds on one clock. `linger_s`: so long at least is gathered."""

    def __init__(self, linger_s: float) -> None:
        self._linger_s = linger_s
        self._pause_s = FIRST * linger_s
        self._told_s = float("-inf")

    def rest_s(self, now_s: float) -> float:
        """How long to gather, from now on."""
        return max(self._linger_s, self._told_s + self._pause_s - now_s)

    def told(self, now_s: float) -> None:
        """Something is told now."""
        is_soon = now_s - self._told_s <= 2 * self._pause_s
        longer_s = min(2 * self._pause_s, MOST * self._linger_s)
        self._pause_s = longer_s if is_soon else FIRST * self._linger_s
        self._told_s = now_s
