"""From an artifact's byte space to tensors of torch: they lie in the mapping itself, nothing is
copied. Tensors whose bytes overlap share a storage, so tied weights come back tied.

Only the functions that need torch import it. The way in is in `layout.py`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from math import prod
from typing import TYPE_CHECKING, TypeVar

from tensorcast.client.copying import Copies, copy_all
from tensorcast.client.memory import Mapping as MemoryMapping
from tensorcast.schema.errors import Corrupt, InvalidArgument
from tensorcast.schema.tensors import ALIGNMENT_BYTES, TensorSpec
from tensorcast.schema.views import Selected

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
Bytes = MemoryMapping | memoryview
"""Memory that tensors lie in: a mapped segment, or any writable bytes."""

TORCH_NAMES: dict[str, str] = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "I64": "int64",
    "U64": "uint64",
    "F64": "float64",
    "C64": "complex64",
    "F4": "float4_e2m1fn_x2",
}
"""The names of dtypes in safetensors and in torch. F4 holds two values in a byte: its last
dimension counts values in safetensors, bytes in torch. The six-bit dtypes have none in torch and
come as flat bytes."""


@cache
def _dtypes() -> dict[str, torch.dtype]:
    """Those that the installed torch knows."""
    import torch

    return {
        name: getattr(torch, torch_name)
        for name, torch_name in TORCH_NAMES.items()
        if hasattr(torch, torch_name)
    }


@cache
def name_dtypes() -> dict[torch.dtype, str]:
    """The names in safetensors of the dtypes that the installed torch knows."""
    return {dtype: name for name, dtype in _dtypes().items()}


def build_tensors(
    memory: Bytes | None, selected: Sequence[Selected], *, copy: bool = False
) -> dict[str, torch.Tensor]:
    """The selected tensors over mapped memory, which they keep alive; with `copy` in memory of
    their own (small ones share it). Tensors whose bytes overlap share a storage either way.

    Raises InvalidArgument when the installed torch does not know a dtype, Corrupt when the places
    cannot be right.
    """
    found: dict[str, torch.Tensor] = {}
    copies = Copies() if copy else None
    with collection_paused():
        for group in merge_overlapping(selected, _extent):
            if len(group) == 1:
                found[group[0].spec.name] = _build_alone(memory, group[0], copies)
            else:
                found.update(_build_group(memory, group, copies))
    if copies is not None:
        copies.carry_out()
    return {item.spec.name: found[item.spec.name] for item in selected}


@contextmanager
def collection_paused() -> Iterator[None]:
    """Hundreds of new tensors, none of them garbage, would set off the collector of the whole
    application, which takes 70 ms with torch loaded: far longer than the read itself."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _extent(item: Selected) -> tuple[str, int, int]:
    extent = item.spec.extent
    return "", extent.offset, extent.end


def merge_overlapping(
    items: Sequence[T], extent: Callable[[T], tuple[str, int, int]]
) -> list[list[T]]:
    """Items whose extents (space, start, end) overlap, together, directly or through others. One
    without length overlaps none."""
    groups: list[list[T]] = []
    run: list[T] = []
    last_space, last_end = "", -1
    places = [(*extent(item), order) for order, item in enumerate(items)]
    for space, start, end, order in sorted(places):
        item = items[order]
        if start == end:
            groups.append([item])
        elif run and space == last_space and start < last_end:
            run.append(item)
            last_end = max(last_end, end)
        else:
            run = [item]
            groups.append(run)
            last_space, last_end = space, end
    return groups


def _build_alone(memory: Bytes | None, item: Selected, copies: Copies | None) -> torch.Tensor:
    import torch

    spec = item.spec
    dtype, shape = torch_form(spec)
    count = prod(shape)
    if count == 0 or memory is None:
        return _cut(torch.empty(shape, dtype=dtype), item)
    if spec.strides is not None:
        return _build_group(memory, [item], copies)[spec.name]
    flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=spec.offset)
    part = _cut(flat.view(shape), item)
    return copies.of(part) if copies is not None else part


def _build_group(
    memory: Bytes | None, group: Sequence[Selected], copies: Copies | None
) -> dict[str, torch.Tensor]:
    import torch

    assert memory is not None
    start = min(item.spec.offset for item in group)
    start -= start % ALIGNMENT_BYTES
    size_bytes = max(item.spec.extent.end for item in group) - start
    flat = torch.frombuffer(memory, dtype=torch.uint8, count=size_bytes, offset=start)
    if copies is not None:
        flat = copies.of(flat)
    found = {}
    for item in group:
        dtype, shape = torch_form(item.spec)
        offset = item.spec.offset - start
        if offset % dtype.itemsize:
            raise Corrupt(f"Tensor {item.spec.name!r} begins within an element of another.")
        found[item.spec.name] = _cut(
            place_within(flat, offset, dtype, shape, item.spec.strides), item
        )
    return found


def torch_form(spec: TensorSpec) -> tuple[torch.dtype, tuple[int, ...]]:
    """The dtype and shape that a tensor has in torch. Raises InvalidArgument when the installed
    torch does not know the dtype."""
    import torch

    if spec.dtype.startswith("F6_"):
        return torch.uint8, (spec.size_bytes,)
    dtype = _dtypes().get(spec.dtype)
    if dtype is None:
        raise InvalidArgument(
            f"Tensor {spec.name!r} is {spec.dtype}, which torch {torch.__version__} does not know.",
            hint="Use a newer torch, or `tcctl get` to write a file.",
        )
    if spec.dtype == "F4":
        if not spec.shape or spec.shape[-1] % 2:
            raise InvalidArgument(f"Tensor {spec.name!r} of shape {spec.shape} is not in pairs.")
        return dtype, (*spec.shape[:-1], spec.shape[-1] // 2)
    return dtype, spec.shape


def _cut(tensor: torch.Tensor, item: Selected) -> torch.Tensor:
    part = item.part
    return tensor if part is None else tensor.narrow(part.dim, part.start, part.length)


def copy_into(
    memory: Bytes | None,
    selected: Sequence[Selected],
    targets: Mapping[str, torch.Tensor],
    *,
    strict: bool,
) -> None:
    """Copies the selected tensors into `targets`, in a few threads. Nothing is written unless all
    names (if `strict`), dtypes and shapes fit: raises InvalidArgument for the first that does
    not."""
    wanted = check_targets(selected, targets, strict=strict)
    sources = build_tensors(memory, wanted)
    copy_all((source, targets[name]) for name, source in sources.items())


def check_targets(
    selected: Sequence[Selected], targets: Mapping[str, torch.Tensor], *, strict: bool
) -> list[Selected]:
    """Those of the selected tensors that have a target. Raises InvalidArgument unless all names (if
    `strict`), dtypes and shapes fit."""
    if not isinstance(targets, Mapping):
        raise InvalidArgument(
            f"A {type(targets).__name__} is no mapping of names to tensors.",
            hint="Give a dict of tensors by name.",
        )
    if strict:
        _check_names([item.spec.name for item in selected], targets)
    wanted = [item for item in selected if item.spec.name in targets]
    for item in wanted:
        _check_target(item, targets[item.spec.name])
    return wanted


def _check_names(names: Sequence[str], targets: Mapping[str, torch.Tensor]) -> None:
    for name in names:
        if name not in targets:
            raise InvalidArgument(
                f"There is no target for tensor {name!r}.", hint="strict=False leaves it out."
            )
    known = set(names)
    for name in targets:
        if name not in known:
            raise InvalidArgument(
                f"The artifact has no tensor {name!r}.", hint="strict=False leaves it as it is."
            )


def _check_target(item: Selected, target: torch.Tensor) -> None:
    import torch

    name = item.spec.name
    if not isinstance(target, torch.Tensor):
        raise InvalidArgument(f"The target of {name!r} is no tensor.")
    dtype, whole = torch_form(item.spec)
    shape = item.shape if item.part is not None else whole
    if target.is_meta or target.layout != torch.strided:
        raise InvalidArgument(f"The target of {name!r} has no dense memory of its own.")
    if target.dtype != dtype or tuple(target.shape) != shape:
        raise InvalidArgument(
            f"Tensor {name!r} is {dtype} {list(shape)}, but its target is {target.dtype} "
            f"{list(target.shape)}.",
            hint="Make a target that fits; nothing was written.",
        )
    if hasattr(target, "to_local"):
        raise InvalidArgument(
            f"The target of {name!r} is a distributed tensor.",
            hint="Give its .to_local(); nothing was written.",
        )
    if _repeats_elements(target):
        raise InvalidArgument(
            f"The target of {name!r} holds an element in several places of its shape.",
            hint="Give it memory of its own (.clone() or .contiguous()); nothing was written.",
        )


def _repeats_elements(tensor: torch.Tensor) -> bool:
    """Whether two indexes lead to the same memory, as after `expand` or `unfold`."""
    import torch

    if tensor.numel() <= 1:
        return False
    reach = 1  # elements from the first to past the last of the dimensions so far
    for step, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length > 1 and step == 0:
            return True
        if length > 1 and step < reach:  # dimensions interleave: count the places
            span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
            places = torch.arange(span).as_strided(tensor.shape, tensor.stride())
            return len(set(places.flatten().tolist())) < tensor.numel()
        reach += (length - 1) * step
    return False


def place_within(
    flat: torch.Tensor,
    offset: int,
    dtype: torch.dtype,
    shape: Sequence[int],
    strides: Sequence[int] | None,
) -> torch.Tensor:
    """A tensor over part of the storage of `flat`, which begins `offset` bytes into it."""
    import torch

    tensor = torch.empty(0, dtype=dtype)
    start = offset // tensor.element_size()
    steps = _contiguous_strides(shape) if strides is None else strides
    return tensor.set_(flat.untyped_storage(), start, tuple(shape), tuple(steps))


def _contiguous_strides(shape: Sequence[int]) -> list[int]:
    steps: list[int] = []
    step = 1
    for length in reversed(shape):
        steps.insert(0, step)
        step *= max(1, length)
    return steps
