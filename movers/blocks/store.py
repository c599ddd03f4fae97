"""The blocks of a node: put if absent, found and pinned by key.

Every method may be called from any thread. What takes long (new slabs, digests, the disk) happens
outside of the lock, with the blocks concerned pinned.

A block is *being written* from `begin` until `commit`: others that put it are told it is there,
others that look for it wait for it a moment, and it goes when its writer does.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from typing import NamedTuple

from tensorcast.movers.blocks.base import BlockReporter, BlockSpill
from tensorcast.movers.blocks.board import BlockBoard
from tensorcast.movers.blocks.index import BlockIndex
from tensorcast.movers.blocks.intake import BlockIntake
from tensorcast.movers.blocks.ring import PutRing
from tensorcast.movers.blocks.room import BlockRoom
from tensorcast.movers.blocks.session import LEASES_MAX, Batch, Session
from tensorcast.movers.blocks.slabs import Slab, Slabs
from tensorcast.movers.blocks.state import BlockState
from tensorcast.movers.core.block_eviction import BlockPolicy
from tensorcast.movers.core.slots import slot_bytes
from tensorcast.movers.memory.pool import Pool
from tensorcast.schema.block_wire import (
    NOWHERE,
    State,
    entry_places,
    entry_sizes,
    split_entries,
)
from tensorcast.schema.blocks import BLOCK_BYTES_MAX, name_key
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.ids import Tier

WRITING_S_MAX = 2.0
"""How long a reader waits for a block that is being written."""

LOOK_S = 0.001

LENT_SHARE = 8
"""One connection is lent at most one in so many bytes of the budget ahead of need ..."""

AHEAD_BYTES = 32 << 20
"""... and one with a ring always about so many, for what it puts until somebody looks there."""

_NO_DIGEST = bytes(8)
_logger = logging.getLogger(__name__)


class Begun(NamedTuple):
    """What `begin` answers: a state and an entry (NOWHERE unless wanted) for each block."""

    states: bytes
    entries: Sequence[bytes]


class BlockStats(NamedTuple):
    """Counts. `slab_bytes` is the memory of all slabs, `writing` blocks are not readable yet."""

    blocks: int
    slab_bytes: int
    free_bytes: int
    sessions: int
    pinned: int
    retired: int
    writing: int
    lent: int
    unhashed: int


class BlockStore:
    """The slabs lie in `pool` and take at most `capacity_bytes` of it. `life` tells one store from
    those before it: places mean nothing across them."""

    def __init__(
        self,
        pool: Pool,
        capacity_bytes: int,
        policy: BlockPolicy,
        reporter: BlockReporter,
        spill: BlockSpill,
    ) -> None:
        self.state = BlockState(
            Slabs(pool, capacity_bytes), BlockIndex(policy), BlockBoard(capacity_bytes)
        )
        self.room = BlockRoom(self.state, reporter, spill)
        self._intake = BlockIntake(self.state, reporter)
        self._reporter = reporter
        self._spill = spill
        self.life = secrets.token_hex(8)
        self._lent_bytes_max = capacity_bytes // LENT_SHARE

    # ---- reading -------------------------------------------------------------------------------

    def find(self, keys: Sequence[bytes], session: Session, tag: int) -> bytes:
        """The entries of blocks, pinned for `session` until `release(tag)`; those on disk are
        brought back. Raises Corrupt when the session holds too many, or one under this tag."""
        state = self.state
        with state.lock:
            if tag in session.leases:
                raise Corrupt(f"A connection looks up under tag {tag} what it still reads.")
            if len(session.leases) >= LEASES_MAX:
                raise Corrupt("A connection releases nothing of what it reads.")
            found = state.index.look_up(keys)
            session.leases[tag] = found
        if NOWHERE in found:
            return self._find_late(keys, found, session, tag)
        return found

    def peek(self, keys: Sequence[bytes], session: Session) -> bytes:
        """As `find`, but it is no use of the blocks, and only looks in memory."""
        with self.state.lock:
            found = b"".join([self.state.index.entries.get(key, NOWHERE) for key in keys])
            session.leases[len(session.leases)] = found
        return found

    def _find_late(self, keys: Sequence[bytes], found: bytes, session: Session, tag: int) -> bytes:
        """Looks for what was not there: in batches that are being written, and on the disk."""
        entries = split_entries(found, 0, len(keys), len(found))
        missing = [key for key, entry in zip(keys, entries, strict=True) if entry == NOWHERE]
        is_new = self._intake.catch_up()
        with self.state.lock:
            is_written = [key for key in missing if key in self.state.writing]
        self._wait_for(is_written, session)
        is_back = [key for key in missing if self._spill.contains(key) and self._bring_back(key)]
        if not is_new and not is_written and not is_back:
            return found
        with self.state.lock:
            found = self.state.index.look_up(keys)
            session.leases[tag] = found
        return found

    def _wait_for(self, keys: Sequence[bytes], session: Session) -> None:
        """Until none of `keys` is being written by others, or for a moment."""
        deadline = time.monotonic() + WRITING_S_MAX
        writing = self.state.writing
        with self.state.lock:
            while time.monotonic() < deadline:
                writers = {writing[key] for key in keys if key in writing}
                self._intake.collect(*writers)
                if not any(writing.get(key, session) is not session for key in keys):
                    return
                self.state.written.wait(LOOK_S)  # a mark wakes nobody

    def _bring_back(self, key: bytes) -> bool:
        """Reads a block from the disk into a slot. Blocks."""
        size = self._spill.size(key)
        if not 0 < size <= BLOCK_BYTES_MAX:
            return False
        places = self.room.take(slot_bytes(size), 1)
        if not places:
            return False
        entry = places[0] + size.to_bytes(4, "little")
        with self.state.slabs.memory(entry) as memory:
            is_read = self._spill.read(key, memory)
        with self.state.lock:
            is_new = is_read and not self._intake.is_known(key)
            if is_new:
                self._intake.add([key], [entry], 0, ())
            else:
                self.state.slabs.give(places)
        return is_read

    def release(self, session: Session, tags: Sequence[int]) -> None:
        """The blocks of these lookups are not read any more. Unknown tags are ignored."""
        with self.state.lock:
            for tag in tags:
                session.leases.pop(tag, None)
            self.state.free_retired()

    def states(self, keys: Sequence[bytes]) -> bytearray:
        """Where each block is on this node; one that is being written counts as in memory."""
        self._intake.catch_up()
        with self.state.lock:
            found = bytearray(
                State.IN_MEMORY if self._intake.is_known(key) else State.ABSENT for key in keys
            )
        for at, key in enumerate(keys):
            if found[at] == State.ABSENT and self._spill.contains(key):
                found[at] = State.ON_DISK
        return found

    def digests(self, keys: Sequence[bytes], found: bytes) -> list[bytes]:
        """The digests of blocks that the caller has found and pinned; made now where there are
        none. Zeros for those that are nowhere."""
        state = self.state
        entries = split_entries(found, 0, len(keys), len(found))
        with state.lock:
            held, known = state.index.entries, state.index.digests
            digests = [
                known.get(key, b"") if held.get(key) == entry else b""
                for key, entry in zip(keys, entries, strict=True)
            ]
        if all(digests):
            return digests
        made: dict[bytes, tuple[bytes, bytes]] = {}
        for at, (key, entry) in enumerate(zip(keys, entries, strict=True)):
            if entry == NOWHERE:
                digests[at] = _NO_DIGEST
            elif not digests[at]:
                digests[at] = state.hash(entry)
                made[key] = (entry, digests[at])
        with state.lock:
            state.note_digests(made)
        return digests

    def spill(self, keys: Sequence[bytes], session: Session) -> None:
        """Writes blocks to the disk; they stay in memory. Blocks."""
        found = self.peek(keys, session)
        entries = split_entries(found, 0, len(keys), len(found))
        for key, entry, digest in zip(keys, entries, self.digests(keys, found), strict=True):
            if entry != NOWHERE:
                with self.memory(entry) as memory:
                    self._spill.write(key, digest, memory)
        self.release(session, list(session.leases))

    def note_uses(self, keys: Sequence[bytes]) -> None:
        """Blocks that somebody found on the board: that was a use too."""
        with self.state.lock:
            self.state.index.note(keys)

    def close(self) -> None:
        """Gives the board up; the slabs are the pool's."""
        self.state.board.close()

    def memory(self, entry: bytes) -> memoryview:
        """The bytes of a block that the caller has pinned or is writing. Release the view soon."""
        return self.state.slabs.memory(entry)

    def slab(self, number: int) -> Slab | None:
        """A slab by its number."""
        with self.state.lock:
            return self.state.slabs.find(number)

    # ---- writing -------------------------------------------------------------------------------

    def begin(
        self,
        keys: Sequence[bytes],
        entries: Sequence[bytes],
        session: Session,
        tag: int,
        *,
        is_proposed: bool,
        has_mark: bool = False,
        priority: int = 0,
        digests: Sequence[bytes] = (),
    ) -> Begun:
        """Says which blocks are wanted, and reserves their keys until `commit(tag)`, or until the
        session's mark reaches the tag. The places of `entries` are slots that the session was lent
        (then they are used), or nothing. Raises Corrupt when they were not lent, a size cannot be,
        or a batch of this tag has not ended yet."""
        self._intake.catch_up()
        session.put_bytes = max(entry_sizes(entries), default=0)
        if not is_proposed:
            entries = self._find_slots(keys, entries)
        places = entry_places(entries)
        with self.state.lock:
            if tag in session.batches:  # the other one would be written for ever
                if not is_proposed:
                    self.state.slabs.give([place for place in places if place != NOWHERE[:8]])
                raise Corrupt(f"A connection begins batch {tag} twice.")
            if is_proposed:
                session.use(places, max(entry_sizes(entries), default=0))
            states = self._intake.judge(keys, entries, has_places=is_proposed)
            batch = Batch(keys, entries, priority, digests, has_mark)
            if any(states):
                batch = batch.pick([at for at, state in enumerate(states) if not state])
                pairs = list(zip(entries, states, strict=True))
                entries = [NOWHERE if state else entry for entry, state in pairs]
                unused = [p for p, state in zip(places, states, strict=True) if state]
                self._put_aside(session, unused, is_kept=is_proposed)
            self.state.writing.update(dict.fromkeys(batch.keys, session))
            session.batches[tag] = batch
        return Begun(bytes(states), entries)

    def _put_aside(self, session: Session, places: Sequence[bytes], *, is_kept: bool) -> None:
        """What to do with the slots of blocks that are not wanted. Under the lock."""
        places = [place for place in places if place != NOWHERE[:8]]
        if is_kept:
            for place in places:
                session.lend([place], self.state.slabs.slab_of(place).slot_bytes)
        else:
            self.state.slabs.give(places)

    def _find_slots(self, keys: Sequence[bytes], entries: Sequence[bytes]) -> list[bytes]:
        """Entries with places for the blocks that are not here; without a place for the others and
        where there is no room."""
        with self.state.lock:
            absent = [at for at, key in enumerate(keys) if not self._intake.is_known(key)]
        found = [NOWHERE[:8] + entry[8:12] for entry in entries]
        sizes: dict[int, list[int]] = {}
        for at in absent:
            size = int.from_bytes(entries[at][8:12], "little")
            if 0 < size <= BLOCK_BYTES_MAX:
                sizes.setdefault(slot_bytes(size), []).append(at)
        for slot, indexes in sizes.items():
            places = self.room.take(slot, len(indexes))
            for at, place in zip(indexes, places, strict=False):
                found[at] = place + entries[at][8:12]
        return found

    def commit(self, session: Session, tag: int, failed: Sequence[int] = ()) -> None:
        """The blocks of a batch are written, but for those of these indexes (among the wanted).
        Raises Corrupt for a batch that was not begun."""
        with self.state.lock:
            batch = session.batches.get(tag)
            if batch is None or any(at >= len(batch.keys) for at in failed):
                raise Corrupt("A connection ends a batch that it has not begun.")
            self._intake.end(session, tag, frozenset(failed))

    def open_ring(self, session: Session) -> PutRing:
        """A ring for a connection. Raises Corrupt when it has one."""
        with self.state.lock:
            if session.ring is not None:
                raise Corrupt("A connection asks for its ring twice.")
            session.ring = PutRing()
            self.state.ringing.add(session)
            return session.ring

    def lend_ahead(self, session: Session) -> None:
        """Lends a connection with a ring what it may put before somebody looks there again. Raises
        Corrupt."""
        ring, size = session.ring, session.put_bytes
        if ring is None or not 0 < size <= BLOCK_BYTES_MAX:
            return
        ahead = min(AHEAD_BYTES, self._lent_bytes_max)
        missing = ahead - session.lent_bytes
        if missing * 4 >= ahead:
            slot = slot_bytes(size)
            places = self.room.take_ahead(slot, min(missing // slot, ring.room))
            with self.state.lock:
                session.lend(places, slot)
                ring.lend(places, size)

    def collect_from(self, session: Session) -> None:
        """Ends the batches that this session has marked, and takes in what it has told of."""
        with self.state.lock:
            self._intake.collect(session)

    def collect(self) -> None:
        """Ends all batches that their writers have marked, and frees what is read no more."""
        with self.state.lock:
            self._intake.collect(*self.state.sessions)
            self.state.free_retired()

    def lend(self, session: Session, size_bytes: int, wanted: int) -> tuple[int, list[bytes]]:
        """Slots for blocks of this size, lent ahead of need: at most `wanted`, or what a session
        may have. The size of the slots, and their places."""
        slot = slot_bytes(size_bytes)
        wanted = min(wanted, max(0, self._lent_bytes_max - session.lent_bytes) // slot)
        places = self.room.take_ahead(slot, wanted) if wanted else []
        with self.state.lock:
            session.lend(places, slot)
        return slot, places

    def take_back(self, session: Session, places: Sequence[bytes]) -> None:
        """Slots that were lent and are not used."""
        with self.state.lock:
            self.state.slabs.give(session.take_back(places))

    # ---- giving up -----------------------------------------------------------------------------

    def evict(self, keys: Sequence[bytes]) -> bytes:
        """Drops blocks, in memory and on disk; a state for each, DROPPED or ABSENT. What somebody
        reads stays readable for him and is freed after."""
        on_disk = [key for key in keys if self._spill.contains(key)]
        self._spill.remove(on_disk)
        with self.state.lock:
            self._intake.collect(*self.state.sessions)
            gone = [key for key in dict.fromkeys(keys) if key in self.state.index.entries]
            self.state.remove(gone)
            if gone:
                self._reporter.evicted(Tier.DRAM, gone)
        dropped = {*gone, *on_disk}
        return bytes(State.DROPPED if key in dropped else State.ABSENT for key in keys)

    def drop_damaged(self, keys: Sequence[bytes]) -> bytes:
        """Looks at blocks that somebody found damaged, and drops those that are: a state for each,
        DROPPED or ABSENT (it was not here, or is good). Those on disk are checked when read."""
        session = Session("check")
        self.join(session)
        found = split_entries(self.peek(keys, session), 0, len(keys), 1 << 31)
        with self.state.lock:
            made = self.state.index.digests
            known = {k: e for k, e in zip(keys, found, strict=True) if e != NOWHERE and k in made}
            digests = {key: made[key] for key in known}
        damaged = {k: entry for k, entry in known.items() if self.state.hash(entry) != digests[k]}
        self.leave(session)
        with self.state.lock:
            entries = self.state.index.entries
            gone = [key for key, entry in damaged.items() if entries.get(key) == entry]
            self.state.remove(gone)
            if gone:
                self._reporter.damaged(Tier.DRAM, gone)
        for key in gone:
            _logger.warning("KV block %s in memory is damaged: it is dropped", name_key(key))
        return bytes(State.DROPPED if key in gone else State.ABSENT for key in keys)

    def keys_of(self, beginning: bytes) -> list[bytes]:
        """The blocks, in memory and on disk, whose keys begin so."""
        with self.state.lock:
            self._intake.collect(*self.state.sessions)
            found = [key for key in self.state.index.entries if key.startswith(beginning)]
        return list(dict.fromkeys([*found, *self._spill.keys_of(beginning)]))

    def join(self, session: Session) -> None:
        """A connection begins."""
        with self.state.lock:
            self.state.sessions.add(session)

    def leave(self, session: Session) -> None:
        """A connection has ended: what it was writing is dropped, what it read may go."""
        state = self.state
        with state.lock:
            state.sessions.discard(session)
            self._intake.collect(session)
            state.ringing.discard(session)
            for batch in session.batches.values():
                state.stop_writing(batch.keys)
                state.slabs.give([entry[:8] for entry in batch.entries])
            state.slabs.give(session.take_back(list(session.lent)))
            session.batches.clear()
            session.leases.clear()
            state.free_retired()

    def stats(self) -> BlockStats:
        """Counts, for diagnosis and for tests of leaks."""
        state = self.state
        with state.lock:
            self._intake.collect(*state.sessions)
            state.free_retired()
            return BlockStats(
                blocks=len(state.index.entries),
                slab_bytes=state.slabs.held_bytes,
                free_bytes=state.slabs.free_bytes(),
                sessions=len(state.sessions),
                pinned=len(state.pinned()),
                retired=len(state.retired),
                writing=len(state.writing),
                lent=sum(len(session.lent) for session in state.sessions),
                unhashed=sum(map(len, state.unhashed)),
            )
