"""Answers what applications ask about blocks: one frame in, at most one frame out.

No sockets here. `Desk` serves one connection, on the node or over TCP.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import msgspec

from tensorcast.movers.blocks.base import BlockLocator
from tensorcast.movers.blocks.session import Session
from tensorcast.movers.blocks.store import BlockStore
from tensorcast.schema.block_wire import (
    ENTRY,
    KEYS_MAX,
    NOWHERE,
    PLACE,
    PRIORITY_SHIFT,
    Flag,
    Head,
    Op,
    State,
    pack_elsewhere,
    pack_frame,
    pack_spares,
    parse_ticket_request,
    split_digests,
    split_entries,
    split_keys,
)
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.ids import NodeId
from tensorcast.schema.tickets import Challenge

Buffer = bytes | bytearray | memoryview
SignBlocks = Callable[[NodeId, Challenge, str], bytes]
"""The ticket for the blocks of a source that sent this challenge, for an application of this
login."""


class Desk:
    """Serves one session of `store`. Every method raises Corrupt for what makes no sense."""

    def __init__(
        self,
        store: BlockStore,
        locator: BlockLocator,
        session: Session,
        sign: SignBlocks | None = None,
    ) -> None:
        self.store = store
        self.session = session
        self._sign = sign
        self._locator = locator
        self._answers: dict[int, Callable[[Buffer, int, Head], bytes]] = {
            Op.FIND: self._find,
            Op.RELEASE: self._release,
            Op.STORE: self._store,
            Op.FILLED: self._filled,
            Op.RETURN: self._return,
            Op.EXISTS: self._exists,
            Op.EVICT: self._evict,
            Op.DAMAGED: self._damaged,
            Op.USED: self._used,
            Op.COUNT: self._count,
            Op.TICKET: self._ticket,
        }

    def answer(self, buffer: Buffer, at: int, head: Head) -> bytes:
        """The answer to the frame whose body begins at `at`; b"" when it has none."""
        answer = self._answers.get(head.op)
        if self.session.fault:
            raise Corrupt(self.session.fault)
        if answer is None:
            raise Corrupt(f"Operation {head.op} on blocks is unknown.")
        return answer(buffer, at, head)

    def tidy(self) -> None:
        """What an application need not wait for: the end of what it wrote before, and slots for
        what it will put. Raises Corrupt for what it wrote into its ring."""
        if self.session.batches or self.session.ring is not None:
            self.store.collect_from(self.session)
            if self.session.fault:
                raise Corrupt(self.session.fault)
            self.store.lend_ahead(self.session)

    def _find(self, buffer: Buffer, at: int, head: Head) -> bytes:
        keys, _ = split_keys(buffer, at, head)
        found = self.store.find(keys, self.session, head.tag)
        flags = 0
        rest = found
        if head.flags & Flag.DIGESTS:
            flags |= Flag.DIGESTS
            rest += b"".join(self.store.digests(keys, found))
        if head.flags & Flag.ELSEWHERE and (flags or NOWHERE in found):
            # Who wants digests may find a block damaged, and then needs another holder.
            flags |= Flag.ELSEWHERE
            rest += self.find_elsewhere(
                keys, NOWHERE * len(keys) if flags & Flag.DIGESTS else found
            )
        return pack_frame(Op.FOUND, rest, flags=flags, count=len(keys), tag=head.tag)

    def find_elsewhere(self, keys: Sequence[bytes], found: bytes) -> bytes:
        """Which other nodes have the blocks that are not here."""
        entries = split_entries(found, 0, len(keys), len(found))
        missing = [key for key, entry in zip(keys, entries, strict=True) if entry == NOWHERE]
        nodes = iter(self._locator.locate(missing))
        addresses: dict[str, str | None] = {}
        choices: list[list[str]] = []
        for entry in entries:
            known: list[str] = []
            for node in next(nodes) if entry == NOWHERE else ():
                if node not in addresses:
                    addresses[node] = self._locator.address(node)
                address = addresses[node]
                if address:
                    known.append(address)
            choices.append(known)
        return pack_elsewhere(choices)

    def _release(self, buffer: Buffer, at: int, head: Head) -> bytes:
        if head.total * 4 > head.size:
            raise Corrupt("A frame is shorter than its tags.")
        self.store.release(self.session, struct.unpack_from(f"<{head.total}I", buffer, at))
        return b""

    def _store(self, buffer: Buffer, at: int, head: Head) -> bytes:
        end = at + head.size
        keys, at = split_keys(buffer, at, head)
        entries = split_entries(buffer, at, len(keys), end)
        at += len(keys) * ENTRY.size
        digests: Sequence[bytes] = ()
        if head.flags & Flag.DIGESTS:
            digests = split_digests(buffer, at, len(keys), end)
        is_proposed = bool(head.flags & Flag.PROPOSED)
        is_written = bool(head.flags & Flag.WRITTEN)
        if is_written and not is_proposed:
            raise Corrupt("A connection has written where nothing was lent to it.")
        states, placed = self.store.begin(
            keys,
            entries,
            self.session,
            head.tag,
            is_proposed=is_proposed,
            has_mark=is_proposed and not is_written,
            priority=head.flags >> PRIORITY_SHIFT,
            digests=digests,
        )
        if is_written:
            self.store.commit(self.session, head.tag)
        rest = states if is_proposed else states + b"".join(placed)
        if keys:
            size = ENTRY.unpack(entries[0])[1]
            rest += pack_spares(*self.store.lend(self.session, size, len(keys)))
        return pack_frame(Op.STORED, rest, flags=head.flags, count=len(keys), tag=head.tag)

    def _filled(self, buffer: Buffer, at: int, head: Head) -> bytes:
        if head.total * 4 > head.size:
            raise Corrupt("A frame is shorter than its indexes.")
        failed = struct.unpack_from(f"<{head.total}I", buffer, at)
        self.store.commit(self.session, head.tag, failed)
        return b""

    def _return(self, buffer: Buffer, at: int, head: Head) -> bytes:
        if head.total * PLACE.size > head.size:
            raise Corrupt("A frame is shorter than its places.")
        body = bytes(buffer[at : at + head.total * PLACE.size])
        places = [body[n : n + PLACE.size] for n in range(0, len(body), PLACE.size)]
        self.store.take_back(self.session, places)
        return b""

    def _exists(self, buffer: Buffer, at: int, head: Head) -> bytes:
        keys, _ = split_keys(buffer, at, head)
        states = self.store.states(keys)
        if head.flags & Flag.ELSEWHERE:
            absent = [n for n, state in enumerate(states) if state == State.ABSENT]
            found = self._locator.locate([keys[n] for n in absent])
            for n, nodes in zip(absent, found, strict=True):
                if nodes:
                    states[n] = State.ELSEWHERE
        return pack_frame(Op.STATES, bytes(states), count=len(keys), tag=head.tag)

    def _evict(self, buffer: Buffer, at: int, head: Head) -> bytes:
        if head.flags & Flag.SPACE:
            beginning = bytes(buffer[at : at + head.size])
            some = self.store.keys_of(beginning)[:KEYS_MAX]
            self.store.evict(some)
            return pack_frame(Op.STATES, tag=head.tag, count=len(some))
        keys, _ = split_keys(buffer, at, head)
        states = self.store.evict(keys)
        return pack_frame(Op.STATES, states, count=len(keys), tag=head.tag)

    def _damaged(self, buffer: Buffer, at: int, head: Head) -> bytes:
        """An application found bytes that do not match. It is believed if the mover finds it too:
        one that writes into its own copy must not empty the cache."""
        keys, _ = split_keys(buffer, at, head)
        self.store.drop_damaged(keys)
        return b""

    def _used(self, buffer: Buffer, at: int, head: Head) -> bytes:
        keys, _ = split_keys(buffer, at, head)
        self.store.note_uses(keys)
        return b""

    def _ticket(self, buffer: Buffer, at: int, head: Head) -> bytes:
        """The mover speaks for the application: it says who that is."""
        wanted = parse_ticket_request(bytes(buffer[at : at + head.size]))
        if self._sign is None:
            raise Corrupt("Tickets are not signed here.")
        signed = self._sign(wanted.source, wanted.challenge, self.session.user)
        return pack_frame(Op.TICKETED, signed, tag=head.tag)

    def _count(self, buffer: Buffer, at: int, head: Head) -> bytes:
        return pack_frame(Op.COUNTED, msgspec.json.encode(self.store.stats()._asdict()))
