"""KV blocks and their events for tests."""

from __future__ import annotations

from tensorcast.log.identity import new_event_id, now
from tensorcast.schema.block_events import (
    BlockDraft,
    BlockEvent,
    BlocksCleared,
    BlocksEvicted,
    BlocksStored,
)
from tensorcast.schema.blocks import BlockKey, pack_key, pack_space
from tensorcast.schema.ids import Epoch, NodeId, Tier

SIZE = 1 << 16


def key(number: int, space: str = "llama", **parts: int) -> bytes:
    """A packed key; numbers give different ones."""
    return pack_key(BlockKey(space=space, prefix=number.to_bytes(16, "big"), **parts))


def keys(count: int, start: int = 0, space: str = "llama") -> list[bytes]:
    return [key(number, space) for number in range(start, start + count)]


def tails(packed: list[bytes]) -> bytes:
    """What an event holds of packed keys of one space."""
    return b"".join(one[1 + one[0] :] for one in packed)


def space_of(packed: bytes) -> str:
    return packed[1 : 1 + packed[0]].decode()


def stored(packed: list[bytes], node: str = "n1", epoch: int = 1, **changes) -> BlocksStored:
    fields = {
        "tier": Tier.DRAM,
        "sizes": (SIZE,),
        "held_blocks": len(packed),
        "held_bytes": SIZE * len(packed),
    }
    return BlocksStored(
        node=NodeId(node),
        epoch=Epoch(epoch),
        space=space_of(packed[0]),
        key_bytes=len(packed[0]) - len(pack_space(space_of(packed[0]))),
        keys=tails(packed),
        **{**fields, **changes},
    )


def evicted(packed: list[bytes], node: str = "n1", epoch: int = 1, **changes) -> BlocksEvicted:
    fields = {"tier": Tier.DRAM, "held_blocks": 0, "held_bytes": 0}
    return BlocksEvicted(
        node=NodeId(node),
        epoch=Epoch(epoch),
        space=space_of(packed[0]),
        key_bytes=len(packed[0]) - len(pack_space(space_of(packed[0]))),
        keys=tails(packed),
        **{**fields, **changes},
    )


def cleared(node: str = "n1", epoch: int = 1, reason: str = "start") -> BlocksCleared:
    return BlocksCleared(node=NodeId(node), epoch=Epoch(epoch), reason=reason)


def block_draft(event: BlockEvent, **fields) -> BlockDraft:
    given = {"id": new_event_id(), "at": now(), "actor": f"mover:{event.node}", **fields}
    return BlockDraft(event=event, **given)
