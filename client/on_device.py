"""An artifact into the memory of a CUDA device: from the node's replica on a GPU, by a copy within
the device (its memory is opened by a handle, which takes no time), else from the node's memory,
through a few pinned buffers.

Copies go on a stream of their own: nothing that the application has given to the device waits for
them. When a call returns, the bytes are there, for whatever stream.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from tensorcast.client.copying import copy_bits
from tensorcast.client.device_plan import DevicePlan, Placed, plan_block
from tensorcast.client.tensors import Bytes, check_targets, torch_form
from tensorcast.gpu.port import Gpu
from tensorcast.gpu.staging import Piece, Staging
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.socket import GpuPlace
from tensorcast.schema.views import Selected, byte_ranges
from tensorcast.storage.spans import Span

if TYPE_CHECKING:
    import torch


class Block(NamedTuple):
    """Memory of a device: a tensor of bytes, and its address."""

    flat: torch.Tensor
    address: int


class Place:
    """A device of this process: its port, memory that tensors may lie in, and pinned buffers, which
    are kept from the first use on."""

    def __init__(self, gpu: Gpu, new_block: Callable[[int], Block]) -> None:
        self.gpu = gpu
        self.new_block = new_block

    @cached_property
    def staging(self) -> Staging:
        return Staging(self.gpu)


class Source(NamedTuple):
    """Where an artifact's byte space can be had: mapped, or on a device, with its lifeline."""

    memory: Bytes | None
    on_gpu: GpuPlace | None = None
    lifeline: int = -1

    def close(self) -> None:
        """Lets the replica on the device go. What was mapped ends with its last tensor."""
        if self.lifeline >= 0:
            os.close(self.lifeline)


def get_on_device(
    source: Source, selected: Sequence[Selected], place: Place
) -> dict[str, torch.Tensor]:
    """The selected tensors in new memory of the device. Blocks. Raises OutOfCapacity."""
    plan = plan_block(selected)
    block = place.new_block(plan.size_bytes)
    carry(source, [span._replace(target=span.target + block.address) for span in plan.spans], place)
    return build(plan, block.flat)


def get_into_device(
    source: Source,
    selected: Sequence[Selected],
    targets: Mapping[str, torch.Tensor],
    place: Place,
    *,
    strict: bool,
) -> None:
    """Copies the selected tensors into tensors of the device: straight, or by way of other memory
    of it where the target is not in order. Blocks. Raises as `check_targets`; OutOfCapacity."""
    wanted = check_targets(selected, targets, strict=strict)
    straight = [item for item in wanted if _is_plain(item, targets[item.spec.name])]
    spans: list[Span] = []
    for item in straight:
        at = targets[item.spec.name].data_ptr()
        for part in byte_ranges(item):
            spans.append(Span(part.offset, part.size, at))
            at += part.size
    carry(source, sorted(spans, key=lambda span: span.target), place)
    names = {item.spec.name for item in straight}
    others = [item for item in wanted if item.spec.name not in names]
    for name, tensor in get_on_device(source, others, place).items():
        copy_bits(tensor, targets[name])


def _is_plain(item: Selected, target: torch.Tensor) -> bool:
    return target.is_contiguous() and item.spec.strides is None


def carry(source: Source, spans: Sequence[Span], place: Place) -> None:
    """The bytes of spans, whose targets are sorted addresses of the device. When it returns or
    raises, no copy is under way."""
    spans = [span for span in spans if span.size]
    if not spans:
        return
    if source.on_gpu is not None:
        _carry_within(source.on_gpu, spans, place)
        return
    if source.memory is None:
        raise Corrupt("An artifact without bytes has tensors with bytes.")
    with memoryview(source.memory) as memory:
        place.staging.fill(_pieces(memory, spans))


def _carry_within(found: GpuPlace, spans: Sequence[Span], place: Place) -> None:
    with _opened(found, place.gpu) as base:
        cuda_stream = place.gpu.open_stream()
        try:
            for span in spans:
                cuda_stream.copy_within(span.target, base + span.position, span.size)
        finally:
            cuda_stream.record().synchronize()


@contextmanager
def _opened(found: GpuPlace, gpu: Gpu) -> Iterator[int]:
    """The address of the mover's memory here. The handle works for another device as well, which
    reaches it over the bus."""
    address = gpu.adopt(found.handle)
    with ExitStack() as opened:
        opened.callback(gpu.release, address)
        yield address


def _pieces(memory: memoryview, spans: Sequence[Span]) -> Iterator[Piece]:
    """Runs of targets that follow each other: a buffer takes what it can of a run, so that many
    small spans are one copy."""
    run: list[Span] = []
    for span in spans:
        if run and span.target != run[-1].target + run[-1].size:
            yield _piece(memory, run)
            run = []
        run.append(span)
    yield _piece(memory, run)


def _piece(memory: memoryview, run: list[Span]) -> Piece:
    start, starts = run[0].target, [span.target - run[0].target for span in run]

    def move(part: memoryview, skipped: int) -> None:
        filled = 0
        at = bisect_right(starts, skipped) - 1
        while filled < len(part):
            span = run[at]
            inside = skipped + filled - starts[at]
            size = min(span.size - inside, len(part) - filled)
            begin = span.position + inside
            part[filled : filled + size] = memory[begin : begin + size]
            filled += size
            at += 1

    return Piece(start, run[-1].target + run[-1].size - start, move)


def build(plan: DevicePlan, flat: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensors over a block that was filled."""
    return {placed.item.spec.name: _build_one(placed, flat) for placed in plan.placed}


def _build_one(placed: Placed, flat: torch.Tensor) -> torch.Tensor:
    import torch

    spec, part = placed.item.spec, placed.item.part
    dtype, shape = torch_form(spec)
    if placed.is_cut and part is not None:
        shape = placed.item.shape
    if not spec.size_bytes or 0 in shape:
        return torch.empty(shape, dtype=dtype, device=flat.device)
    start = flat.storage_offset() + placed.offset
    steps = spec.strides or _contiguous(shape)
    empty = torch.empty(0, dtype=dtype, device=flat.device)
    found = empty.set_(flat.untyped_storage(), start // dtype.itemsize, tuple(shape), tuple(steps))
    if not placed.is_cut and part is not None:
        return found.narrow(part.dim, part.start, part.length)
    return found


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    steps = [1]
    for length in reversed(shape[1:]):
        steps.insert(0, steps[0] * max(1, length))
    return tuple(steps) if shape else ()
