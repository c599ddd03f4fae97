"""What the two ends of a rail say to each other. Pure; nothing from a peer is used unchecked.

The greeting goes over TCP: magic, version, length, JSON, once in each direction. Everything else is
a message on the queue pair: how many receive buffers were emptied since the last message, then
MessagePack. Chunks are told as pairs `first, stop`.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import Final

import msgspec

from tensorcast.schema.chunks import CHUNKS_MAX, ChunkSet
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.ids import ArtifactId, NodeId
from tensorcast.schema.tickets import Challenge

MAGIC: Final = b"TCRDMA"
VERSION: Final = 1
GREETING_BYTES_MAX: Final = 4096
MESSAGE_BYTES_MAX: Final = 4096
"""The size of a receive buffer."""

BUFFERS: Final = 32
"""How many of them each end keeps posted: so many messages may be on their way to it."""

PUSH_BYTES: Final = 64 << 10
"""What is no larger may be pushed: the round trip of a grant would cost more than the bytes."""

LANDINGS: Final = 8
"""So many pushes may be on their way to an end."""

_CREDITS_SHIFT: Final = 24
"""The immediate value of a push: credits, then the low bits of the grant's number."""

DEVICES_MAX: Final = 1024
"""Most adapters of one node."""

RUNS_MAX: Final = 256
"""Most ranges of chunks in one message; what is left out is told or asked for later."""

OPENING = struct.Struct(">6sHI")
_CREDITS = struct.Struct(">H")


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A GID and its kind, as `nics.Gid` has them."""

    gid: str
    kind: str


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """How a queue pair is reached: its number and first packet, its port's addresses, and what the
    port can do. `others`: GIDs that may be used instead of `gid`, which is all that older releases
    look at. `reads_answered` is how many READs of the other end it answers at a time."""

    number: int
    packet: int
    link: str
    lid: int
    gid: str
    gid_kind: str
    mtu: int
    reads_answered: int
    reads_started: int
    others: tuple[Address, ...] = ()

    @property
    def addresses(self) -> tuple[Address, ...]:
        """All GIDs, best first."""
        first = (Address(gid=self.gid, kind=self.gid_kind),) if self.gid else ()
        return (*first, *self.others)


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Who calls, whom it believes to have reached, and the device of the peer that the rail shall
    end at, by its place in the peer's list."""

    cluster: str
    node: NodeId
    peer: NodeId
    device: int
    card: Card


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """The server's name, its life, how many devices it has, and the queue pair it made; with
    `refusal`, one sentence on why there is none (`is_final`: nor over another transport). A
    `challenge` is to be answered by a ticket; another one of these follows it."""

    node: NodeId
    life: str = ""
    devices: int = 0
    card: Card | None = None
    refusal: str = ""
    is_final: bool = False
    challenge: Challenge | None = None


class Ask(msgspec.Struct, frozen=True, tag="a", array_like=True):
    """Lend me bytes `start` .. `stop` - 1 of an artifact until I release grant `grant`; `waits`:
    tell me of chunks that come later. `landing` (address, key): or, if they are all there, put
    them there, with WRITE_WITH_IMM; that is the end of it."""

    grant: int
    artifact: ArtifactId
    start: int
    stop: int
    waits: bool
    landing: tuple[int, int] | None = None


class Grant(msgspec.Struct, frozen=True, tag="g", array_like=True):
    """They lie at `address`, under `key`; `runs`: the chunks that may be read now, None for all."""

    grant: int
    address: int
    key: int
    runs: tuple[tuple[int, int], ...] | None


class Later(msgspec.Struct, frozen=True, tag="l", array_like=True):
    """The artifact is not here yet, but on its way: a grant follows."""

    grant: int


class Refuse(msgspec.Struct, frozen=True, tag="r", array_like=True):
    """There is no grant. `is_lacking`: there is no such artifact here; otherwise `why` says why it
    cannot be read over RDMA."""

    grant: int
    is_lacking: bool
    why: str


class Holds(msgspec.Struct, frozen=True, tag="h", array_like=True):
    """The chunks of a grant that may be read by now, None for all."""

    grant: int
    runs: tuple[tuple[int, int], ...] | None


class Release(msgspec.Struct, frozen=True, tag="x", array_like=True):
    """The grant is not needed any more: its key ends."""

    grant: int


class Credits(msgspec.Struct, frozen=True, tag="c", array_like=True):
    """Nothing but the count that every message begins with."""


Message = Ask | Grant | Later | Refuse | Holds | Release | Credits


class Push(msgspec.Struct, frozen=True):
    """No message, but sent in turn with them, for it takes a buffer of the peer's as well: bytes
    from `source` to the peer's `target`, both (address, key). `number` is that of the request."""

    grant: int
    number: int
    source: tuple[int, int]
    size_bytes: int
    target: tuple[int, int]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def pack_greeting(greeting: Hello | Welcome) -> bytes:
    """The first bytes that a side sends."""
    body = msgspec.json.encode(greeting)
    return OPENING.pack(MAGIC, VERSION, len(body)) + body


def pack_ticket(ticket: bytes) -> bytes:
    """The answer to a challenge."""
    return OPENING.pack(MAGIC, VERSION, len(ticket)) + ticket


def parse_opening(head: bytes) -> int:
    """The size of the JSON that follows. Raises Corrupt when the peer speaks something else."""
    magic, version, size = OPENING.unpack(head)
    if magic != MAGIC or version != VERSION:
        raise Corrupt(f"The peer does not speak version {VERSION} of the RDMA protocol.")
    if size > GREETING_BYTES_MAX:
        raise Corrupt(f"The peer announces a greeting of {size} bytes.")
    return int(size)


def parse_hello(body: bytes) -> Hello:
    """Raises Corrupt."""
    try:
        hello = msgspec.json.decode(body, type=Hello)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"The peer's greeting cannot be read: {error}.") from error
    _check(hello.card)
    if not 0 <= hello.device < DEVICES_MAX:
        raise Corrupt(f"The peer asks for device {hello.device}.")
    return hello


def parse_welcome(body: bytes) -> Welcome:
    """Raises Corrupt."""
    try:
        welcome = msgspec.json.decode(body, type=Welcome)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"The peer's greeting cannot be read: {error}.") from error
    if welcome.card is not None:
        _check(welcome.card)
    if not 0 <= welcome.devices <= DEVICES_MAX:
        raise Corrupt(f"The peer claims to have {welcome.devices} devices.")
    return welcome


def _check(card: Card) -> None:
    """Raises Corrupt for addresses and numbers that cannot be."""
    try:
        for one in card.addresses:
            if ipaddress.IPv6Address(one.gid).scope_id is not None:
                raise ValueError(f"{one.gid} names an interface")
    except ValueError as error:
        raise Corrupt(f"The peer has an address that cannot be: {error}.") from error
    numbers = (card.number, card.packet, card.mtu, card.reads_answered, card.reads_started)
    if not all(_fits(number, 24) for number in numbers) or not _fits(card.lid, 16):
        raise Corrupt("The peer's queue pair has numbers that cannot be.")


def _fits(number: int, bits: int) -> bool:
    """Whether it is one that the verbs take in so many bits."""
    return 0 <= number < 1 << bits


def pack(credits_: int, message: Message) -> bytes:
    """A whole message. At most MESSAGE_BYTES_MAX, as `runs_of` limits what it tells."""
    return _CREDITS.pack(credits_) + _encoder.encode(message)


def parse(content: bytes | memoryview) -> tuple[int, Message]:
    """The credits and the message. Raises Corrupt."""
    if len(content) < _CREDITS.size:
        raise Corrupt("The peer sent a message without a head.")
    (credits_,) = _CREDITS.unpack_from(content)
    if credits_ > BUFFERS:
        raise Corrupt(f"The peer emptied {credits_} buffers of {BUFFERS}.")
    try:
        message = _decoder.decode(content[_CREDITS.size :])
    except msgspec.MsgspecError as error:
        raise Corrupt(f"The peer sent a message that cannot be read: {error}.") from error
    if not _is_possible(message):
        raise Corrupt("The peer sent a message with numbers that cannot be.")
    return credits_, message


def _is_possible(message: Message) -> bool:
    """Whether the verbs take its addresses and keys. (What the ranges of an artifact may be, its
    manifest says; which chunks, `chunks_of`.)"""
    if isinstance(message, Credits):
        return True
    place, numbers = None, [message.grant]
    if isinstance(message, Grant):
        place = message.address, message.key
    elif isinstance(message, Ask):
        place, numbers = message.landing, [message.grant, message.start, message.stop]
    address, key = place or (0, 0)
    return _fits(address, 64) and _fits(key, 32) and all(_fits(one, 63) for one in numbers)


def pack_push(credits_: int, grant: int) -> int:
    """The immediate value (32 bits) of a push."""
    return credits_ << _CREDITS_SHIFT | low_bits(grant)


def parse_push(value: int) -> tuple[int, int]:
    """The credits, and the low bits of the grant. Raises Corrupt."""
    credits_ = value >> _CREDITS_SHIFT
    if credits_ > BUFFERS:
        raise Corrupt(f"The peer emptied {credits_} buffers of {BUFFERS}.")
    return credits_, low_bits(value)


def low_bits(grant: int) -> int:
    """What a push tells of a grant's number."""
    return grant & ((1 << _CREDITS_SHIFT) - 1)


def runs_of(chunks: ChunkSet, total: int) -> tuple[tuple[int, int], ...] | None:
    """What a message tells of the chunks that are there; None when all are."""
    return None if len(chunks) >= total else chunks.ranges[:RUNS_MAX]


def chunks_of(runs: tuple[tuple[int, int], ...] | None) -> ChunkSet | None:
    """What a message told. Raises Corrupt for impossible numbers."""
    if runs is None:
        return None
    if len(runs) > RUNS_MAX or any(not 0 <= first < stop <= CHUNKS_MAX for first, stop in runs):
        raise Corrupt("The peer claims to hold chunks that cannot be.")
    return ChunkSet.merge(runs)
