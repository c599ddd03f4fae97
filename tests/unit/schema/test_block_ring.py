"""Bytes that go round and round."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tensorcast.schema import block_ring as ring


@given(st.lists(st.integers(1, ring.RING_BYTES), max_size=8), st.integers(0, 1 << 40))
def test_what_is_written_is_read(sizes: list[int], position: int):
    memory = memoryview(bytearray(ring.RING_BYTES))
    for number, size in enumerate(sizes):
        content = bytes([number + 1]) * (size - 1) + b"\xff"
        ring.write_around(memory, position, content)
        assert ring.read_around(memory, position, size) == content
        position += size


def test_the_parts_do_not_overlap():
    words = ring.SLOTS_FIRST + 2 * ring.SLOTS
    assert ring.WATCHED < ring.SLOTS_FIRST
    assert 8 * words == ring.RING_AT
    assert ring.RING_AT + ring.RING_BYTES == ring.MEMORY_BYTES
