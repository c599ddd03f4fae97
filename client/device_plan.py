"""Which bytes of an artifact go where in one block of a device's memory. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tensorcast.client.tensors import merge_overlapping
from tensorcast.schema.tensors import ALIGNMENT_BYTES, align
from tensorcast.schema.views import Selected, byte_ranges
from tensorcast.storage.spans import Span


class Placed(NamedTuple):
    """A tensor `offset` bytes into the block. `is_cut`: only its part is there, without gaps."""

    item: Selected
    offset: int
    is_cut: bool


class DevicePlan(NamedTuple):
    """`spans` are sorted by target and disjoint; the block has `size_bytes`."""

    spans: tuple[Span, ...]
    placed: tuple[Placed, ...]
    size_bytes: int


def plan_block(selected: Sequence[Selected]) -> DevicePlan:
    """Tensors that share bytes share them there too; of the others only what was selected comes."""
    cursor = 0
    spans: list[Span] = []
    placed: list[Placed] = []
    for group in merge_overlapping(selected, _extent):
        cursor = align(cursor)
        if len(group) == 1 and group[0].spec.strides is None:
            placed.append(Placed(group[0], cursor, is_cut=True))
            for place in byte_ranges(group[0]):
                spans.append(Span(place.offset, place.size, cursor))
                cursor += place.size
            continue
        start = min(item.spec.offset for item in group)
        start -= start % ALIGNMENT_BYTES
        size = max(item.spec.extent.end for item in group) - start
        spans.append(Span(start, size, cursor))
        placed += [Placed(i, cursor + i.spec.offset - start, is_cut=False) for i in group]
        cursor += size
    order = {item.spec.name: number for number, item in enumerate(selected)}
    placed.sort(key=lambda one: order[one.item.spec.name])
    return DevicePlan(tuple(spans), tuple(placed), cursor)


def _extent(item: Selected) -> tuple[str, int, int]:
    extent = item.spec.extent
    return "", extent.offset, extent.end
