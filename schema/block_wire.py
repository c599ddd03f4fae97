"""What is said about KV blocks, as bytes: on a node's own socket for blocks, and over TCP.

    frame      size of the body, operation, flags, bytes of each key, count, tag; then the body
    body       the keys (all of one length, or lengths first), then what the operation adds

All integers are little-endian: they are the machine's own. The application asks; what has an
answer is answered in order, with the same tag. Pure; every length is checked before it is used.

    FIND       keys                      FOUND: an entry for each key; digests; where else they are
    RELEASE    tags of FINDs             (no answer) their blocks are not read any more
    STORE      keys, entries             STORED: a state for each key; entries; slots lent ahead
    FILLED     indexes that failed       (no answer) the other blocks of this STORE are written now
    RETURN     places                    (no answer) slots that were lent ahead and are not used
    EXISTS     keys                      STATES: where each is
    EVICT      keys, or a space          STATES: whether each was dropped; for a space the count,
                                         KEYS_MAX when there may be more
    DAMAGED    keys                      (no answer) bytes that did not match their digest; over TCP
                                         STATES: whether each was found so too, and dropped
    MAP        tag: number of a slab     MAPPED, with two descriptors: to read, to write
    MARK       nothing                   MAPPED, with two descriptors: of the connection's mark and
                                         pins, and of the board (size 0: there is none)
    USED       keys                      (no answer) blocks that were found on the board
    RING       nothing                   MAPPED, with one descriptor: of the connection's ring
    WATCH      nothing                   (no answer) the ring is to be looked at for a while
    COUNT      nothing                   COUNTED: JSON of the counts
    TICKET     JSON of a TicketRequest   TICKETED: the ticket for another node's data port
    FETCH      keys (TCP)                FOUND as above, then the bytes of those found; in batches
    SEND       keys, entries, digests    STORED, then the bytes of those wanted; then STATES

Over TCP a Welcome may bring a challenge: a ticket (`schema/tickets.py`) answers it, in an opening
of its own, and another Welcome follows.

Over TCP every frame ends with a checksum of itself, which its size counts (`seal`): a bit that
flips on the way in a key, a size or a digest would else be another block's good answer.

An entry is a place and a size; a place is the number of a slab and an offset in it. MAPPED brings
two sizes of 64 bits. Mark, pins and board: `schema/block_board.py`. The application writes the tag
of a STORE to the mark when its blocks are written, in place of a FILLED. With a ring it writes the
STORE there when its blocks are written, and has no answer (`schema/block_ring.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
import xxhash

from tensorcast.schema.blocks import DIGEST_BYTES, PACKED_BYTES_MAX, PACKED_BYTES_MIN
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.ids import NodeId
from tensorcast.schema.tickets import Challenge

SOCKET_SUFFIX = ".kv"
"""The socket for blocks lies beside the mover's own, with this at the end of its name."""

MAGIC = b"TCKVBL"
VERSION = 2
OPENING = struct.Struct(">6sHI")
"""As the pull protocol's: magic, version, size of the JSON Greeting or Welcome that follows."""

GREETING_BYTES_MAX = 1024
FRAME_BYTES_MAX = 128 << 10
"""More than a thousand keys, the longest that can be, or what is answered to them."""

FRAME_KEYS = 1024
"""Who has more to say uses several frames, of so many keys each."""

FRAME_S_MAX = 20.0
"""A frame that has begun must be whole within so long."""

KEYS_MAX = 1 << 16
ADDRESSES_MAX = 254
ADDRESS_BYTES_MAX = 255
FETCH_BLOCKS = 64
"""The blocks of a FETCH are found, digested and sent so many at a time."""

CHECK_BYTES = 8
"""XXH3-64 of all of a frame that stands before it."""

CHOICES = 2
"""How many other nodes are named for a block that is not here."""

HEAD = struct.Struct("<IBBHII")
ENTRY = struct.Struct("<QI")
PLACE = struct.Struct("<Q")
MAPPED_SIZES = struct.Struct("<QQ")
_COUNTS = struct.Struct("<II")
OFFSET_BITS = 40
NOWHERE = ENTRY.pack((1 << 64) - 1, 0)
"""The entry of a block that is not here, or of one that is not wanted."""

NONE = 0xFF


class Op(IntEnum):
    FIND = 1
    RELEASE = 2
    STORE = 3
    FILLED = 4
    RETURN = 5
    EXISTS = 6
    EVICT = 7
    DAMAGED = 8
    MAP = 9
    COUNT = 10
    FETCH = 11
    SEND = 12
    MARK = 13
    USED = 14
    TICKET = 15
    RING = 16
    WATCH = 17
    FOUND = 65
    STORED = 66
    STATES = 67
    MAPPED = 68
    COUNTED = 69
    REFUSED = 70
    TICKETED = 71


class Flag:
    """DIGESTS: digests are wanted, or follow. PROPOSED: the entries of a STORE are slots that were
    lent, else only sizes count and the answer brings the places. WRITTEN: and the blocks are in
    them already, no FILLED follows. ELSEWHERE: other nodes are wanted, or follow. SPACE: not keys
    but a whole space. LAST: the last batch of a FETCH's answer. The four upper bits of a STORE hold
    the priority. Plain numbers: an IntFlag costs microseconds."""

    DIGESTS: Final = 1
    PROPOSED: Final = 2
    ELSEWHERE: Final = 4
    SPACE: Final = 8
    LAST: Final = 8
    WRITTEN: Final = 8


PRIORITY_SHIFT = 4
PRIORITY_MAX = 15


class State(IntEnum):
    """Of one block, in answers. WANTED: it is to be written (and so stored). ELSEWHERE: another
    node has it. NO_ROOM: everything is in use. TOO_LARGE: no slab can hold it. BAD_DIGEST: what
    came does not match."""

    WANTED = 0
    EXISTED = 1
    NO_ROOM = 2
    TOO_LARGE = 3
    BAD_DIGEST = 4
    ABSENT = 5
    IN_MEMORY = 6
    ON_DISK = 7
    ELSEWHERE = 8
    DROPPED = 9


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    """Who speaks. `cluster` must be the mover's; `node` too, unless empty."""

    cluster: str
    actor: str
    node: str = ""


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """The node, and which life of its mover; with `refusal`, one sentence on why it will not
    serve. `challenge` is to be answered by a ticket. `rings`: the connection may have a ring
    (RING)."""

    node: str
    life: str = ""
    refusal: str = ""
    challenge: Challenge | None = None
    rings: bool = False


class TicketRequest(msgspec.Struct, frozen=True):
    """An application asks its node's mover to sign for it what node `source` wants signed."""

    source: NodeId
    challenge: Challenge


class Head(NamedTuple):
    """The beginning of a frame. `size` is that of the body; `total` says how many keys."""

    size: int
    op: int
    flags: int
    key_bytes: int
    total: int
    tag: int


def pack_opening(message: Greeting | Welcome) -> bytes:
    """The first bytes that a side sends."""
    return pack_ticket(msgspec.json.encode(message))


def pack_ticket(body: bytes) -> bytes:
    """A ticket, or another message of an opening."""
    return OPENING.pack(MAGIC, VERSION, len(body)) + body


def parse_ticket_request(body: bytes) -> TicketRequest:
    """Raises Corrupt."""
    try:
        return msgspec.json.decode(body, type=TicketRequest)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"The request for a ticket cannot be read: {error}.") from error


def parse_opening(opening: bytes) -> int:
    """The size of the JSON that follows. Raises Corrupt when the peer speaks something else."""
    magic, version, size = OPENING.unpack(opening)
    if magic != MAGIC or version != VERSION or size > GREETING_BYTES_MAX:
        raise Corrupt(
            f"The peer does not speak version {VERSION} of the protocol for blocks.",
            hint="Client and mover may be of different releases.",
        )
    return int(size)


def parse_greeting(body: bytes) -> Greeting:
    """Raises Corrupt."""
    try:
        return msgspec.json.decode(body, type=Greeting)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"The greeting cannot be read: {error}.") from error


def parse_welcome(body: bytes) -> Welcome:
    """Raises Corrupt."""
    try:
        return msgspec.json.decode(body, type=Welcome)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"The welcome cannot be read: {error}.") from error


# ---- frames ------------------------------------------------------------------------------------


def pack_frame(
    op: Op, rest: bytes = b"", *, flags: int = 0, count: int = 0, tag: int = 0, key_bytes: int = 0
) -> bytes:
    """A whole frame with this body."""
    return HEAD.pack(len(rest), op, flags, key_bytes, count, tag) + rest


def pack_request(
    op: Op, keys: Sequence[bytes], rest: bytes = b"", *, flags: int = 0, tag: int = 0
) -> bytes:
    """A frame whose body begins with keys."""
    key_bytes, packed = join_keys(keys)
    size = len(packed) + len(rest)
    return HEAD.pack(size, op, flags, key_bytes, len(keys), tag) + packed + rest


def pack_requests(op: Op, keys: Sequence[bytes]) -> bytes:
    """Frames of an operation that has no answer, as many as these keys need."""
    parts = range(0, len(keys), FRAME_KEYS)
    return b"".join([pack_request(op, keys[at : at + FRAME_KEYS]) for at in parts])


def pack_numbers(op: Op, form: str, numbers: Sequence[int]) -> bytes:
    """Frames of an operation that has no answer, on numbers of this form (of `struct`), as many
    frames as they need."""
    parts = (numbers[at : at + FRAME_KEYS] for at in range(0, len(numbers), FRAME_KEYS))
    return b"".join(
        [pack_frame(op, struct.pack(f"<{len(p)}{form}", *p), count=len(p)) for p in parts]
    )


def parse_head(buffer: bytes | bytearray | memoryview, at: int = 0) -> Head:
    """The head of a frame. Raises Corrupt for sizes beyond the limits."""
    head = Head._make(HEAD.unpack_from(buffer, at))
    if head.size > FRAME_BYTES_MAX or head.total > KEYS_MAX or head.key_bytes > PACKED_BYTES_MAX:
        raise Corrupt(f"A frame of {head.size} bytes with {head.total} keys is beyond the limits.")
    return head


def seal(frame: bytes) -> bytes:
    """The frame with a checksum of itself, as it goes over TCP."""
    size = int.from_bytes(frame[:4], "little") + CHECK_BYTES
    checked = size.to_bytes(4, "little") + frame[4:]
    return checked + xxhash.xxh3_64_digest(checked)


def open_seal(buffer: bytearray, at: int, head: Head) -> Head:
    """The head of a sealed frame whose body begins at `at`, as if it had no seal. Raises Corrupt
    when it is not what was sent."""
    stop = at + head.size - CHECK_BYTES
    if head.size < CHECK_BYTES:
        raise Corrupt("A frame about blocks is shorter than its checksum.")
    with memoryview(buffer) as memory:
        made = xxhash.xxh3_64_digest(memory[at - HEAD.size : stop])
    if made != buffer[stop : stop + CHECK_BYTES]:
        raise Corrupt("A frame about blocks was changed on its way.")
    size, op, flags, key_bytes, total, tag = head
    return Head(size - CHECK_BYTES, op, flags, key_bytes, total, tag)


def join_keys(keys: Sequence[bytes]) -> tuple[int, bytes]:
    """The length that all keys have (0: several) and their bytes, with lengths first if need be."""
    lengths = set(map(len, keys))
    if len(lengths) == 1:
        return lengths.pop(), b"".join(keys)
    return 0, bytes(map(len, keys)) + b"".join(keys)


def split_keys(
    buffer: bytes | bytearray | memoryview, at: int, head: Head
) -> tuple[tuple[bytes, ...], int]:
    """The keys that a body at `at` begins with, and where they end. Raises Corrupt."""
    count, length = head.total, head.key_bytes
    if length:
        end = at + count * length
        if length < PACKED_BYTES_MIN or count * length > head.size:
            raise Corrupt("A frame is shorter than its keys.")
        return _splitter(length, count).unpack_from(buffer, at), end
    return _split_uneven(buffer, at, head)


def _split_uneven(
    buffer: bytes | bytearray | memoryview, at: int, head: Head
) -> tuple[tuple[bytes, ...], int]:
    lengths = bytes(buffer[at : at + head.total])
    if head.total > head.size or head.total + sum(lengths) > head.size:
        raise Corrupt("A frame is shorter than its keys.")
    found: list[bytes] = []
    at += head.total
    for length in lengths:
        if not PACKED_BYTES_MIN <= length <= PACKED_BYTES_MAX:
            raise Corrupt(f"A block's key of {length} bytes cannot be.")
        found.append(bytes(buffer[at : at + length]))
        at += length
    return tuple(found), at


@lru_cache(maxsize=64)
def _splitter(length: int, count: int) -> struct.Struct:
    return struct.Struct(f"{length}s" * count)


# ---- entries -----------------------------------------------------------------------------------


def split_entries(
    buffer: bytes | bytearray | memoryview, at: int, count: int, end: int
) -> tuple[bytes, ...]:
    """`count` entries at `at`, each as bytes. Raises Corrupt when they do not end before `end`."""
    if at + count * ENTRY.size > end:
        raise Corrupt("A frame is shorter than its entries.")
    return _splitter(ENTRY.size, count).unpack_from(buffer, at)


def parse_entries(
    buffer: bytes | bytearray | memoryview, at: int, count: int, end: int
) -> tuple[int, ...]:
    """`count` entries at `at`, flat: place, size, place, size ... Raises Corrupt."""
    if at + count * ENTRY.size > end:
        raise Corrupt("A frame is shorter than its entries.")
    return _flat_entries(count).unpack_from(buffer, at)


@lru_cache(maxsize=64)
def _flat_entries(count: int) -> struct.Struct:
    return struct.Struct("<" + "QI" * count)


def pack_entries(flat: Sequence[int]) -> bytes:
    """Entries from place, size, place, size ..."""
    return _flat_entries(len(flat) // 2).pack(*flat)


def entry_sizes(entries: Sequence[bytes]) -> tuple[int, ...]:
    """The sizes in entries that are bytes."""
    return _sizes(len(entries)).unpack(b"".join(entries))


def entry_places(entries: Sequence[bytes]) -> tuple[bytes, ...]:
    """The places in entries that are bytes, as bytes."""
    return _places(len(entries)).unpack(b"".join(entries))


@lru_cache(maxsize=64)
def _sizes(count: int) -> struct.Struct:
    return struct.Struct("<" + "8xI" * count)


@lru_cache(maxsize=64)
def _places(count: int) -> struct.Struct:
    return struct.Struct("8s4x" * count)


def split_digests(
    buffer: bytes | bytearray | memoryview, at: int, count: int, end: int
) -> tuple[bytes, ...]:
    """`count` digests at `at`. Raises Corrupt."""
    if at + count * DIGEST_BYTES > end:
        raise Corrupt("A frame is shorter than its digests.")
    return _splitter(DIGEST_BYTES, count).unpack_from(buffer, at)


# ---- slots lent ahead --------------------------------------------------------------------------


def pack_spares(slot_bytes: int, places: Sequence[bytes]) -> bytes:
    """Slots of one size that are lent ahead."""
    return _COUNTS.pack(slot_bytes, len(places)) + b"".join(places)


def parse_spares(
    buffer: bytes | bytearray | memoryview, at: int, end: int
) -> tuple[int, tuple[int, ...]]:
    """The size of the slots, and their places. Raises Corrupt."""
    if at + _COUNTS.size > end:
        raise Corrupt("A frame is shorter than what it lends.")
    slot_bytes, count = _COUNTS.unpack_from(buffer, at)
    at += _COUNTS.size
    if at + count * PLACE.size > end:
        raise Corrupt("A frame is shorter than what it lends.")
    return slot_bytes, struct.unpack_from(f"<{count}Q", buffer, at)


# ---- where else --------------------------------------------------------------------------------


class Elsewhere(NamedTuple):
    """For blocks that are not here: addresses, and for each block which of them have it."""

    addresses: tuple[str, ...]
    choices: tuple[bytes, ...]

    def of(self, index: int) -> tuple[str, ...]:
        """The addresses to ask for the block of this index, the best first."""
        found = (row[index] for row in self.choices)
        return tuple(self.addresses[one] for one in found if one != NONE)


def pack_elsewhere(choices: Sequence[Sequence[str]]) -> bytes:
    """For each block the addresses of nodes that have it, the best first."""
    numbers: dict[str, int] = {}
    rows = [bytearray([NONE]) * len(choices) for _ in range(CHOICES)]
    for index, addresses in enumerate(choices):
        for row, address in zip(rows, addresses, strict=False):
            number = numbers.setdefault(address, len(numbers))
            if number < ADDRESSES_MAX and len(address) <= ADDRESS_BYTES_MAX:
                row[index] = number
    known = [text.encode()[:ADDRESS_BYTES_MAX] for text in list(numbers)[:ADDRESSES_MAX]]
    parts = [bytes((len(known),)), *(bytes((len(text),)) + text for text in known)]
    return b"".join([*parts, *rows])


def parse_elsewhere(
    buffer: bytes | bytearray | memoryview, at: int, count: int, end: int
) -> Elsewhere:
    """Raises Corrupt."""
    try:
        body = bytes(buffer[at:end])
        at, addresses = 1, []
        for _ in range(body[0]):
            stop = at + 1 + body[at]
            addresses.append(body[at + 1 : stop].decode("ascii"))
            at = stop
        rows = tuple(body[at + n * count : at + (n + 1) * count] for n in range(CHOICES))
    except (IndexError, UnicodeDecodeError) as error:
        raise Corrupt("The other nodes of blocks cannot be read.") from error
    numbers = set(b"".join(rows)) - {NONE}
    if any(len(row) != count for row in rows) or any(one >= len(addresses) for one in numbers):
        raise Corrupt("The other nodes of blocks cannot be read.")
    return Elsewhere(tuple(addresses), rows)
