from __future__ import annotations

import msgspec
import pytest

from block_samples import SIZE, block_draft, cleared, evicted, key, keys, stored, tails
from tensorcast.schema.block_events import (
    EVENT_KEYS_MAX,
    BlocksEvicted,
    BlocksStored,
    decode_blocks,
    encode_blocks,
    iterate_keys,
    iterate_sizes,
)
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.events import UnknownEvent
from tensorcast.schema.ids import Seq


@pytest.mark.parametrize(
    "event",
    [
        stored(keys(3)),
        stored(keys(3), sizes=(1, 2, 3)),
        evicted(keys(2), epoch=7),
        cleared(reason="start"),
    ],
)
def test_what_is_read_is_what_was_written(event):
    draft = block_draft(event, cause=block_draft(event).id, trace="t-1")
    read = decode_blocks(encode_blocks(draft), Seq(4))
    assert (read.seq, read.event) == (4, event)
    assert (read.id, read.at, read.actor) == (draft.id, draft.at, draft.actor)
    assert (read.cause, read.trace) == (draft.cause, draft.trace)


def test_an_event_gives_its_keys_and_sizes_back():
    packed = [key(1), key(2, layer_group=3), key(3, rank=9)]
    assert list(iterate_keys(stored(packed))) == packed
    assert list(iterate_sizes(stored(packed))) == [SIZE] * 3
    assert stored(packed).size_bytes == 3 * SIZE
    mixed = stored(packed, sizes=(1, 2, 3))
    assert list(iterate_sizes(mixed)) == [1, 2, 3]
    assert (mixed.size_bytes, mixed.count) == (6, 3)


def test_the_largest_event_is_far_below_the_limit_of_the_servers():
    many = stored(keys(EVENT_KEYS_MAX), sizes=tuple(range(1 << 20, (1 << 20) + EVENT_KEYS_MAX)))
    assert len(encode_blocks(block_draft(many))) < 2 << 20


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"keys": b""}, "no keys"),
        ({"keys": bytes(21)}, "no keys"),
        ({"keys": bytes(5), "key_bytes": 5}, "cannot be"),
        ({"space": "a b"}, "no space"),
        ({"space": "x" * 65}, "no space"),
        ({"sizes": (1, 2)}, "2 sizes"),
        ({"sizes": ()}, "0 sizes"),
        ({"keys": bytes(20 * (EVENT_KEYS_MAX + 1))}, "too many"),
    ],
)
def test_an_event_that_makes_no_sense_cannot_be_made_or_read(changes, complaint):
    good = stored(keys(3))
    with pytest.raises(ValueError, match=complaint):
        msgspec.structs.replace(good, **changes)
    payload = msgspec.json.decode(encode_blocks(block_draft(good)))
    payload["data"] |= msgspec.to_builtins(changes)
    with pytest.raises(Corrupt, match=complaint):
        decode_blocks(msgspec.json.encode(payload), Seq(1))


def test_what_a_newer_release_wrote_is_kept_as_it_is():
    payload = msgspec.json.decode(encode_blocks(block_draft(stored(keys(1)))))
    for change in ({"type": "blocks.moved"}, {"v": 2}):
        read = decode_blocks(msgspec.json.encode({**payload, **change}), Seq(1))
        assert isinstance(read.event, UnknownEvent)
        assert msgspec.json.decode(read.event.data) == payload["data"]


@pytest.mark.parametrize("payload", [b"", b"{}", b"[1]", b'{"id": 1}', b"\xff", b"[" * 5000])
def test_bytes_that_are_no_event_are_told_as_such(payload):
    with pytest.raises(Corrupt, match="position 9"):
        decode_blocks(payload, Seq(9))


def test_keys_of_one_event_have_one_length():
    assert len(tails(keys(2))) == 2 * stored(keys(2)).key_bytes
    assert isinstance(stored(keys(1)), BlocksStored)
    assert isinstance(evicted(keys(1)), BlocksEvicted)
