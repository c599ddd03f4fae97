"""KV events as rows, and what they say that nodes hold. Pure; values in the order of the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from tensorcast.controlplane.store.cells import (
    as_checked_json,
    as_integer,
    as_moment,
    as_text,
    as_uuid,
)
from tensorcast.controlplane.store.engine_block_rows import engine_event_columns
from tensorcast.log.port import Stored
from tensorcast.schema.block_events import (
    BlockEvent,
    BlockRecorded,
    BlocksCleared,
    BlocksEvicted,
    BlocksStored,
    decode_blocks,
)
from tensorcast.schema.engine_blocks import (
    EngineBlocksCleared,
    EngineBlocksEvicted,
    EngineBlocksStored,
)
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.events import UnknownEvent
from tensorcast.schema.ids import Seq, derive_event_id

UNREADABLE: Final = "unreadable"
Row = tuple[object, ...]
Place = tuple[str, str, str]
"""A node, a tier and a space."""


class Speaker(msgspec.Struct, frozen=True):
    """The life in which a node speaks, and where it last began anew (0: not known)."""

    epoch: int
    cleared_seq: int


class Holding(msgspec.Struct, frozen=True):
    """What a node said to hold, at the event `seq`."""

    epoch: int
    blocks: int
    size_bytes: int
    seq: int
    at: datetime


class Fold(msgspec.Struct, frozen=True):
    """What a batch of events changes: these nodes' holdings go first, then these come."""

    speakers: Mapping[str, Speaker]
    cleared: frozenset[str]
    holdings: Mapping[Place, Holding]


def read_block_event(stored: Stored, seen_at: datetime) -> BlockRecorded:
    """The event, or for bytes that are none one of type `unreadable` that stands for them."""
    try:
        return decode_blocks(stored.payload, stored.seq)
    except Corrupt:
        return BlockRecorded(
            seq=stored.seq,
            id=derive_event_id(stored.subject, stored.payload.hex(), stored.seq),
            type=UNREADABLE,
            v=0,
            at=seen_at,
            actor="",
            event=UnknownEvent(
                type=UNREADABLE, v=0, data=msgspec.Raw(msgspec.json.encode(stored.payload))
            ),
        )


def fold_holdings(known: Mapping[str, Speaker], recorded: Sequence[BlockRecorded]) -> Fold:
    """What the events change, in their order, where `known` nodes spoke before. What an older life
    of a node says changes nothing."""
    speakers: dict[str, Speaker] = {}
    cleared: set[str] = set()
    holdings: dict[Place, Holding] = {}
    for one in recorded:
        event = one.event
        if not isinstance(event, BlockEvent):
            continue
        node = as_text(event.node)
        speaker = speakers.get(node, known.get(node))
        if speaker is not None and event.epoch < speaker.epoch:
            continue
        is_new = speaker is None or event.epoch > speaker.epoch
        if is_new or isinstance(event, BlocksCleared):
            cleared.add(node)
            holdings = {place: held for place, held in holdings.items() if place[0] != node}
            seq = one.seq if isinstance(event, BlocksCleared) else Seq(0)
            speakers[node] = Speaker(event.epoch, seq)
        if not isinstance(event, BlocksCleared):
            holdings[node, event.tier.value, as_text(event.space)] = Holding(
                epoch=as_integer(event.epoch),
                blocks=as_integer(event.held_blocks),
                size_bytes=as_integer(event.held_bytes),
                seq=one.seq,
                at=as_moment(one.at),
            )
    return Fold(speakers, frozenset(cleared), holdings)


def holding_row(place: Place, held: Holding) -> Row:
    """A row of `kv_holdings`."""
    return (*place, held.epoch, held.blocks, held.size_bytes, held.seq, held.at)


def speaker_row(node: str, speaker: Speaker) -> Row:
    """A row of `kv_nodes`."""
    return (node, as_integer(speaker.epoch), speaker.cleared_seq)


def block_event_row(log_epoch: int, one: BlockRecorded) -> Row:
    """A row of `kv_events`."""
    return (
        log_epoch,
        one.seq,
        as_uuid(one.id),
        as_text(one.type),
        as_integer(one.v),
        as_moment(one.at),
        as_text(one.actor),
        None if one.cause is None else as_uuid(one.cause),
        None if one.trace is None else as_text(one.trace),
        *_columns(one),
    )


def _columns(one: BlockRecorded) -> Row:
    event = one.event
    match event:
        case BlocksCleared():
            return (*_speaker(event), *(None,) * 5, _json({"reason": event.reason}))
        case BlocksStored() | BlocksEvicted():
            data: dict[str, object] = {
                "held_blocks": event.held_blocks,
                "held_bytes": event.held_bytes,
            }
            if isinstance(event, BlocksStored):
                data["sizes"] = event.sizes
            elif event.reason:
                data["reason"] = event.reason
            return (
                *_speaker(event),
                event.tier.value,
                as_text(event.space),
                event.count,
                event.key_bytes,
                event.keys,
                _json(data),
            )
        case EngineBlocksStored() | EngineBlocksEvicted() | EngineBlocksCleared():
            return engine_event_columns(event)
        case UnknownEvent():
            return (*(None,) * 7, as_checked_json(bytes(event.data)))


def _speaker(event: BlocksStored | BlocksEvicted | BlocksCleared) -> Row:
    return as_text(event.node), as_integer(event.epoch)


def _json(data: Mapping[str, object]) -> str:
    return as_checked_json(msgspec.json.encode(data))
