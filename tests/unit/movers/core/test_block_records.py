from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from block_samples import key
from tensorcast.movers.core.block_records import (
    HEAD_BYTES,
    NO_DIGEST,
    WINDOW_BYTES,
    Kind,
    Record,
    pack_head,
    parse_head,
)
from tensorcast.schema.blocks import BLOCK_BYTES_MAX

STORED = Record(Kind.STORED, key(7), 1 << 16, b"12345678")
REMOVED = Record(Kind.REMOVED, key(7), 0, NO_DIGEST)


@pytest.mark.parametrize("record", [STORED, REMOVED])
@pytest.mark.parametrize("after", [b"", bytes(WINDOW_BYTES)])
def test_a_head_is_read_as_it_was_written(record, after):
    assert parse_head(pack_head(record) + after) == record
    assert record.data == len(pack_head(record)) <= WINDOW_BYTES
    assert record.end == record.data + record.size


@given(st.integers(0, HEAD_BYTES + len(STORED.key) - 1), st.integers(1, 255))
def test_a_head_with_one_wrong_byte_is_not_trusted(place, flip):
    head = bytearray(pack_head(STORED))
    head[place] ^= flip
    assert parse_head(bytes(head)) is None


@given(st.integers(0, HEAD_BYTES + len(STORED.key) - 1))
def test_half_a_head_is_none(size):
    assert parse_head(pack_head(STORED)[:size]) is None


@given(st.binary(max_size=WINDOW_BYTES))
def test_any_bytes_can_be_looked_at(window):
    assert parse_head(window) is None


@pytest.mark.parametrize(
    "record",
    [
        STORED._replace(size=BLOCK_BYTES_MAX + 1),
        STORED._replace(key=b""),
        STORED._replace(key=bytes(200)),
        REMOVED._replace(size=5),
    ],
)
def test_what_makes_no_sense_is_not_trusted_even_with_a_right_digest(record):
    assert parse_head(pack_head(record)) is None
