"""What tensors a caller wants: names, dtypes and shapes, as torch says them, and their layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tensorcast.client.tensors import name_dtypes
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.tensors import Index, TensorSpec, check_index, lay_out

if TYPE_CHECKING:
    import torch

    Wanted = torch.Tensor | tuple[Sequence[int], torch.dtype] | Sequence[int]
    Spec = Mapping[str, Wanted] | Index


def lay_out_spec(spec: Spec) -> tuple[Index, int]:
    """The index of such tensors, as a put of them would make it, and its size in bytes. An index
    is taken as it is. Raises InvalidArgument, naming the entry."""
    if isinstance(spec, Mapping):
        return lay_out(_describe(name, wanted) for name, wanted in spec.items())
    if not isinstance(spec, Sequence):
        raise InvalidArgument(
            f"A {type(spec).__name__} does not describe tensors.",
            hint="Give a mapping of names to shapes and dtypes, or the index of an artifact.",
        )
    index = tuple(spec)
    for item in index:
        if not isinstance(item, TensorSpec):
            raise InvalidArgument(
                f"A {type(item).__name__} does not describe a tensor.",
                hint="Give a mapping of names to shapes and dtypes, or the index of an artifact.",
            )
    size_bytes = max((item.extent.end for item in index), default=0)
    check_index(index, size_bytes)
    return index, size_bytes


def _describe(name: object, wanted: object) -> tuple[str, str, tuple[int, ...]]:
    import torch

    if isinstance(wanted, torch.Tensor):
        return _name(name, wanted.shape, wanted.dtype)
    if isinstance(wanted, tuple) and len(wanted) == 2 and isinstance(wanted[1], torch.dtype):
        return _name(name, wanted[0], wanted[1])
    return _name(name, wanted, torch.get_default_dtype())


def _name(name: object, shape: object, dtype: torch.dtype) -> tuple[str, str, tuple[int, ...]]:
    import torch

    if not isinstance(name, str):
        raise InvalidArgument(f"The name {name!r} is not text.", hint="Tensors are named by text.")
    known = name_dtypes().get(dtype)
    if known is None:
        raise InvalidArgument(f"Entry {name!r} has dtype {dtype}, which safetensors does not know.")
    try:
        lengths = tuple(torch.Size(shape))  # type: ignore[arg-type]  # it says itself what it takes
    except TypeError as error:
        raise InvalidArgument(
            f"Entry {name!r} of the spec is {shape!r}.",
            hint="Give a tensor, a shape, or a shape and a dtype.",
        ) from error
    if known == "F4":  # two values in a byte: torch counts bytes
        if not lengths:
            raise InvalidArgument(f"Entry {name!r} of a packed dtype has no dimension.")
        lengths = (*lengths[:-1], lengths[-1] * 2)
    return name, known, lengths
