"""What happens to KV blocks: the events of the KV log, in the same envelope as all others.

They are many and short-lived, so they have a log of their own with a retention, and one event
carries thousands of keys. Keys are packed (`blocks.pack_key`); an event names their space once and
holds only what follows it, end to end, all of one length.

A node speaks for itself alone. `BlocksCleared` begins what it says anew: nothing that it said
before counts, and what it still holds follows. So whoever reads from a node's last clearing on
knows what it holds. The two totals of an event are the node's own count after it: a reader that
missed events, or saw one twice, has them right all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from tensorcast.schema.blocks import (
    BLOCK_BYTES_MAX,
    PACKED_BYTES_MAX,
    PACKED_BYTES_MIN,
    pack_space,
)
from tensorcast.schema.codec import Wire, encode_wire, wire_decoder
from tensorcast.schema.engine_blocks import ENGINE_BLOCK_EVENT_TYPES, EngineBlockEvent
from tensorcast.schema.errors import Corrupt, InvalidArgument
from tensorcast.schema.events import UnknownEvent
from tensorcast.schema.ids import Epoch, EventId, NodeId, Seq, Tier
from tensorcast.schema.upcast import VERSION_FIRST

EVENT_KEYS_MAX: Final = 16_384
EVENT_KEYS_BYTES_MAX: Final = 1 << 20
"""Most bytes of keys in one event. With base64 and sizes it stays below 2 MiB on the wire."""
_REASON_MAX: Final = 200

Natural = Annotated[int, Meta(ge=0)]
KeyBytes = Annotated[int, Meta(ge=1, le=PACKED_BYTES_MAX)]
Size = Annotated[int, Meta(ge=0, le=BLOCK_BYTES_MAX)]


class _Keyed(msgspec.Struct, frozen=True, kw_only=True):
    """`keys` holds what follows the space in each packed key, `key_bytes` bytes each."""

    node: NodeId
    epoch: Epoch
    tier: Tier
    space: str
    key_bytes: KeyBytes
    keys: bytes
    held_blocks: Natural
    held_bytes: Natural

    @property
    def count(self) -> int:
        return len(self.keys) // self.key_bytes

    def _check_keys(self) -> None:
        packed_bytes = len(pack_space(self.space)) + self.key_bytes
        if not PACKED_BYTES_MIN <= packed_bytes <= PACKED_BYTES_MAX:
            raise ValueError(f"keys of {packed_bytes} bytes cannot be")
        if not self.keys or len(self.keys) % self.key_bytes:
            raise ValueError(f"{len(self.keys)} bytes are no keys of {self.key_bytes} each")
        if len(self.keys) > EVENT_KEYS_BYTES_MAX or self.count > EVENT_KEYS_MAX:
            raise ValueError(f"{self.count} keys are too many for one event")


class BlocksStored(_Keyed, frozen=True, kw_only=True):
    """The node holds these blocks in this tier. `sizes` has one number when all are alike, else
    one for each key, in bytes."""

    sizes: tuple[Size, ...]

    def __post_init__(self) -> None:
        _checked(self)
        if len(self.sizes) not in (1, self.count):
            raise ValueError(f"{len(self.sizes)} sizes for {self.count} blocks")

    @property
    def size_bytes(self) -> int:
        """Of all blocks together."""
        return sum(self.sizes) if len(self.sizes) == self.count else self.sizes[0] * self.count


class BlocksEvicted(_Keyed, frozen=True, kw_only=True):
    """The node does not hold these blocks in this tier any more. `reason`: why, unless they went to
    make room or were asked to."""

    reason: Annotated[str, Meta(max_length=_REASON_MAX)] = ""

    def __post_init__(self) -> None:
        _checked(self)


class BlocksCleared(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing that the node has said of its blocks counts any more; what it holds now follows.
    `reason` says why it begins anew."""

    node: NodeId
    epoch: Epoch
    reason: Annotated[str, Meta(max_length=_REASON_MAX)] = ""


BlockEvent = BlocksStored | BlocksEvicted | BlocksCleared
KvEvent = BlockEvent | EngineBlockEvent
"""Everything that the KV log can hold: what nodes say of their blocks, and what is told of those in
engines' own caches."""

BLOCK_EVENT_TYPES: Final[dict[str, type[KvEvent]]] = {
    "blocks.stored": BlocksStored,
    "blocks.evicted": BlocksEvicted,
    "blocks.cleared": BlocksCleared,
    **ENGINE_BLOCK_EVENT_TYPES,
}
_NAMES: Final = {cls: name for name, cls in BLOCK_EVENT_TYPES.items()}


class BlockDraft(msgspec.Struct, frozen=True, kw_only=True):
    """An event on its way into the KV log. Only its own node writes about a node, and one watcher
    about an engine, so nothing is expected of the log."""

    id: EventId
    at: datetime
    actor: str
    event: KvEvent
    cause: EventId | None = None
    trace: str | None = None


class BlockRecorded(msgspec.Struct, frozen=True, kw_only=True):
    """An event with its envelope and its position in the KV log."""

    seq: Seq
    id: EventId
    type: str
    v: int
    at: datetime
    actor: str
    event: KvEvent | UnknownEvent
    cause: EventId | None = None
    trace: str | None = None


def _checked(event: _Keyed) -> None:
    """What is wrong with the space is, in an event, one more way in which it cannot be read."""
    try:
        event._check_keys()
    except InvalidArgument as error:
        raise ValueError(error.message) from error


def iterate_keys(event: BlocksStored | BlocksEvicted) -> Iterator[bytes]:
    """The packed keys of an event, in order."""
    head, keys, width = pack_space(event.space), event.keys, event.key_bytes
    for start in range(0, len(keys), width):
        yield head + keys[start : start + width]


def iterate_sizes(event: BlocksStored) -> Iterator[int]:
    """The size of each block, in the order of the keys."""
    if len(event.sizes) == event.count:
        yield from event.sizes
        return
    for _ in range(event.count):
        yield event.sizes[0]


# ---- bytes ---------------------------------------------------------------------------------

_encoder = msgspec.json.Encoder()
_decoders = {name: msgspec.json.Decoder(cls) for name, cls in BLOCK_EVENT_TYPES.items()}


def encode_blocks(draft: BlockDraft) -> bytes:
    """The bytes of one event in the KV log: JSON, keys as base64."""
    return encode_wire(draft, _NAMES[type(draft.event)], _encoder.encode(draft.event))


def decode_blocks(payload: bytes, seq: Seq) -> BlockRecorded:
    """The event at a position of the KV log; a type or version of a newer release as UnknownEvent.
    Raises Corrupt when the bytes are not an event."""
    try:
        wire = wire_decoder.decode(payload)
        event = _decode_event(wire)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Corrupt(
            f"The KV event at position {seq} cannot be read: {error}.",
            hint="Was it written by another program? See `tcctl kv tail`.",
        ) from error
    return BlockRecorded(
        seq=seq,
        id=wire.id,
        type=wire.type,
        v=wire.v,
        at=wire.at,
        actor=wire.actor,
        cause=wire.cause,
        trace=wire.trace,
        event=event,
    )


def _decode_event(wire: Wire) -> KvEvent | UnknownEvent:
    decoder = _decoders.get(wire.type)
    if decoder is None or wire.v != VERSION_FIRST:
        return UnknownEvent(type=wire.type, v=wire.v, data=msgspec.Raw(bytes(wire.data)))
    return decoder.decode(wire.data)
