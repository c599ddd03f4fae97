"""What clients ask the control plane to prove the log, to copy it and to bring it back, and what it
answers. Hashes are hexadecimal."""

from __future__ import annotations

import zlib

import msgspec

from tensorcast.schema.codec import EVENT_BYTES_MAX
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.ids import Seq

SPAN_EVENTS_MAX = 200_000
"""Most events that one request has verified: a second or a few of work."""
HASHES_MAX = 1000
HEADS_MAX = 1000
ROWS_MAX = 5000
ROWS_BYTES_MAX = 3 << 20
PLAIN_BYTES_MAX = 4 << 20
"""A larger event travels deflated: in JSON bytes take a third more, and messages are limited."""


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    pass


class ExtentQuery(_Message, frozen=True, kw_only=True):
    """Verb `audit.extent`: how far the history goes, once it includes event `after`. Answer:
    `Extent`."""

    after: Seq = Seq(0)


class Life(_Message, frozen=True, kw_only=True):
    """The events of one life of the log, from `first` (1, if nobody has changed that) to `last`."""

    log_epoch: int
    last: Seq
    first: Seq = Seq(1)


class Extent(_Message, frozen=True, kw_only=True):
    """All that Postgres has, the oldest life first. `key` is the public key that this control plane
    signs heads with, None when it signs none; `former` are those that it has lost."""

    cluster: str
    lives: tuple[Life, ...]
    key: str | None = None
    former: tuple[str, ...] = ()


class VerifySpan(_Message, frozen=True, kw_only=True):
    """Verb `audit.verify`: have the events from `first` to `last` (`SPAN_EVENTS_MAX` at most) read
    and hashed. Answer: `SpanInfo`."""

    log_epoch: int
    first: Seq
    last: Seq


class BadEvent(_Message, frozen=True, kw_only=True):
    """Where the record is not what it was, and how that shows."""

    seq: Seq
    reason: str


class SpanInfo(_Message, frozen=True, kw_only=True):
    """`events` are as they should be, up to `first_bad`; `head` is the hash of the last of them."""

    events: int
    head: str
    first_bad: BadEvent | None = None


class HashQuery(_Message, frozen=True, kw_only=True):
    """Verb `audit.hashes`: the hashes of these events (`HASHES_MAX` at most) as the chain has them;
    None for those that it has not. Answer: a list in the order of `seqs`."""

    log_epoch: int
    seqs: tuple[Seq, ...]


class HeadsQuery(_Message, frozen=True, kw_only=True):
    """Verb `audit.heads`: the signed heads after the first `after` ones of a `source`: `log` (kept
    beside the log, in NATS) or `file` (kept by this control plane). Answer: `HeadsPage`."""

    source: str
    after: int = 0


class HeadsPage(_Message, frozen=True, kw_only=True):
    """Heads as they were found, one text each; empty at the end."""

    heads: tuple[str, ...]


class RowsQuery(_Message, frozen=True, kw_only=True):
    """Verb `audit.rows`: the events of a life of the log after `after`, up to `last`, as they were
    published. Answer: `RowsPage`; it carries a few MiB at most."""

    log_epoch: int
    after: Seq
    last: Seq


class RawEvent(_Message, frozen=True, kw_only=True):
    """One event: its place, its exact bytes and its hash in the chain. On the way of a large one
    `payload` is empty, and `packed` has it."""

    log_epoch: int
    seq: Seq
    subject: str
    payload: bytes
    hash: str
    packed: bytes = b""


class RowsPage(_Message, frozen=True, kw_only=True):
    """`previous` is the hash of the event before the first one."""

    previous: str
    events: tuple[RawEvent, ...]


class ImportEvents(_Message, frozen=True, kw_only=True):
    """Verb `log.import` (those of `audit` only read): append these events (subject and bytes), the
    first one at position `first`. From 1 on, into a log that has none; nobody else may write until
    there are `total`. With `is_packed` the bytes are packed. Answer: `Imported`, with the position
    of the last one."""

    first: Seq
    events: tuple[tuple[str, bytes], ...]
    total: int
    is_packed: bool = False


class Imported(_Message, frozen=True, kw_only=True):
    last: Seq


class VerifyInfo(_Message, frozen=True, kw_only=True):
    """Whether the record is what it was. `events` were checked; `head` is the hash of the last one;
    `anchors` signed heads were compared with it. `strange_key`: nothing is wrong but that this key
    has signed heads, and nobody has said that it counts; they fit the events."""

    ok: bool
    events: int
    head: str
    first_bad: BadEvent | None = None
    anchors: int = 0
    strange_key: str | None = None


def pack(payload: bytes) -> bytes:
    """The bytes of an event for the way."""
    return zlib.compress(payload, 1)


def unpack(packed: bytes) -> bytes:
    """The bytes of an event after the way. Raises Corrupt for what `pack` does not make, or what no
    event is as long as."""
    inflating = zlib.decompressobj()
    try:
        payload = inflating.decompress(packed, 2 * EVENT_BYTES_MAX)
    except zlib.error as error:
        raise Corrupt(f"An event cannot be unpacked: {error}.") from error
    if not inflating.eof or inflating.unconsumed_tail:
        raise Corrupt("An event that came packed is cut off, or longer than any can be.")
    return payload
