import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_publishers import CLEARED, batch, removed, stored
from tensorcast.engines.vllm.kv_batches import (
    Cleared,
    Removed,
    Stored,
    decode_batch,
    pack_hash,
)
from tensorcast.schema.errors import Corrupt


def test_a_batch_tells_what_happened():
    found = decode_batch(batch(stored(1, 2), removed(7, group_idx=3), CLEARED, ts=5.0))
    assert found.ts == 5.0
    assert found.happenings == (
        Stored(
            medium="gpu",
            group=0,
            block_tokens=4,
            parent=None,
            hashes=(pack_hash(1), pack_hash(2)),
            tokens=(100, 101, 102, 103, 200, 201, 202, 203),
            extras=(None, None),
        ),
        Removed("gpu", 3, (pack_hash(7),)),
        Cleared(),
    )


def test_what_is_not_known_is_skipped():
    extra = stored(1, 1, new_field={"a": 1}, session_id="s")
    (one,) = decode_batch(batch({"type": "BlockMoved", "x": 1}, extra)).happenings
    assert isinstance(one, Stored)


def test_hashes_may_be_bytes_and_blocks_may_have_extra_keys():
    event = stored(1, 2) | {"block_hashes": [b"a" * 32, b"b" * 32], "parent_block_hash": b"p" * 32}
    event |= {"extra_keys": [["salt"], None], "medium": None}
    (one,) = decode_batch(batch(event)).happenings
    assert one.hashes == (b"a" * 32, b"b" * 32)
    assert one.parent == b"p" * 32
    assert one.extras == (["salt"], None)
    assert one.medium == "gpu"


def test_blocks_elsewhere_and_empty_events_do_not_count():
    elsewhere = stored(1, 1, locality="REMOTE"), stored(1, 1, medium="STORAGE")
    assert decode_batch(batch(*elsewhere, removed(), stored(1, 0))).happenings == ()


def test_blocks_of_which_tokens_are_missing_have_no_tokens():
    event = stored(1, 2) | {"token_ids": [1, 2, 3]}
    assert decode_batch(batch(event)).happenings[0].tokens == ()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff" * 20,
        msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode({"ts": 1.0, "events": []}),
        msgspec.msgpack.encode([1.0, ["BlockStored"]]),
        b"\x93\xcb" + bytes(8) + b"\xdd\xff\xff\xff\xff",  # an array of four billion events
        batch(stored(1, 1) | {"block_size": 0}),
        batch(stored(1, 1) | {"block_hashes": [-1]}),
        batch(stored(1, 1) | {"block_hashes": [b""]}),
        batch(stored(1, 1) | {"block_hashes": [b"x" * 65]}),
        batch(stored(1, 1) | {"extra_keys": []} | {"extra_keys": [None, None]}),
        batch(stored(1, 1) | {"group_idx": 1 << 40}),
        batch({"type": "BlockStored"}),
    ],
    ids=lambda payload: f"{len(payload)} bytes",  # the time is in some: no name of a test
)
def test_what_is_no_batch_is_told(payload):
    with pytest.raises(Corrupt, match="cannot be read"):
        decode_batch(payload)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_batch_or_corrupt(payload):
    try:
        decode_batch(payload)
    except Corrupt:
        return
