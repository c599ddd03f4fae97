"""Slots and slabs: little is wasted, places do not overlap, and a budget is never passed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tensorcast.movers.core.slots import (
    SLAB_BYTES_MAX,
    SLAB_BYTES_SOON,
    SLAB_BYTES_STEP,
    SLOT_BYTES_MIN,
    cut_slab,
    slab_bytes,
    slot_bytes,
)
from tensorcast.schema.block_wire import OFFSET_BITS, PLACE
from tensorcast.schema.blocks import BLOCK_BYTES_MAX

sizes = st.integers(1, BLOCK_BYTES_MAX)


@given(sizes)
def test_a_slot_holds_its_block_and_wastes_an_eighth_at_most(size: int):
    slot = slot_bytes(size)
    assert size <= slot <= max(size + size // 8 + 1, -(-size // SLOT_BYTES_MIN) * SLOT_BYTES_MIN)
    assert slot_bytes(slot) == slot


def test_powers_of_two_waste_nothing():
    assert all(slot_bytes(1 << n) == 1 << n for n in range(8, 27))


@given(sizes, st.integers(0, 1 << 30))
def test_a_slab_fits_its_budget_and_holds_a_slot(size: int, budget: int):
    slot = slot_bytes(size)
    found = slab_bytes(slot, budget)
    assert found <= budget
    assert found % SLAB_BYTES_STEP == 0
    assert not found or slot <= found <= SLAB_BYTES_MAX + SLAB_BYTES_STEP


def test_a_large_budget_has_large_slabs():
    assert slab_bytes(1 << 16, 8 << 30) == SLAB_BYTES_MAX
    assert slab_bytes(1 << 16, 1 << 20) == 0
    assert slab_bytes(BLOCK_BYTES_MAX + 1, 8 << 30) == 0


def test_a_slab_that_is_waited_for_is_smaller():
    slot = 1 << 19
    assert slab_bytes(slot, 8 << 30, 2) == SLAB_BYTES_SOON
    assert slab_bytes(slot, 8 << 30, 52) == 52 * slot
    assert slab_bytes(slot, 8 << 30, 1000) == SLAB_BYTES_MAX
    assert slab_bytes(slot, 32 << 20, 1000) == slab_bytes(slot, 32 << 20) == 2 << 20


@given(st.integers(1, 1000), sizes)
def test_places_are_neighbours_from_the_end_on(number: int, size: int):
    slot = slot_bytes(size)
    capacity = -(-slot * 3 // SLAB_BYTES_STEP) * SLAB_BYTES_STEP
    capacity = min(capacity, max(slot, 64 * slot))
    places = [PLACE.unpack(place)[0] for place in reversed(cut_slab(number, capacity, slot))]
    assert len(places) == capacity // slot
    assert places == [(number << OFFSET_BITS) + n * slot for n in range(len(places))]
