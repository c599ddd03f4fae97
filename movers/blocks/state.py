"""What the blocks of a node are made of, and the one lock over it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

import xxhash

from tensorcast.movers.blocks.board import BlockBoard
from tensorcast.movers.blocks.index import BlockIndex
from tensorcast.movers.blocks.session import Session
from tensorcast.movers.blocks.slabs import Slabs
from tensorcast.schema.block_wire import NOWHERE, PLACE

_NO_PLACES = frozenset((NOWHERE[: PLACE.size], bytes(PLACE.size)))


class BlockState:
    """Slabs, index and sessions. Every method but `hash` needs `lock`.

    `ringing`: the sessions that have a ring. `writing`: the keys between the begin and the end of
    their batch, and who writes them. `retired`: places that are in no index any more, but that
    somebody reads. `unhashed`: keys that came without a digest. `written` wakes those who wait for
    a block that is being written.
    """

    def __init__(self, slabs: Slabs, index: BlockIndex, board: BlockBoard) -> None:
        self.lock = threading.Lock()
        self.written = threading.Condition(self.lock)
        self.slabs = slabs
        self.index = index
        self.board = board
        self.sessions: set[Session] = set()
        self.ringing: set[Session] = set()
        self.writing: dict[bytes, Session] = {}
        self.retired: set[bytes] = set()
        self.unhashed: deque[Sequence[bytes]] = deque()
        self.commits = 0

    @property
    def activity(self) -> int:
        """Rises with everything that is read or written."""
        return self.commits + self.index.lookups

    def pinned(self) -> frozenset[bytes]:
        """The places that somebody reads."""
        found: set[bytes] = set()
        for session in self.sessions:
            found |= session.places_read()
        return frozenset(found - _NO_PLACES)

    def remove(self, keys: Sequence[bytes]) -> None:
        """Takes blocks out of the index. What somebody reads is freed when he has ended."""
        places = [self.index.remove(key)[:8] for key in keys]
        self.board.remove(keys)
        pinned = self.pinned()  # only now: nobody can find them any more
        self.retired.update(place for place in places if place in pinned)
        self.slabs.give([place for place in places if place not in pinned])

    def free_retired(self) -> None:
        """Frees what nobody reads any more."""
        if not self.retired:
            return
        free = self.retired - self.pinned()
        self.retired -= free
        self.slabs.give(sorted(free))

    def stop_writing(self, keys: Sequence[bytes]) -> None:
        """These keys are no longer being written."""
        for key in keys:
            del self.writing[key]
        self.written.notify_all()

    def hash(self, entry: bytes) -> bytes:
        """The digest of a block that the caller has pinned. Without the GIL and the lock."""
        with self.slabs.memory(entry) as memory:
            return xxhash.xxh3_64_digest(memory)

    def note_digests(self, made: dict[bytes, tuple[bytes, bytes]]) -> None:
        """Digests that were made, by key, with the entries that they belong to."""
        for key, (entry, digest) in made.items():
            if self.index.entries.get(key) == entry:
                self.index.digests[key] = digest
