"""Keys of blocks: their binary form is exact, ordered by space, and refuses what it cannot say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorcast.schema.blocks import (
    PACKED_BYTES_MAX,
    PACKED_BYTES_MIN,
    BlockKey,
    is_packed,
    pack_key,
    pack_keys,
    pack_space,
    unpack_key,
)
from tensorcast.schema.errors import Corrupt, InvalidArgument

spaces = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=64)
prefixes = st.binary(min_size=8, max_size=32)
parts = st.integers(0, 0xFFFF)
keys = st.builds(BlockKey, space=spaces, prefix=prefixes, layer_group=parts, rank=parts)


@given(keys)
def test_a_packed_key_is_the_key(key: BlockKey):
    packed = pack_key(key)
    assert unpack_key(packed) == key
    assert PACKED_BYTES_MIN <= len(packed) <= PACKED_BYTES_MAX
    assert packed.startswith(pack_space(key.space))


@given(keys, keys)
def test_different_keys_pack_differently(one: BlockKey, other: BlockKey):
    assert (pack_key(one) == pack_key(other)) == (one == other)


def test_a_wrong_value_is_not_echoed_at_length():
    with pytest.raises(InvalidArgument, match=r"of 5000\) is no space") as raised:
        pack_keys("x" * 5000, [b"12345678"])
    assert len(str(raised.value)) < 400
    with pytest.raises(InvalidArgument, match=r"of 4000\)") as raised:
        pack_keys("m", [b"12345678", b"y" * 4000])
    assert len(str(raised.value)) < 400
    with pytest.raises(InvalidArgument, match="prefix hash is 'text'"):
        pack_keys("m", [b"12345678", "text"])
    assert pack_keys("m", []) == []


@given(spaces, spaces, prefixes)
def test_a_space_is_no_beginning_of_another_ones_keys(one: str, other: str, prefix: bytes):
    packed = pack_key(BlockKey(one, prefix))
    assert packed.startswith(pack_space(other)) == (one == other)


@given(st.binary(max_size=PACKED_BYTES_MAX + 2))
def test_other_bytes_are_corrupt_or_one_key(packed: bytes):
    try:
        key = unpack_key(packed)
    except Corrupt:
        return
    assert pack_key(key) == packed


def test_many_keys_of_a_part_pack_as_each_alone():
    hashes = [bytes([number]) * 16 for number in range(5)]
    expected = [pack_key(BlockKey("m", each, 3, 2)) for each in hashes]
    assert pack_keys("m", hashes, layer_group=3, rank=2) == expected


@pytest.mark.parametrize(
    ("space", "prefix", "layer_group", "rank"),
    [
        ("", b"x" * 16, 0, 0),
        ("x" * 65, b"x" * 16, 0, 0),
        ("a b", b"x" * 16, 0, 0),
        ("ä", b"x" * 16, 0, 0),
        ("m", b"x" * 7, 0, 0),
        ("m", b"x" * 33, 0, 0),
        ("m", b"x" * 16, -1, 0),
        ("m", b"x" * 16, 0, 1 << 16),
    ],
)
def test_what_is_no_key_is_refused(space: str, prefix: bytes, layer_group: int, rank: int):
    with pytest.raises(InvalidArgument):
        BlockKey(space, prefix, layer_group, rank)


def test_many_keys_are_checked_too():
    with pytest.raises(InvalidArgument):
        pack_keys("m", [b"x" * 16, b"short"])


def test_only_lengths_decide_what_may_be_packed():
    assert is_packed([b"x" * PACKED_BYTES_MIN, b"x" * PACKED_BYTES_MAX])
    assert not is_packed([b"x" * (PACKED_BYTES_MIN - 1)])
    assert not is_packed([b"x" * (PACKED_BYTES_MAX + 1)])


def test_a_key_reads_well():
    assert str(BlockKey("llama", b"\x01" * 8, 2, 1)) == "llama/2/1/0101010101010101"
