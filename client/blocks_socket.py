"""One connection to the local mover's socket for blocks. Blocks the calling thread; one at a time.

The mover lends slots ahead of need: a put writes into them without asking where, and tells of it
in the connection's ring without waking anybody. A get asks nobody when all its blocks are on the
board. Else both cost one round trip.
"""

from __future__ import annotations

import os
import socket
import time
from array import array
from collections.abc import Sequence
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from tensorcast.client.blocks_board import SCRATCH, Board, Pins, register_for_barriers
from tensorcast.client.blocks_frames import FrameChannel
from tensorcast.client.blocks_memory import Leases, Slabs, write_blocks
from tensorcast.client.blocks_pieces import Place
from tensorcast.client.blocks_ring import PutRing
from tensorcast.schema.block_board import PIN_BYTES
from tensorcast.schema.block_ring import MEMORY_BYTES
from tensorcast.schema.block_wire import (
    ENTRY,
    HEAD,
    MAPPED_SIZES,
    NOWHERE,
    PRIORITY_SHIFT,
    Elsewhere,
    Flag,
    Head,
    Op,
    State,
    TicketRequest,
    pack_entries,
    pack_frame,
    pack_numbers,
    pack_request,
    pack_requests,
    parse_elsewhere,
    parse_entries,
    parse_head,
    parse_spares,
    split_digests,
)
from tensorcast.schema.blocks import DIGEST_BYTES
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.ids import NodeId
from tensorcast.schema.tickets import Challenge

ANSWER_S: Final = 30.0
USED_KEYS_MAX: Final = 16 << 10
"""The mover is told what was found on the board each half second, by a thread of the client's own;
by the caller itself only after so many keys."""

OVERLAP_BYTES: Final = 256 << 10
"""From so many bytes on, a put's copy hides the mover's answer."""

_SIZE = attrgetter("nbytes")
_ABSENT: Final = int.from_bytes(NOWHERE[:8], "little")


class Found(NamedTuple):
    """Where blocks lie in this process' memory (0: not here) and how long they are. `tag`: of the
    pin; 0 for one that is not kept beyond the call."""

    tag: int
    addresses: Sequence[int]
    sizes: Sequence[int]
    digests: Sequence[bytes]
    elsewhere: Elsewhere | None
    places: Sequence[int]


class BlockConnection(FrameChannel):
    """To the local mover. `spares`: slots lent ahead, by the size of blocks. `is_sure`: blocks are
    written before the mover has said that it wants them, because it wanted the last ones.
    `may_ring`: the mover offers rings."""

    def __init__(self, connected: socket.socket, node: str, answer_s: float = ANSWER_S) -> None:
        super().__init__(connected, node, answer_s)
        self.slabs = Slabs("")
        self.spares: dict[int, list[int]] = {}
        self.is_sure = True
        self.may_ring = False
        self.used_at = time.monotonic()
        self._leases = Leases(connected)
        self._released = self._leases.released
        self._tag = 0
        self._owed = b""
        self._pins: Pins | None = None
        self._board: Board | None = None
        self._ring: PutRing | None = None

    # ---- reading -------------------------------------------------------------------------------

    def find(
        self, keys: Sequence[bytes], *, shortly: bool, digests: bool, elsewhere: bool
    ) -> Found:
        """Looks blocks up and pins them: `shortly` until `release`, or until the end of their
        `views`. On the board, if all are there, else by asking."""
        if not digests:
            found = self._find_on_board(keys, shortly)
            if found is not None:
                return found
        return self._ask(keys, digests, elsewhere)

    def shows_none(self, keys: Sequence[bytes]) -> bool:
        """Whether there is a board and none of these blocks is on it; nothing is asked."""
        board = self._board
        return board is not None and not self.slabs.has_ended and board.shows_none(keys)

    def _find_on_board(self, keys: Sequence[bytes], shortly: bool) -> Found | None:
        board, pins = self._board, self._pins
        if board is None or pins is None or not 0 < len(keys) <= SCRATCH:
            return None
        if self.slabs.has_ended:
            raise self._lost()
        before = board.removals
        cells = board.look_up(keys)
        if cells is None:
            return None
        places, sizes = cells
        tag = 0
        if shortly:
            pins.pin_shortly(array("Q", places))
        else:
            tag = self._next_tag()
            if not pins.hold(tag, array("Q", places)):
                return None
        found = Found(tag, (), sizes, (), None, places)
        if board.removals != before:  # perhaps a block of these: ask
            self.release(found)
            return None
        self._note_use(keys)
        return Found(tag, self._addresses(places), sizes, (), None, places)

    def _note_use(self, keys: Sequence[bytes]) -> None:
        used = self.slabs.used
        used.append(keys)
        if len(used) * len(keys) >= USED_KEYS_MAX:
            self.flush()

    def _ask(self, keys: Sequence[bytes], digests: bool, elsewhere: bool) -> Found:
        tag = self._next_tag()
        flags = (Flag.DIGESTS if digests else 0) | (Flag.ELSEWHERE if elsewhere else 0)
        self.send(self._take_owed() + pack_request(Op.FIND, keys, flags=flags, tag=tag))
        head, at = self.receive(Op.FOUND)
        count, end = len(keys), at + head.size
        if head.total != count or head.tag != tag:
            raise Corrupt("The mover answered another request.")
        flat = parse_entries(self.buffer, at, count, end)
        at += count * ENTRY.size
        made: Sequence[bytes] = ()
        if head.flags & Flag.DIGESTS:
            made = split_digests(self.buffer, at, count, end)
            at += count * DIGEST_BYTES
        other = None
        if head.flags & Flag.ELSEWHERE:
            other = parse_elsewhere(self.buffer, at, count, end)
        places = flat[::2]
        return Found(tag, self._addresses(places), flat[1::2], made, other, places)

    def views(self, found: Found) -> list[memoryview | None]:
        """Read-only views of what was found; its pin ends with the last of them."""
        memory = self._leases.hold(found.tag, self.slabs.keep(found.places))
        if 0 not in found.addresses:
            return [memory[a : a + n] for a, n in zip(found.addresses, found.sizes, strict=True)]
        return [
            memory[address : address + size] if address else None
            for address, size in zip(found.addresses, found.sizes, strict=True)
        ]

    def release(self, found: Found) -> None:
        """What was found is not read any more. The mover sees it, or is told with the next
        request."""
        if found.tag:
            self._leases.end(found.tag)
        elif self._pins is not None:
            self._pins.unpin_shortly(len(found.sizes))

    def ask_states(self, op: Op, keys: Sequence[bytes], *, elsewhere: bool = False) -> bytes:
        """A state for each block, of EXISTS or EVICT."""
        flags = Flag.ELSEWHERE if elsewhere else 0
        self.send(self._take_owed() + pack_request(op, keys, flags=flags))
        head, at = self.receive(Op.STATES)
        if head.size != len(keys):
            raise Corrupt("The mover answered another request.")
        return bytes(self.buffer[at : at + head.size])

    def evict_space(self, beginning: bytes) -> int:
        """How many blocks were dropped."""
        self.send(self._take_owed() + pack_frame(Op.EVICT, beginning, flags=Flag.SPACE))
        return self.receive(Op.STATES)[0].total

    def tell_damaged(self, keys: Sequence[bytes]) -> None:
        """These blocks do not match their digests."""
        self._owed += pack_request(Op.DAMAGED, keys)

    def sign_ticket(self, source: NodeId, challenge: Challenge) -> bytes:
        """The mover's ticket for the data port of another node."""
        asked = msgspec.json.encode(TicketRequest(source, challenge))
        self.send(self._take_owed() + pack_frame(Op.TICKET, asked))
        head, at = self.receive(Op.TICKETED)
        return bytes(self.buffer[at : at + head.size])

    def count(self) -> bytes:
        """The mover's counts, as JSON."""
        self.send(self._take_owed() + pack_frame(Op.COUNT))
        head, at = self.receive(Op.COUNTED)
        return bytes(self.buffer[at : at + head.size])

    # ---- writing -------------------------------------------------------------------------------

    def put(
        self,
        keys: Sequence[bytes],
        sources: Sequence[Place],
        priority: int,
        parts: Sequence[tuple[int, int]],
    ) -> bytes:
        """A state for each block: WANTED (it is stored now), or why not. `parts`: ranges of blocks
        for one request each."""
        states: list[bytes] = []
        for first, stop in parts:
            part = sources[first:stop]
            size = part[0].nbytes
            is_even = len(set(map(_SIZE, part))) == 1
            has_slots = is_even and self._has_slots(size, len(part))
            if has_slots and self._put_quietly(keys[first:stop], part, priority):
                states.append(bytes(len(part)))
                continue
            put = self._put_ahead if has_slots and self.is_sure else self._put_asked
            found = put(keys[first:stop], part, priority)
            self.slabs.asked.add(keys[first:stop])
            self.is_sure = found.count(State.EXISTED) * 2 < len(part)
            states.append(found)
        return b"".join(states)

    def _has_slots(self, size: int, count: int) -> bool:
        """Whether so many slots for blocks of this size are lent."""
        if len(self.spares.get(size, ())) >= count:
            return True
        self._take_lent()
        return len(self.spares.get(size, ())) >= count

    def _take_lent(self) -> None:
        if self._ring is None:
            return
        places, sizes = self._ring.take_lent()
        for size in set(sizes):
            same = [place for place, of in zip(places, sizes, strict=True) if of == size]
            self.spares.setdefault(size, []).extend(same)

    def flush(self) -> None:
        """Tells what is still to be told."""
        frames = self._take_owed()
        if frames:
            self.send(frames)

    def return_spares(self) -> None:
        """Gives the slots back that were lent ahead."""
        self._take_lent()
        for places in self.spares.values():
            if places:
                self._owed += pack_numbers(Op.RETURN, "Q", places)
        self.spares.clear()

    def _put_quietly(self, keys: Sequence[bytes], sources: Sequence[Place], priority: int) -> bool:
        """Writes into slots that were lent, and tells of it in the ring: all blocks are stored, and
        nobody was woken. False, and nothing was written, unless that can be: one of the blocks may
        be there already, or there is no room in the ring."""
        ring, board, count = self._ring, self._board, len(keys)
        if self.slabs.has_ended:
            raise self._lost()
        if ring is None or board is None or len(set(keys)) < count:
            return False
        ring.tidy()  # what the mover has taken in from there is on the board
        if self.slabs.tells_of(keys) or not board.shows_none(keys):
            return False
        size = sources[0].nbytes
        spares = self.spares[size]
        flat = [size] * (2 * count)
        flat[::2] = places = spares[:count]
        flags = Flag.PROPOSED | Flag.WRITTEN | priority << PRIORITY_SHIFT
        frame = pack_request(Op.STORE, keys, pack_entries(flat), flags=flags)
        if not ring.has_room(len(frame)):
            return False
        addresses = self._addresses(places, write=True)
        del spares[:count]
        write_blocks(addresses, sources)
        ring.write(frame, keys)
        if not ring.is_watched:
            self._owed += pack_frame(Op.WATCH)
        return True

    def _put_ahead(self, keys: Sequence[bytes], sources: Sequence[Place], priority: int) -> bytes:
        """Writes into slots that were lent. Few bytes first, and then tells the keys; many while
        the mover looks at the keys, and then marks in shared memory that they are written: nobody
        is woken for it."""
        count, size, tag = len(keys), sources[0].nbytes, self._next_tag()
        spares = self.spares[size]
        places = spares[:count]
        del spares[:count]
        addresses = self._addresses(places, write=True)
        flat = [size] * (2 * count)
        flat[::2] = places
        is_small = self._pins is None or count * size < OVERLAP_BYTES
        flags = Flag.PROPOSED | (Flag.WRITTEN if is_small else 0) | priority << PRIORITY_SHIFT
        if is_small:
            write_blocks(addresses, sources)
        request = pack_request(Op.STORE, keys, pack_entries(flat), flags=flags, tag=tag)
        self.send(self._take_owed() + request)
        if not is_small:
            write_blocks(addresses, sources)
        head, at = self.receive(Op.STORED)
        end = at + head.size
        states = bytes(self.buffer[at : at + count])
        self._take_spares(at + count, end, size)
        if any(states):
            unused = [place for place, state in zip(places, states, strict=True) if state]
            spares[:0] = unused
        if not is_small and self._pins is not None:
            self._pins.set_mark(tag)
        return states

    def _put_asked(self, keys: Sequence[bytes], sources: Sequence[Place], priority: int) -> bytes:
        """Asks where to write what is wanted, then writes. The end is told with the next request or
        `flush`: whoever looks for such a block meanwhile waits for it."""
        count, tag = len(keys), self._next_tag()
        flat = [_ABSENT] * (2 * count)
        flat[1::2] = [source.nbytes for source in sources]
        flags = priority << PRIORITY_SHIFT
        self._open_ring()
        request = pack_request(Op.STORE, keys, pack_entries(flat), flags=flags, tag=tag)
        self.send(self._take_owed() + request)
        head, at = self.receive(Op.STORED)
        end = at + head.size
        states = bytes(self.buffer[at : at + count])
        places = parse_entries(self.buffer, at + count, count, end)[::2]
        self._take_spares(at + count + count * ENTRY.size, end, sources[0].nbytes)
        addresses = self._addresses(places, write=True)
        wanted = [at for at, state in enumerate(states) if state == State.WANTED]
        write_blocks([addresses[at] for at in wanted], [sources[at] for at in wanted])
        self._owed = pack_frame(Op.FILLED, tag=tag)
        return states

    def _take_spares(self, at: int, end: int, size: int) -> None:
        _, places = parse_spares(self.buffer, at, end)
        self.spares.setdefault(size, []).extend(places)

    # ---- the rest ------------------------------------------------------------------------------

    @property
    def owes(self) -> bool:
        """Whether there is something to tell."""
        return bool(self._released or self._owed or self.slabs.used)

    def close(self) -> None:
        """The mover forgets what was lent here; what views show stays pinned until they are gone.
        Safe to repeat."""
        self._leases.close()
        if self._ring is not None:
            self.slabs.rings.discard(self._ring)

    def abandon(self) -> None:
        """In a forked child: pins and board are left to the parent, too."""
        super().abandon()
        self._pins = self._board = self._ring = self._leases.pins = None

    def _next_tag(self) -> int:
        self._tag = self._tag % 0xFFFF_FFFF + 1
        return self._tag

    def _take_owed(self) -> bytes:
        """Frames that have no answer, to be sent before the next one that has."""
        owed, self._owed = self._owed, b""
        count = len(self._released)
        if count:
            tags = [self._released.popleft() for _ in range(count)]
            owed += pack_numbers(Op.RELEASE, "I", tags)
        if self.slabs.used:
            owed += pack_requests(Op.USED, self.slabs.take_used())
        return owed

    def _addresses(self, places: Sequence[int], *, write: bool = False) -> list[int]:
        while True:
            try:
                return self.slabs.addresses(places, write=write)
            except KeyError as error:
                self._map(int(error.args[0]))

    def _map(self, number: int) -> None:
        """Has the mover hand a slab over. Only between an answer and the next request."""
        self.send(pack_frame(Op.MAP, tag=number))
        head, at, descriptors = self._receive_descriptors(2)
        if head.tag != number or len(descriptors) != 2:
            for descriptor in descriptors:
                os.close(descriptor)
            raise Corrupt(f"The mover did not hand slab {number} over.")
        self.slabs.add(number, descriptors, MAPPED_SIZES.unpack_from(self.buffer, at)[0])

    def open_words(self) -> None:
        """Gets the memory in which this connection says what it reads and has written, and the
        board. Once, before anything else is asked."""
        can_pin = register_for_barriers()
        self.send(pack_frame(Op.MARK))
        _, at, descriptors = self._receive_descriptors(2)
        try:
            pins_bytes, board_bytes = MAPPED_SIZES.unpack_from(self.buffer, at)
            if len(descriptors) != 2 or pins_bytes != PIN_BYTES:
                raise Corrupt("The mover did not hand its pins over.")
            self._pins = self._leases.pins = Pins(descriptors[0])
            if board_bytes and can_pin:
                self._board = self.slabs.open_board(descriptors[1], board_bytes)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _open_ring(self) -> None:
        """Gets the memory of the ring, if the mover offers one and there is none yet."""
        if self._ring is not None or self._board is None or not self.may_ring:
            return
        self.send(pack_frame(Op.RING))
        _, at, descriptors = self._receive_descriptors(1)
        try:
            size_bytes, _ = MAPPED_SIZES.unpack_from(self.buffer, at)
            if len(descriptors) != 1 or size_bytes != MEMORY_BYTES:
                raise Corrupt("The mover did not hand a ring over.")
            self._ring = PutRing(descriptors[0])
            self.slabs.rings.add(self._ring)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _receive_descriptors(self, count: int) -> tuple[Head, int, list[int]]:
        size = HEAD.size + MAPPED_SIZES.size
        try:
            body, descriptors, _, _ = socket.recv_fds(self.socket, size, count)
        except BlockingIOError as error:
            raise self._late() from error
        except OSError as error:
            raise self._lost() from error
        if len(body) != size:
            raise self._lost()
        self.buffer[:size] = body
        return parse_head(self.buffer), HEAD.size, descriptors
