"""Where the tensors of a load go in memory, and which bytes of which file they are. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tensorcast.schema.safetensors import Header
from tensorcast.schema.tensors import DTYPE_BITS, Index, TensorSpec
from tensorcast.schema.views import Selected, View, byte_ranges, resolve
from tensorcast.storage.spans import BLOCK_BYTES, Span, place_after


class LoadPlan(NamedTuple):
    """`spans[i]` are the bytes that are read of file i, with their places in memory of
    `size_bytes` bytes; `specs` are the tensors over that memory, in the order that was asked for.
    """

    spans: tuple[tuple[Span, ...], ...]
    specs: Index
    size_bytes: int


def index_of(header: Header) -> Index:
    """The tensors of a file; their offsets are positions in the file."""
    return tuple(
        TensorSpec(name=t.name, dtype=t.dtype, shape=t.shape, offset=t.place.offset)
        for t in header.tensors
    )


def select(view: View, headers: Sequence[Header]) -> tuple[tuple[Selected, ...], ...]:
    """What a view takes of each file. Raises NotFound, InvalidArgument."""
    chosen = resolve(view, tuple(spec for header in headers for spec in index_of(header)))
    at = {t.name: number for number, header in enumerate(headers) for t in header.tensors}
    found: list[list[Selected]] = [[] for _ in headers]
    for item in chosen:
        found[at[item.spec.name]].append(item)
    return tuple(tuple(items) for items in found)


def plan_load(selected: Sequence[Sequence[Selected]]) -> LoadPlan:
    """The plan for what was selected of each file: memory without holes to speak of, aligned as
    the files are."""
    cursor = 0
    spans: list[tuple[Span, ...]] = []
    specs: list[TensorSpec] = []
    for items in selected:
        found: list[Span] = []
        for item in sorted(items, key=lambda item: item.spec.offset):
            target, taken = _place(item, cursor, begins_run=not found)
            found += taken
            specs.append(_built(item, target))
            cursor = max(cursor, target + sum(span.size for span in taken))
        spans.append(tuple(found))
    order = {item.spec.name: n for n, item in enumerate(i for items in selected for i in items)}
    specs.sort(key=lambda spec: order[spec.name])
    return LoadPlan(tuple(spans), tuple(specs), cursor)


def _place(item: Selected, cursor: int, *, begins_run: bool) -> tuple[int, list[Span]]:
    ranges = byte_ranges(item)
    if not ranges:
        return 0, []
    target = place_after(
        cursor,
        ranges[0].offset,
        max(1, DTYPE_BITS[item.spec.dtype] // 8),
        begins_run=begins_run or ranges[0].size >= BLOCK_BYTES,
    )
    found = []
    at = target
    for place in ranges:
        found.append(Span(place.offset, place.size, at))
        at += place.size
    return target, found


def _built(item: Selected, target: int) -> TensorSpec:
    return TensorSpec(name=item.spec.name, dtype=item.spec.dtype, shape=item.shape, offset=target)


def is_mappable(selected: Sequence[Sequence[Selected]]) -> bool:
    """Whether the tensors can be used where they lie in the files: none is cut into rows, and each
    begins at a multiple of its elements' size."""
    return all(
        len(byte_ranges(item)) <= 1
        and not item.spec.offset % max(1, DTYPE_BITS[item.spec.dtype] // 8)
        for items in selected
        for item in items
    )
