"""How blocks come in: which of those that are put are wanted, and when they can be read.

Every method but `catch_up` needs the store's lock.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorcast.movers.blocks.base import BlockReporter
from tensorcast.movers.blocks.ring import PutRing
from tensorcast.movers.blocks.session import Session
from tensorcast.movers.blocks.state import BlockState
from tensorcast.schema.block_wire import NOWHERE, State, entry_places, entry_sizes
from tensorcast.schema.blocks import BLOCK_BYTES_MAX
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.ids import Tier


class BlockIntake:
    """Put if absent, over `state`; what can be read from now on is told to the reporter."""

    def __init__(self, state: BlockState, reporter: BlockReporter) -> None:
        self._state = state
        self._reporter = reporter

    def is_known(self, key: bytes) -> bool:
        """Whether a block is here, or is being written."""
        return key in self._state.index.entries or key in self._state.writing

    def judge(
        self, keys: Sequence[bytes], entries: Sequence[bytes], *, has_places: bool
    ) -> bytearray:
        """A state for each block that is put."""
        states = bytearray(len(keys))
        held, writing = self._state.index.entries.keys(), self._state.writing.keys()
        is_plain = has_places or all(entry[:8] != NOWHERE[:8] for entry in entries)
        is_plain = is_plain and len(set(keys)) == len(keys)
        if is_plain and held.isdisjoint(keys) and writing.isdisjoint(keys):
            return states
        seen: set[bytes] = set()
        for at, key in enumerate(keys):
            if key in seen or self.is_known(key):
                states[at] = State.EXISTED
            elif entries[at][:8] == NOWHERE[:8]:
                size = int.from_bytes(entries[at][8:12], "little")
                states[at] = State.NO_ROOM if 0 < size <= BLOCK_BYTES_MAX else State.TOO_LARGE
            seen.add(key)
        return states

    def end(self, session: Session, tag: int, failed: frozenset[int] = frozenset()) -> None:
        """Makes the blocks of a batch readable, but for those of these indexes."""
        batch = session.batches.pop(tag)
        self._state.stop_writing(batch.keys)
        if failed:
            self._state.slabs.give([batch.entries[at][:8] for at in sorted(failed)])
            batch = batch.pick([at for at in range(len(batch.keys)) if at not in failed])
        self.add(batch.keys, batch.entries, batch.priority, batch.digests)

    def add(
        self,
        keys: Sequence[bytes],
        entries: Sequence[bytes],
        priority: int,
        digests: Sequence[bytes],
    ) -> None:
        """Makes written blocks readable."""
        state = self._state
        state.index.add(keys, entries, priority)
        state.board.add(keys, entries)
        if digests:
            state.index.digests.update(zip(keys, digests, strict=True))
        else:
            state.unhashed.append(keys)
        state.commits += 1
        self._reporter.stored(Tier.DRAM, list(zip(keys, entry_sizes(entries), strict=True)))

    def collect(self, *sessions: Session) -> None:
        """Ends the batches that their writers have marked, and takes in what they have told of in
        their rings."""
        for session in sessions:
            for tag in session.ended():
                self.end(session, tag)
            if session.ring is not None and session.ring.has_told:
                self._take_in(session, session.ring)

    def _take_in(self, session: Session, ring: PutRing) -> None:
        """Makes readable what an application has stored and told of in its ring. Nonsense ends its
        connection, and concerns nobody else."""
        try:
            batches, end = ring.read()
            for batch in batches:
                places = entry_places(batch.entries)
                session.put_bytes = max(entry_sizes(batch.entries), default=0)
                session.use(places, session.put_bytes)
                states = self.judge(batch.keys, batch.entries, has_places=True)
                if any(states):  # another was quicker
                    unused = [p for p, state in zip(places, states, strict=True) if state]
                    self._state.slabs.give(unused)
                    batch = batch.pick([at for at, state in enumerate(states) if not state])
                self.add(batch.keys, batch.entries, batch.priority, ())
            ring.take(end)
        except Corrupt as error:
            session.ring, session.fault = None, str(error)

    def catch_up(self) -> bool:
        """Takes in what applications have told of in their rings, as everybody does who is asked
        about blocks; whether there was something. Takes the lock itself."""
        state = self._state
        filled = [s for s in tuple(state.ringing) if s.ring is not None and s.ring.has_told]
        if filled:
            with state.lock:
                self.collect(*filled)
        return bool(filled)
