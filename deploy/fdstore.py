"""Descriptors that a service keeps with us, so that its memory outlives its own kill -9.

The protocol is systemd's: FDSTORE=1 and FDSTOREREMOVE=1 with a FDNAME on NOTIFY_SOCKET; at the next
start the descriptors are handed back from 3 on, named in LISTEN_FDNAMES.
"""

from __future__ import annotations

import os
from collections.abc import Sequence


class FdStore:
    """The descriptors of one service, in the order in which they came. Owns them."""

    def __init__(self, *, size_max: int) -> None:
        self._size_max = size_max
        self._held: list[tuple[str, int]] = []
        self._known: set[tuple[str, int, int]] = set()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, name: str, descriptors: Sequence[int]) -> int:
        """Take over descriptors; one that is held already is closed. Returns how many did not fit.

        Those that do not fit are closed as well: the service works, its memory dies with it.
        """
        refused = 0
        for descriptor in descriptors:
            found = os.fstat(descriptor)
            identity = (name, found.st_dev, found.st_ino)
            if identity not in self._known and len(self._held) < self._size_max:
                self._known.add(identity)
                self._held.append((name, descriptor))
                continue
            refused += identity not in self._known
            os.close(descriptor)
        return refused

    def remove(self, name: str) -> None:
        """Close all descriptors of this name; nothing happens when there is none."""
        for held_name, descriptor in self._held:
            if held_name == name:
                os.close(descriptor)
        self._held = [held for held in self._held if held[0] != name]
        self._known = {known for known in self._known if known[0] != name}

    def named(self) -> tuple[tuple[str, int], ...]:
        """Names and descriptors, oldest first. They stay ours."""
        return tuple(self._held)

    def close(self) -> None:
        """Close all."""
        for _, descriptor in self._held:
            os.close(descriptor)
        self._held.clear()
        self._known.clear()
