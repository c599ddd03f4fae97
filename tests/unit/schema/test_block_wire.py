"""Frames about blocks: what is packed is parsed, and nothing that a peer announces is believed."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorcast.schema import block_wire as wire
from tensorcast.schema.block_wire import Elsewhere, Flag, Greeting, Head, Op, Welcome
from tensorcast.schema.errors import Corrupt

even_keys = st.integers(14, 101).flatmap(
    lambda length: st.lists(st.binary(min_size=length, max_size=length), max_size=20)
)
uneven_keys = st.lists(st.binary(min_size=14, max_size=101), max_size=20)
addresses = st.lists(st.sampled_from(["a:1", "b:2", "[::1]:3", "h" * 300 + ":4"]), max_size=3)


@given(even_keys | uneven_keys, st.binary(max_size=30), st.integers(0, 255))
def test_a_request_is_what_was_asked(keys: list[bytes], rest: bytes, flags: int):
    frame = wire.pack_request(Op.FIND, keys, rest, flags=flags, tag=7)
    head = wire.parse_head(frame)
    assert head[:3] == (len(frame) - wire.HEAD.size, Op.FIND, flags)
    assert (head.total, head.tag) == (len(keys), 7)
    found, at = wire.split_keys(frame, wire.HEAD.size, head)
    assert list(found) == keys
    assert frame[at:] == rest


def test_many_keys_or_numbers_are_several_frames_within_the_limits():
    keys = [bytes(97) + number.to_bytes(4, "big") for number in range(5000)]
    found: list[bytes] = []
    numbers: list[int] = []
    frames = wire.pack_requests(Op.USED, keys) + wire.pack_numbers(Op.RETURN, "Q", range(70_000))
    at = 0
    while at < len(frames):
        head = wire.parse_head(frames, at)
        at += wire.HEAD.size
        if head.op == Op.USED:
            found += wire.split_keys(frames, at, head)[0]
        else:
            numbers += struct.unpack_from(f"<{head.total}Q", frames, at)
        at += head.size
    assert (found, numbers) == (keys, list(range(70_000)))


@given(st.binary(min_size=wire.HEAD.size, max_size=200))
def test_any_bytes_are_keys_or_corrupt(frame: bytes):
    try:
        head = wire.parse_head(frame)
        body = frame[wire.HEAD.size :]
        if head.size <= len(body):
            keys, at = wire.split_keys(frame, wire.HEAD.size, head)
            assert len(keys) == head.total
            assert at <= wire.HEAD.size + head.size
    except Corrupt:
        pass


@pytest.mark.parametrize(
    "head",
    [
        Head(wire.FRAME_BYTES_MAX + 1, Op.FIND, 0, 20, 1, 0),
        Head(10, Op.FIND, 0, 20, wire.KEYS_MAX + 1, 0),
        Head(10, Op.FIND, 0, 200, 1, 0),
    ],
)
def test_heads_beyond_the_limits_are_corrupt(head: Head):
    with pytest.raises(Corrupt):
        wire.parse_head(wire.HEAD.pack(*head))


@pytest.mark.parametrize(
    "head",
    [Head(39, Op.FIND, 0, 20, 2, 0), Head(40, Op.FIND, 0, 10, 2, 0), Head(9, Op.FIND, 0, 0, 10, 0)],
)
def test_keys_that_do_not_fit_their_frame_are_corrupt(head: Head):
    with pytest.raises(Corrupt):
        wire.split_keys(bytes(1000), 0, head)


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)), max_size=20))
def test_entries_are_places_and_sizes(entries: list[tuple[int, int]]):
    flat = [number for entry in entries for number in entry]
    packed = wire.pack_entries(flat)
    assert list(wire.parse_entries(packed, 0, len(entries), len(packed))) == flat
    parts = wire.split_entries(packed, 0, len(entries), len(packed))
    assert [wire.ENTRY.unpack(part) for part in parts] == entries


@pytest.mark.parametrize("parse", [wire.parse_entries, wire.split_entries, wire.split_digests])
def test_what_ends_too_early_is_corrupt(parse):
    with pytest.raises(Corrupt):
        parse(bytes(100), 0, 3, 3 * 8 - 1)


@given(st.integers(1, 1 << 26), st.lists(st.binary(min_size=8, max_size=8), max_size=20))
def test_spares_are_what_was_lent(slot: int, places: list[bytes]):
    packed = wire.pack_spares(slot, places)
    found_slot, found = wire.parse_spares(packed, 0, len(packed))
    assert found_slot == slot
    assert [wire.PLACE.pack(place) for place in found] == places
    for end in (7, len(packed) - 1):
        with pytest.raises(Corrupt):
            wire.parse_spares(packed, 0, min(end, len(packed) - 1))


@given(st.lists(addresses, max_size=12))
def test_other_nodes_are_told_the_best_first(choices: list[list[str]]):
    packed = wire.pack_elsewhere(choices)
    found = wire.parse_elsewhere(packed, 0, len(choices), len(packed))
    for index, names in enumerate(choices):
        told = [name for name in names[: wire.CHOICES] if len(name) <= wire.ADDRESS_BYTES_MAX]
        assert list(found.of(index)) == told


@given(st.binary(max_size=60), st.integers(0, 5))
def test_any_bytes_are_other_nodes_or_corrupt(body: bytes, count: int):
    try:
        found = wire.parse_elsewhere(body, 0, count, len(body))
    except Corrupt:
        return
    assert isinstance(found, Elsewhere)
    assert all(isinstance(found.of(n), tuple) for n in range(count))


def test_an_opening_says_who_speaks():
    for message, parse in (
        (Greeting(cluster="c", actor="user:a@b", node="n"), wire.parse_greeting),
        (Welcome(node="n", life="l", refusal="no"), wire.parse_welcome),
    ):
        packed = wire.pack_opening(message)
        size = wire.parse_opening(packed[: wire.OPENING.size])
        assert parse(packed[wire.OPENING.size :][:size]) == message
        with pytest.raises(Corrupt):
            parse(b"{")


@pytest.mark.parametrize(
    "opening", [(b"TCPULL", 1, 5), (wire.MAGIC, 99, 5), (wire.MAGIC, 1, 1 << 20)]
)
def test_openings_of_others_are_corrupt(opening):
    with pytest.raises(Corrupt):
        wire.parse_opening(wire.OPENING.pack(*opening))


def test_flags_and_priority_share_a_byte():
    used = Flag.DIGESTS | Flag.PROPOSED | Flag.ELSEWHERE | Flag.SPACE | Flag.LAST | Flag.WRITTEN
    assert used < 1 << wire.PRIORITY_SHIFT
    assert wire.PRIORITY_MAX << wire.PRIORITY_SHIFT | used <= 0xFF
