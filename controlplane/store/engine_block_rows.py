"""What is told of the blocks in engines' own caches, as changes of two tables. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from tensorcast.controlplane.store.cells import as_checked_json, as_integer, as_moment, as_text
from tensorcast.schema.block_events import BlockRecorded
from tensorcast.schema.engine_blocks import (
    EngineBlockEvent,
    EngineBlocksCleared,
    EngineBlocksEvicted,
    EngineBlocksStored,
)

Row = tuple[object, ...]
Place = tuple[str, str, int, bytes]
"""An engine, a medium, a group of layers and the engine's own hash of a block."""


class Told(msgspec.Struct, frozen=True):
    """What is known of an engine's blocks after the event `seq`: in which life of its watcher, and
    whether that is all (`is_exact`), with a reason."""

    life: str
    is_exact: bool
    reason: str
    batch: int
    blocks: int
    seq: int
    at: datetime


class EngineFold(msgspec.Struct, frozen=True):
    """What a batch of events changes: all blocks of the `cleared` engines go first, then the places
    of None go and the others come."""

    cleared: frozenset[str] = frozenset()
    blocks: Mapping[Place, Row | None] = {}
    views: Mapping[str, Told] = {}


def fold_engines(known: Mapping[str, Told], recorded: Sequence[BlockRecorded]) -> EngineFold:
    """What the events change, in their order, where `known` was known before. What a life says that
    has not begun anew, or whose engine another one tells of now, changes nothing."""
    cleared: set[str] = set()
    blocks: dict[Place, Row | None] = {}
    views: dict[str, Told] = {}
    for one in recorded:
        event = one.event
        if not isinstance(event, EngineBlockEvent):
            continue
        engine = as_text(event.engine)
        before = views.get(engine, known.get(engine))
        if isinstance(event, EngineBlocksCleared):
            cleared.add(engine)
            blocks = {place: row for place, row in blocks.items() if place[0] != engine}
            views[engine] = _begin(event, one)
        elif before is not None and before.life == as_text(event.life):
            _note_blocks(blocks, engine, event, one.seq)
            views[engine] = _go_on(before, event, one)
    return EngineFold(frozenset(cleared), blocks, views)


def _begin(event: EngineBlocksCleared, one: BlockRecorded) -> Told:
    return Told(
        life=as_text(event.life),
        is_exact=event.is_exact,
        reason=as_text(event.reason),
        batch=as_integer(event.batch),
        blocks=0,
        seq=one.seq,
        at=as_moment(one.at),
    )


def _go_on(
    before: Told, event: EngineBlocksStored | EngineBlocksEvicted, one: BlockRecorded
) -> Told:
    return msgspec.structs.replace(
        before,
        batch=as_integer(event.batch),
        blocks=as_integer(event.held_blocks),
        seq=one.seq,
        at=as_moment(one.at),
    )


def _note_blocks(
    blocks: dict[Place, Row | None],
    engine: str,
    event: EngineBlocksStored | EngineBlocksEvicted,
    seq: int,
) -> None:
    medium = as_text(event.medium)
    if isinstance(event, EngineBlocksEvicted):
        for hash_ in event.iterate_hashes():
            blocks[engine, medium, event.group, hash_] = None
        return
    for hash_, prefix in zip(event.iterate_hashes(), event.iterate_prefixes(), strict=True):
        place = (engine, medium, event.group, hash_)
        blocks[place] = (*place, prefix, event.block_tokens, seq)


def view_row(engine: str, told: Told) -> Row:
    """A row of `engine_views`."""
    return (engine, *msgspec.structs.astuple(told))


def engine_event_columns(event: EngineBlockEvent) -> Row:
    """The columns of `kv_events` from `node` on."""
    data = {name: getattr(event, name) for name in event.__struct_fields__}
    hashes, key_bytes = data.pop("hashes", None), data.pop("hash_bytes", None)
    count = None if isinstance(event, EngineBlocksCleared) else event.count
    rest = as_checked_json(msgspec.json.encode(data))
    return (*(None,) * 4, count, key_bytes, hashes, rest)
