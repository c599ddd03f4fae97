"""Sizes of slots: which slot a block of some size goes into, and how a slab is cut. Pure."""

from __future__ import annotations

from tensorcast.schema.block_wire import OFFSET_BITS, PLACE
from tensorcast.schema.blocks import BLOCK_BYTES_MAX

SLOT_BYTES_MIN = 256
SLAB_BYTES_STEP = 2 << 20
SLAB_BYTES_MAX = 64 << 20
SLAB_BYTES_SOON = 16 << 20
"""A slab that somebody waits for need not be larger. (Much smaller ones could not be cut anew for
large blocks.)"""
SLABS_MIN = 16
"""A budget is cut into at least so many slabs, if each has SLAB_BYTES_STEP at least."""


def slot_bytes(size_bytes: int) -> int:
    """The size of the slot for a block: at most an eighth larger, and exact for powers of two.

    The classes of Memcached and jemalloc: eight steps from one power of two to the next.
    """
    step = max(SLOT_BYTES_MIN, 1 << max(0, size_bytes.bit_length() - 4))
    return max(1, -(-size_bytes // step)) * step


def slab_bytes(slot: int, budget_bytes: int, slots_max: int = 0) -> int:
    """The size of a new slab for slots of this size; 0 when the budget cannot hold one.
    `slots_max`: as small as it makes sense for so many; 0: of the usual size."""
    if slot > BLOCK_BYTES_MAX:
        return 0
    usual = min(SLAB_BYTES_MAX, budget_bytes // SLABS_MIN)
    if slots_max:
        usual = min(usual, max(SLAB_BYTES_SOON, slots_max * slot))
    wanted = max(1, usual // slot) * slot
    rounded = -(-wanted // SLAB_BYTES_STEP) * SLAB_BYTES_STEP
    return rounded if rounded <= budget_bytes else 0


def cut_slab(number: int, capacity_bytes: int, slot: int) -> list[bytes]:
    """The places of a slab's slots, the last first: they are taken from the end, so neighbours
    are handed out one after the other."""
    base = number << OFFSET_BITS
    last = (capacity_bytes // slot - 1) * slot
    return [PLACE.pack(base + offset) for offset in range(last, -1, -slot)]
