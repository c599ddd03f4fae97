"""What can be done for the blocks of a node before somebody waits for it, while they are at rest.

Digests of new blocks, so that the first peer that asks need not wait; a new slab when most slots of
a size are in use; blocks that are cold, on the disk already, so that dropping them costs nothing.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from itertools import islice

from tensorcast.movers.blocks.base import BlockSpill, NullSpill
from tensorcast.movers.blocks.session import Session
from tensorcast.movers.blocks.store import BlockStore

LOOK_S = 0.05
IDLE_S = 0.2
REST_S = 1.0
"""Nothing was read or written for so long. Uses of the board are told each half second."""
NICE = 10
SPILL_MAX = 64
COLD_SHARE = 8
"""One in so many of the blocks, the coldest, are kept on the disk ahead of need ..."""
FREE_SHARE = 8
"""... once less than one in so many bytes of the budget is free."""


class BlockKeeper:
    """Owns a thread until `close`."""

    def __init__(self, store: BlockStore, spill: BlockSpill) -> None:
        self._store = store
        self._spill = spill
        self._session = Session("keeper")
        self._closing = threading.Event()
        store.join(self._session)
        self._thread = threading.Thread(target=self._run, name="kv-keeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; blocks for a moment. Safe to repeat."""
        self._closing.set()
        self._store.room.is_needed.set()
        self._thread.join()
        self._store.leave(self._session)

    def _run(self) -> None:
        with suppress(OSError):  # applications come first; of this thread alone, on Linux
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        state, room, activity, since = self._store.state, self._store.room, 0, time.monotonic()
        while not self._closing.is_set():
            if room.is_needed.wait(LOOK_S if state.writing else IDLE_S):
                room.grow_ahead()
            self._store.collect()
            if state.activity != activity:
                activity, since = state.activity, time.monotonic()
            elif time.monotonic() - since >= REST_S:
                while state.activity == activity and not self._closing.is_set() and self.digest():
                    pass
                self.spill_ahead()

    def digest(self) -> int:
        """Makes digests for a batch of blocks that came without; for how many."""
        try:
            keys = self._store.state.unhashed.popleft()
        except IndexError:
            return 0
        found = self._store.peek(keys, self._session)
        self._store.digests(keys, found)
        self._store.release(self._session, list(self._session.leases))
        return len(keys)

    def spill_ahead(self) -> int:
        """Writes cold blocks to the disk, if there is one and room is getting scarce; how many."""
        state = self._store.state
        if isinstance(self._spill, NullSpill):
            return 0
        with state.lock:
            if state.slabs.free_bytes() * FREE_SHARE > state.slabs.capacity_bytes:
                return 0
            window = len(state.index.entries) // COLD_SHARE
            cold = [
                key
                for key in islice(state.index.coldest(), window)
                if not self._spill.contains(key)
            ][:SPILL_MAX]
        if cold:
            self._store.spill(cold, self._session)
        return len(cold)
