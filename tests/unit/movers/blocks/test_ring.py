"""Both ends of a ring: what is told arrives once and in order, and nonsense is refused."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import pytest

from block_nodes import keys_for
from tensorcast.client.blocks_ring import PutRing as WritingRing
from tensorcast.movers.blocks.ring import PutRing
from tensorcast.schema.block_ring import (
    LENT,
    LENT_TAKEN,
    MEMORY_BYTES,
    RING_AT,
    RING_BYTES,
    SLOTS,
    WRITTEN,
)
from tensorcast.schema.block_wire import (
    PRIORITY_SHIFT,
    Flag,
    Op,
    pack_entries,
    pack_frame,
    pack_request,
)
from tensorcast.schema.errors import Corrupt


@pytest.fixture
def ring() -> PutRing:
    return PutRing()


@pytest.fixture
def writing(ring: PutRing) -> WritingRing:
    return WritingRing(ring.fd)


def put_frame(keys: Sequence[bytes], flags: int = Flag.PROPOSED | Flag.WRITTEN) -> bytes:
    flat = [number for at in range(len(keys)) for number in (at * 100, 100)]
    return pack_request(Op.STORE, keys, pack_entries(flat), flags=flags)


def words_of(ring: PutRing) -> memoryview:
    return memoryview(mmap.mmap(ring.fd, MEMORY_BYTES))[:RING_AT].cast("Q")


def test_puts_arrive_in_order_for_ever(ring: PutRing, writing: WritingRing):
    total = 0
    for turn in range(200):  # several times around
        for number in range(turn % 7):
            keys = keys_for(range(total, total + 20 + number))
            frame = put_frame(keys, Flag.PROPOSED | Flag.WRITTEN | 3 << PRIORITY_SHIFT)
            assert writing.has_room(len(frame))
            writing.write(frame, keys)
            total += len(keys)
        assert ring.has_told == bool(turn % 7)
        batches, end = ring.read()
        told = [key for batch in batches for key in batch.keys]
        assert told == keys_for(range(total - len(told), total))
        assert {batch.priority for batch in batches} <= {3}
        ring.take(end)
    assert total > 5 * RING_BYTES / 60


def test_a_block_is_told_of_until_it_is_taken_in(ring: PutRing, writing: WritingRing):
    first, second = keys_for([1, 2]), keys_for([3])
    writing.write(put_frame(first), first)
    ring.take(ring.read()[1])
    writing.write(put_frame(second), second)
    writing.tidy()
    assert not writing.tells_of(first)
    assert writing.tells_of(keys_for([2, 3]))


def test_there_is_no_room_before_something_was_taken(ring: PutRing, writing: WritingRing):
    keys = keys_for(range(1000))
    frame = put_frame(keys)
    while writing.has_room(len(frame)):
        writing.write(frame, keys)
    ring.take(ring.read()[1])
    assert writing.has_room(len(frame))


def test_lent_slots_arrive_for_ever(ring: PutRing, writing: WritingRing):
    given = 0
    while given < 3 * SLOTS:
        places = [number.to_bytes(8, "little") for number in range(given, given + 1000)]
        assert ring.room >= len(places)
        ring.lend(places, 77)
        assert ring.room == SLOTS - len(places)
        assert writing.take_lent() == (list(range(given, given + 1000)), [77] * 1000)
        given += len(places)
    assert writing.take_lent() == ([], [])


@pytest.mark.parametrize("ahead", [RING_BYTES + 1, -1])
def test_a_count_beyond_the_room_is_not_believed(ring: PutRing, ahead: int):
    words_of(ring)[WRITTEN] = ahead % (1 << 64)
    with pytest.raises(Corrupt, match="more puts than"):
        ring.read()


def test_counts_of_slots_are_not_believed(ring: PutRing, writing: WritingRing):
    words = words_of(ring)
    words[LENT_TAKEN] = 1
    with pytest.raises(Corrupt, match="not lent"):
        ring.room  # noqa: B018
    words[LENT] = SLOTS + 1
    with pytest.raises(Corrupt, match="lends"):
        writing.take_lent()


KEYS = keys_for([1])
WHOLE = put_frame(KEYS)


@pytest.mark.parametrize(
    "frame",
    [
        WHOLE[:-1],
        WHOLE + b"x",
        put_frame(KEYS, Flag.PROPOSED),
        pack_frame(Op.COUNT),
        pack_request(Op.STORE, KEYS, flags=Flag.PROPOSED | Flag.WRITTEN),
    ],
)
def test_what_is_no_put_is_refused(ring: PutRing, writing: WritingRing, frame: bytes):
    writing.write(frame, KEYS)
    with pytest.raises(Corrupt):
        ring.read()
