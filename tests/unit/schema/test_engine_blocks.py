import msgspec
import pytest

from samples import BEGIN
from tensorcast.schema.block_events import BlockDraft, decode_blocks, encode_blocks
from tensorcast.schema.engine_blocks import (
    ENGINE_EVENT_BLOCKS_MAX,
    EngineBlocksCleared,
    EngineBlocksEvicted,
    EngineBlocksStored,
)
from tensorcast.schema.ids import EngineId, EventId, Seq

COMMON = {
    "engine": EngineId("e1"),
    "life": "one",
    "batch": 3,
    "medium": "gpu",
    "group": 0,
    "hash_bytes": 8,
    "held_blocks": 2,
}
HASHES, PREFIXES = b"a" * 8 + b"b" * 8, b"A" * 16 + b"B" * 16
STORED = EngineBlocksStored(**COMMON, hashes=HASHES, prefixes=PREFIXES, block_tokens=16)
EVICTED = EngineBlocksEvicted(**COMMON, hashes=HASHES)
CLEARED = EngineBlocksCleared(engine=EngineId("e1"), life="one", batch=0, is_exact=True)


@pytest.mark.parametrize("event", [STORED, EVICTED, CLEARED])
def test_events_survive_the_kv_log(event):
    draft = BlockDraft(id=EventId("i"), at=BEGIN, actor="engine:e1", event=event)
    recorded = decode_blocks(encode_blocks(draft), Seq(4))
    assert (recorded.event, recorded.seq) == (event, 4)


def test_blocks_have_two_names_each():
    assert list(STORED.iterate_hashes()) == [b"a" * 8, b"b" * 8]
    assert list(STORED.iterate_prefixes()) == [b"A" * 16, b"B" * 16]
    assert STORED.count == EVICTED.count == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"hashes": b""},
        {"hashes": b"a" * 9},
        {"hash_bytes": 0},
        {"hash_bytes": 65},
        {"prefixes": b"A" * 16},
        {"block_tokens": 0},
        {"medium": ""},
        {"group": -1},
        {"life": ""},
        {"held_blocks": -1},
        {
            "hashes": b"a" * 8 * (ENGINE_EVENT_BLOCKS_MAX + 1),
            "prefixes": bytes(16 * (ENGINE_EVENT_BLOCKS_MAX + 1)),
        },
    ],
)
def test_what_cannot_be_an_event(changes):
    fields = {name: getattr(STORED, name) for name in STORED.__struct_fields__} | changes
    with pytest.raises((ValueError, msgspec.ValidationError)):
        msgspec.json.decode(msgspec.json.encode(fields), type=EngineBlocksStored)
