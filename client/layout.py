"""From tensors of torch to an artifact's byte space.

Tensors that share memory are laid out once, so that they come back sharing it; all others follow
each other, contiguous, in the order of their names. Only the functions that need torch import it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tensorcast.client.copying import copy_bits
from tensorcast.client.filling import Block, Intake, Piece
from tensorcast.client.tensors import merge_overlapping, name_dtypes, place_within
from tensorcast.schema.chunks import ByteRange
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.tensors import TensorSpec, align, check_index
from tensorcast.storage.memory import address_of

if TYPE_CHECKING:
    import torch


class _Entry(NamedTuple):
    """A tensor of a state dict; `start` and `end` are addresses of its first and past its last
    byte (on `device`), `order` its place among the names."""

    order: int
    name: str
    dtype: str
    tensor: torch.Tensor
    device: str
    start: int
    end: int


def take_in_tensors(tensors: Mapping[str, torch.Tensor]) -> Intake:
    """What a put of these tensors will write.

    Raises InvalidArgument, naming the entry, for what is no ordinary tensor with a dtype that
    safetensors knows.
    """
    entries = [_examine(order, name, value) for order, (name, value) in enumerate(tensors.items())]
    _await_devices({entry.device for entry in entries})
    specs: dict[int, TensorSpec] = {}
    pieces: list[Piece] = []
    blocks: list[Block] = []
    offset = 0
    for group in _group(entries):
        offset = align(offset)
        placed, piece, block = _place(group, offset)
        specs.update(placed)
        if piece.place.size:
            pieces.append(piece)
        if block is not None:
            blocks.append(block)
        offset = piece.place.end
    index = tuple(specs[entry.order] for entry in entries)
    check_index(index, offset)
    return Intake(index, offset, tuple(pieces), tuple(blocks))


def _examine(order: int, name: object, value: object) -> _Entry:
    import torch

    if not isinstance(name, str):
        raise InvalidArgument(f"The name {name!r} is not text.", hint="Tensors are named by text.")
    if not isinstance(value, torch.Tensor):
        raise InvalidArgument(
            f"Entry {name!r} is of type {type(value).__name__}, not a tensor.",
            hint="Put a flat mapping of names to tensors; leave everything else out.",
        )
    if hasattr(value, "to_local"):
        raise InvalidArgument(
            f"Entry {name!r} is a distributed tensor.", hint="Put .to_local() or .full_tensor()."
        )
    if value.layout != torch.strided or value.is_quantized or value.is_meta:
        what = "meta" if value.is_meta else "quantized" if value.is_quantized else "sparse"
        raise InvalidArgument(
            f"Entry {name!r} is a {what} tensor.", hint="Put dense tensors that have their bytes."
        )
    dtype = name_dtypes().get(value.dtype)
    if dtype is None:
        raise InvalidArgument(
            f"Entry {name!r} has dtype {value.dtype}, which safetensors does not know.",
            hint="Convert it first, for example with .view(torch.uint8).",
        )
    if dtype == "F4" and value.dim() == 0:
        raise InvalidArgument(f"Entry {name!r} of a packed dtype has no dimension.")
    tensor = value.detach().resolve_conj().resolve_neg()
    start = tensor.data_ptr()
    return _Entry(order, name, dtype, tensor, str(tensor.device), start, start + _span(tensor))


def _await_devices(devices: set[str]) -> None:
    """Work that is still queued on a device may yet write what is put."""
    import torch

    for device in devices:
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)


def _span(tensor: torch.Tensor) -> int:
    """Bytes from its first element to the end of its last."""
    if tensor.numel() == 0:
        return 0
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _group(entries: Sequence[_Entry]) -> list[list[_Entry]]:
    """Tensors whose bytes overlap, together; groups in the order of their first names."""
    groups: list[list[_Entry]] = []
    for group in merge_overlapping(entries, lambda entry: (entry.device, entry.start, entry.end)):
        group.sort(key=lambda entry: entry.order)
        groups.extend([group] if _is_regular(group) else ([entry] for entry in group))
    return sorted(groups, key=lambda group: group[0].order)


def _base(group: Sequence[_Entry]) -> int:
    """The address that the group's place stands for: every member is aligned to it."""
    start = min(entry.start for entry in group)
    return start - start % max(entry.tensor.element_size() for entry in group)


def _is_regular(group: Sequence[_Entry]) -> bool:
    """Whether every member can be told by an offset in elements and strides from the base."""
    base = _base(group)
    return all(
        (entry.start - base) % entry.tensor.element_size() == 0
        and (entry.dtype != "F4" or entry.tensor.is_contiguous())
        for entry in group
    )


def _place(
    group: Sequence[_Entry], offset: int
) -> tuple[dict[int, TensorSpec], Piece, Block | None]:
    if len(group) == 1:
        return _place_alone(group[0], offset)
    base = _base(group)
    place = ByteRange(offset, max(entry.end for entry in group) - base)
    specs = {
        entry.order: _spec(entry, offset + entry.start - base, keeps_strides=True)
        for entry in group
    }
    whole = next((entry for entry in group if _is_whole(entry, base, place.size)), None)
    if whole is not None:
        return specs, _piece(place, whole.tensor), None
    block = Block(place, lambda target: _write_group(group, base, target), has_gaps=True)
    return specs, Piece(place, None), block


def _place_alone(entry: _Entry, offset: int) -> tuple[dict[int, TensorSpec], Piece, Block | None]:
    tensor = entry.tensor
    specs = {entry.order: _spec(entry, offset, keeps_strides=False)}
    place = ByteRange(offset, tensor.numel() * tensor.element_size())
    if tensor.is_contiguous() and tensor.device.type == "cpu":
        return specs, _piece(place, tensor), None
    block = Block(place, lambda target: _write_alone(tensor, target), has_gaps=False)
    return specs, Piece(place, None), block if place.size else None


def _spec(entry: _Entry, offset: int, *, keeps_strides: bool) -> TensorSpec:
    tensor = entry.tensor
    shape = tuple(tensor.shape)
    if entry.dtype == "F4":
        shape = (*shape[:-1], shape[-1] * 2)
    is_strided = keeps_strides and not tensor.is_contiguous()
    return TensorSpec(
        name=entry.name,
        dtype=entry.dtype,
        shape=shape,
        offset=offset,
        strides=tuple(tensor.stride()) if is_strided else None,
    )


def _is_whole(entry: _Entry, base: int, size_bytes: int) -> bool:
    """Whether this one tensor holds all bytes of its group in order, in ordinary memory."""
    return (
        entry.start == base
        and entry.end - entry.start == size_bytes
        and entry.tensor.is_contiguous()
        and entry.device == "cpu"
    )


def _piece(place: ByteRange, tensor: torch.Tensor) -> Piece:
    """The bytes of a contiguous tensor in ordinary memory, which it keeps alive."""
    if not place.size:
        return Piece(place, None)
    memory = memoryview((ctypes.c_ubyte * place.size).from_address(tensor.data_ptr())).cast("B")

    def read(target: memoryview, start: int) -> None:
        # memmove lets other threads run; torch would start a pool of its own for each of ours.
        ctypes.memmove(address_of(target), tensor.data_ptr() + start, len(target))

    return Piece(place, read, memory)


def _write_alone(tensor: torch.Tensor, target: memoryview) -> None:
    import torch

    if tensor.device.type == "cuda" and tensor.is_contiguous():
        from tensorcast.client.devices import take_out

        take_out(tensor, target)
        return
    flat = torch.frombuffer(target, dtype=torch.uint8)
    copy_bits(tensor, flat.view(tensor.dtype).view(tensor.shape))


def _write_group(group: Sequence[_Entry], base: int, target: memoryview) -> None:
    import torch

    flat = torch.frombuffer(target, dtype=torch.uint8)
    for entry in group:
        tensor = entry.tensor
        place = place_within(flat, entry.start - base, tensor.dtype, tensor.shape, tensor.stride())
        copy_bits(*_without_repeats(tensor, place))


def _without_repeats(
    source: torch.Tensor, target: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same elements, each once where a dimension only repeats them (`expand`), and as one run
    where windows overlap (`unfold`): torch refuses to write an element twice."""
    for dim, step in enumerate(source.stride()):
        if step == 0 and source.shape[dim] > 1:
            source, target = source.narrow(dim, 0, 1), target.narrow(dim, 0, 1)
    steps = sorted(zip(source.stride(), source.shape, strict=True))
    reach = 1
    for step, length in steps:
        if length > 1:
            if step < reach:
                run = (_span(source) // source.element_size(),)
                return source.as_strided(run, (1,)), target.as_strided(run, (1,))
            reach += (length - 1) * step
    return source, target
