"""vLLM's batches of KV events as values. Pure; it trusts no number that it is told.

A batch is a msgpack array (time, events, rank); an event is a map that names its type. Fields and
types that are not known here are skipped: the next vLLM has more of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from tensorcast.schema.engine_blocks import GROUP_MAX, HASH_BYTES_MAX
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.prefixes import BLOCK_TOKENS_MAX

PAYLOAD_BYTES_MAX: Final = 64 << 20
SEQ_BYTES: Final = 8
INT_HASH_BYTES: Final = 8
MEDIUM_DEFAULT: Final = "gpu"
REMOTE: Final = "REMOTE"
STORAGE: Final = "STORAGE"
"""Blocks that are elsewhere, or in a store behind the engine, are not in its own caches: who holds
them tells of them."""
_MEDIUM_CHARS_MAX: Final = 32

Hash = int | bytes
Group = Annotated[int, Meta(ge=0, le=GROUP_MAX)] | None


class _Event(msgspec.Struct, frozen=True, tag_field="type"):
    pass


class _Stored(_Event, frozen=True, tag="BlockStored"):
    block_hashes: list[Hash]
    token_ids: list[int]
    block_size: Annotated[int, Meta(ge=1, le=BLOCK_TOKENS_MAX)]
    parent_block_hash: Hash | None = None
    medium: str | None = None
    extra_keys: list[list[object] | None] | None = None
    group_idx: Group = None
    locality: str | None = None


class _Removed(_Event, frozen=True, tag="BlockRemoved"):
    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: Group = None
    locality: str | None = None


class _Cleared(_Event, frozen=True, tag="AllBlocksCleared"):
    pass


class _Batch(msgspec.Struct, frozen=True, array_like=True):
    ts: float
    events: list[msgspec.Raw]


class _Tag(msgspec.Struct, frozen=True):
    type: str


class Stored(msgspec.Struct, frozen=True):
    """Blocks that follow one another, the first one on `parent` (None: it is the first of all).
    `tokens` are those of all blocks, `extras` what else each depends on."""

    medium: str
    group: int
    block_tokens: int
    parent: bytes | None
    hashes: tuple[bytes, ...]
    tokens: tuple[int, ...]
    extras: tuple[object, ...]


class Removed(msgspec.Struct, frozen=True):
    """Blocks that the engine does not hold any more."""

    medium: str
    group: int
    hashes: tuple[bytes, ...]


class Cleared(msgspec.Struct, frozen=True):
    """The engine dropped all its blocks."""


Happening = Stored | Removed | Cleared


class Batch(msgspec.Struct, frozen=True):
    """What happened in one step of an engine, at its time `ts` (seconds since 1970)."""

    ts: float
    happenings: tuple[Happening, ...]


_batches = msgspec.msgpack.Decoder(_Batch)
_tags = msgspec.msgpack.Decoder(_Tag)
_events = msgspec.msgpack.Decoder(_Stored | _Removed | _Cleared)
_KNOWN: Final = frozenset({"BlockStored", "BlockRemoved", "AllBlocksCleared"})


def decode_batch(payload: bytes) -> Batch:
    """The batch in a message. Raises Corrupt when it is none."""
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise Corrupt(f"A batch of KV events of {len(payload)} bytes is too large.")
    try:
        batch = _batches.decode(payload)
        happenings = tuple(_happenings(batch.events))
    except (msgspec.MsgspecError, RecursionError, OverflowError) as error:
        raise Corrupt(
            f"A batch of KV events cannot be read: {error}.",
            hint="Is that the publisher of a vLLM engine?",
        ) from error
    return Batch(batch.ts, happenings)


def _happenings(events: list[msgspec.Raw]) -> Iterator[Happening]:
    for raw in events:
        if _tags.decode(raw).type not in _KNOWN:
            continue
        event = _events.decode(raw)
        if isinstance(event, _Cleared):
            yield Cleared()
        elif event.block_hashes and event.locality != REMOTE and event.medium != STORAGE:
            yield _stored(event) if isinstance(event, _Stored) else _removed(event)


def _removed(event: _Removed) -> Removed:
    hashes = tuple(map(pack_hash, event.block_hashes))
    return Removed(_medium(event.medium), event.group_idx or 0, hashes)


def _stored(event: _Stored) -> Stored:
    count = len(event.block_hashes)
    if len(event.token_ids) != count * event.block_size:
        # Blocks of which some tokens are not cached (a sliding window): their names are not known.
        tokens: tuple[int, ...] = ()
    else:
        tokens = tuple(event.token_ids)
    extras = tuple(event.extra_keys) if event.extra_keys is not None else (None,) * count
    if len(extras) != count:
        raise msgspec.ValidationError(f"{len(extras)} extra keys for {count} blocks")
    parent = event.parent_block_hash
    return Stored(
        medium=_medium(event.medium),
        group=event.group_idx or 0,
        block_tokens=event.block_size,
        parent=None if parent is None else pack_hash(parent),
        hashes=tuple(map(pack_hash, event.block_hashes)),
        tokens=tokens,
        extras=extras,
    )


def pack_hash(hash_: Hash) -> bytes:
    """An engine's hash as bytes; a number is one of 64 bits. Raises ValidationError."""
    if isinstance(hash_, bytes):
        if not 0 < len(hash_) <= HASH_BYTES_MAX:
            raise msgspec.ValidationError(f"a hash of {len(hash_)} bytes")
        return hash_
    if not 0 <= hash_ < 1 << 8 * INT_HASH_BYTES:
        raise msgspec.ValidationError(f"the hash {hash_}")
    return hash_.to_bytes(INT_HASH_BYTES, "big")


def _medium(medium: str | None) -> str:
    return (medium or MEDIUM_DEFAULT).lower()[:_MEDIUM_CHARS_MAX] or MEDIUM_DEFAULT
