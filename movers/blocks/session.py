"""What one connection has of the blocks of a node: what it reads, was lent, and is writing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LEASES_MAX = 1 << 16


class Batch(NamedTuple):
    """Blocks that a connection is writing."""

    keys: Sequence[bytes]
    entries: Sequence[bytes]
    priority: int
    digests: Sequence[bytes] = ()


class Session:
    """All of it ends with the connection. Only changed under the store's lock.

    `leases`: by tag, the entries that may not be overwritten; `lent`: empty slots by place, and
    their size; `batches`: by tag.
    """

    def __init__(self, actor: str) -> None:
        self.actor = actor
        self.leases: dict[int, bytes] = {}
        self.lent: dict[bytes, int] = {}
        self.lent_bytes = 0
        self.batches: dict[int, Batch] = {}

    def lend(self, places: Sequence[bytes], slot_bytes: int) -> None:
        """These slots are the connection's to write."""
        self.lent.update(dict.fromkeys(places, slot_bytes))
        self.lent_bytes += slot_bytes * len(places)

    def take_back(self, places: Sequence[bytes]) -> list[bytes]:
        """Those of `places` that were lent; they are no longer."""
        found: list[bytes] = []
        for place in places:
            slot_bytes = self.lent.pop(place, 0)
            if slot_bytes:
                self.lent_bytes -= slot_bytes
                found.append(place)
        return found
