"""How an artifact lies in a safetensors file: computed from its index alone, so nothing about it
has to be stored. Pure.

Tensors that overlap in the byte space form a region; most regions are one tensor. The file holds
the bytes of every region once, in order and without the gaps, so the byte space can be rebuilt
exactly. A region is named after the tensor that covers all of it. Tied tensors (the same bytes
under other names) are listed in the metadata as {name: stored name}, as the format's own
`save_model` does. Other views of a region (slices, strides) are stored a second time, contiguous,
behind all regions, so that any tool reads every tensor; loading does not need these copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from tensorcast.movers.core.layout import Layout
from tensorcast.schema.chunks import ByteRange
from tensorcast.schema.safetensors import METADATA, PREFIX_BYTES, write_header
from tensorcast.schema.tensors import Index, Manifest, TensorSpec

HEADER_BYTES_STEP = 4096
"""The head of a file is padded to pages, so that memory and file are aligned alike."""

_REGION = "__tensorcast_region_{}__"


class Region(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors whose bytes overlap: `place` in the byte space, and the tensor that covers all of
    it contiguously (None: no tensor does)."""

    place: ByteRange
    cover: TensorSpec | None
    views: tuple[TensorSpec, ...]


class FilePlan(msgspec.Struct, frozen=True, kw_only=True):
    """`head` are the first bytes of the file; `layout` tells where the byte space lies in it;
    `copies` are the tensors that follow behind it, each with its position; `file_bytes` is the
    size of the whole file."""

    head: bytes
    layout: Layout
    copies: tuple[tuple[int, TensorSpec], ...]
    file_bytes: int


def plan_file(index: Index, size_bytes: int) -> FilePlan:
    """The file of an artifact. The index must have passed `check_index`."""
    regions = find_regions(index)
    entries, tied, copies = _name_entries(regions, index)
    head = _pad(write_header(entries, {**tied, "format": "pt"}))
    parts: list[tuple[int, int, int]] = []
    position = len(head)
    for region in regions:
        if region.place.size:
            parts.append((region.place.offset, region.place.size, position))
        position += region.place.size
    placed: list[tuple[int, TensorSpec]] = []
    for spec in copies:
        placed.append((position, spec))
        position += spec.size_bytes
    return FilePlan(
        head=head,
        layout=Layout(size_bytes=size_bytes, parts=_join(parts)),
        copies=tuple(placed),
        file_bytes=position,
    )


def file_bytes(manifest: Manifest) -> int:
    """What an artifact takes on a disk."""
    return plan_file(manifest.index, manifest.size_bytes).file_bytes


def find_regions(index: Index) -> tuple[Region, ...]:
    """The tensors by overlap, in the order of the byte space. Empty tensors are regions of their
    own."""
    regions: list[Region] = []
    group: list[TensorSpec] = []
    end = 0
    for spec in sorted(index, key=lambda s: (s.extent.offset, -s.extent.size)):
        extent = spec.extent
        if not extent.size:
            regions.append(_region([spec]))
        elif group and extent.offset < end:
            group.append(spec)
            end = max(end, extent.end)
        else:
            if group:
                regions.append(_region(group))
            group, end = [spec], extent.end
    if group:
        regions.append(_region(group))
    return tuple(regions)


def _region(group: list[TensorSpec]) -> Region:
    start = group[0].extent.offset
    place = ByteRange(start, max(spec.extent.end for spec in group) - start)
    covers = [s for s in group if s.strides is None and s.extent == place and s.name != METADATA]
    cover = covers[0] if covers else None
    return Region(place=place, cover=cover, views=tuple(s for s in group if s is not cover))


def _name_entries(
    regions: tuple[Region, ...], index: Index
) -> tuple[list[tuple[str, str, tuple[int, ...]]], dict[str, str], list[TensorSpec]]:
    """The entries of the header in the order of their bytes, the tied names, and the tensors
    that need a contiguous copy."""
    taken = {spec.name for spec in index}
    entries: list[tuple[str, str, tuple[int, ...]]] = []
    tied: dict[str, str] = {}
    copies: list[TensorSpec] = []
    for number, region in enumerate(regions):
        cover = region.cover
        if cover is not None:
            entries.append((cover.name, cover.dtype, cover.shape))
        else:
            entries.append((_free_name(number, taken), "U8", (region.place.size,)))
        for view in region.views:
            if cover is not None and _is_tied(view, cover):
                tied[view.name] = cover.name
            elif view.name != METADATA:
                copies.append(view)
    entries += [(spec.name, spec.dtype, spec.shape) for spec in copies]
    return entries, tied, copies


def _is_tied(view: TensorSpec, cover: TensorSpec) -> bool:
    """Whether a reader gets the same tensor under the name of `cover`."""
    same = (view.dtype, view.shape, view.offset) == (cover.dtype, cover.shape, cover.offset)
    return same and view.strides is None and view.name not in (METADATA, "format")


def _free_name(number: int, taken: set[str]) -> str:
    name = _REGION.format(number)
    while name in taken:
        name += "_"
    return name


def _pad(head: bytes) -> bytes:
    """Fills the JSON of a head with spaces, as the format allows, up to whole pages."""
    text = head[PREFIX_BYTES:]
    text += b" " * (-len(head) % HEADER_BYTES_STEP)
    return len(text).to_bytes(PREFIX_BYTES, "little") + text


def _join(parts: list[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    """Merges parts that follow each other both in the byte space and in the file."""
    joined: list[tuple[int, int, int]] = []
    for offset, size, position in parts:
        if joined:
            before, length, start = joined[-1]
            if before + length == offset and start + length == position:
                joined[-1] = (before, length + size, start)
                continue
        joined.append((offset, size, position))
    return tuple(joined)


def contiguous_bytes(spec: TensorSpec, memory: memoryview) -> Iterator[memoryview | bytes]:
    """The elements of a tensor in row-major order, in pieces, from the byte space `memory`."""
    if spec.strides is None:
        yield memory[spec.extent.offset : spec.extent.end]
        return
    if not spec.size_bytes:
        return
    yield from _rows(spec, memory)


_FORMATS: dict[int, Literal["B", "H", "I", "Q"]] = {1: "B", 2: "H", 4: "I", 8: "Q"}


def _rows(spec: TensorSpec, memory: memoryview) -> Iterator[bytes]:
    """One piece for each index of all dimensions but the last; a step of 0 repeats."""
    strides = spec.strides or ()
    width = spec.size_bytes // _count(spec.shape)
    base = memory[spec.extent.offset : spec.extent.end].cast(_FORMATS[width])
    *outer, inner = spec.shape or (1,)
    step = strides[-1] if strides else 1
    for start in _starts(tuple(outer), strides[:-1]):
        if step:
            yield base[start : start + (inner - 1) * step + 1 : step].tobytes()
        else:
            yield base[start : start + 1].tobytes() * inner


def _starts(shape: tuple[int, ...], strides: tuple[int, ...]) -> Iterator[int]:
    """The element offsets of all rows, in row-major order."""
    if not shape:
        yield 0
        return
    for n in range(shape[0]):
        for start in _starts(shape[1:], strides[1:]):
            yield n * strides[0] + start


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for n in shape:
        count *= n
    return count
