"""What applications hand over as blocks, as flat views of bytes, and what they get back.

Tensors of torch, arrays of numpy and everything else with a buffer; torch is only looked at when it
is loaded already.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from math import prod
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias, cast

from tensorcast.client.blocks_memory import EVERYTHING
from tensorcast.client.blocks_pieces import Pieces, Place
from tensorcast.schema.blocks import BLOCK_BYTES_MAX
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.wording import tell_count

if TYPE_CHECKING:
    import torch
    from typing_extensions import Buffer

    Block: TypeAlias = torch.Tensor | Buffer | Pieces


_SIZE = attrgetter("nbytes")
_VIEWS = {memoryview}


def flat_views(
    blocks: Sequence[Block] | Block, count: int, *, write: bool
) -> tuple[list[Place], list[object]]:
    """A flat view for each of `count` blocks (its pieces, for one that is given so), and what must
    live as long as they are used. One tensor or array for all is cut along its first dimension.
    Raises InvalidArgument."""
    if type(blocks) is not list:
        blocks = _as_sequence(blocks)
    if len(blocks) != count:
        raise InvalidArgument(
            f"There are {tell_count(count, 'key')} and {tell_count(len(blocks), 'block')}."
        )
    kept: list[object] = []
    if set(map(type, blocks)) == _VIEWS and _are_flat(cast("list[memoryview]", blocks)):
        views = cast("list[Place]", list(blocks))
    else:
        views = [_flat_view(block, kept, write) for block in blocks]
    sizes = set(map(_SIZE, views))
    if views and not 0 < min(sizes) <= max(sizes) <= BLOCK_BYTES_MAX:
        wrong = max(sizes) if min(sizes) else 0
        raise InvalidArgument(
            f"A block of {wrong} bytes cannot be kept.",
            hint=f"Blocks have 1 to {BLOCK_BYTES_MAX} bytes.",
        )
    if write and any([view.readonly for view in views]):
        raise InvalidArgument("A block's target is read-only.", hint="Give memory to write to.")
    return views, kept


def _as_sequence(blocks: Sequence[Block] | Block) -> Sequence[Block]:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(blocks, torch.Tensor):
        return list(blocks.unbind(0)) if blocks.dim() else [blocks]
    if not isinstance(blocks, list | tuple) and hasattr(blocks, "__array_interface__"):
        return list(cast("Sequence[Block]", blocks))
    if not isinstance(blocks, Sequence) or isinstance(blocks, bytes | bytearray | memoryview):
        raise InvalidArgument("The blocks are no sequence.", hint="Give one block for each key.")
    return blocks


def _are_flat(views: Sequence[memoryview]) -> bool:
    return all([v.format == "B" and v.ndim == 1 and v.c_contiguous for v in views])


def _flat_view(block: Block, kept: list[object], write: bool) -> Place:
    if isinstance(block, Pieces):
        return block
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(block, torch.Tensor):
        return _tensor_view(block, kept, write)
    try:
        view = memoryview(cast("Buffer", block))
        return view if _are_flat([view]) else view.cast("B")
    except TypeError as error:
        raise InvalidArgument(
            f"A block cannot be a {type(block).__name__} that is no contiguous buffer.",
            hint="Use tensors, arrays or buffers that are contiguous.",
        ) from error


def _tensor_view(tensor: torch.Tensor, kept: list[object], write: bool) -> memoryview:
    """The bytes of a tensor. One of a CUDA device is staged through memory of the host (not run
    on a device yet)."""
    if not tensor.is_contiguous():
        raise InvalidArgument("A block's tensor is not contiguous.", hint="Call `.contiguous()`.")
    if tensor.is_meta:
        raise InvalidArgument("A block's tensor is on device meta, which has no bytes.")
    if tensor.device.type != "cpu":
        staged = tensor.to("cpu") if not write else tensor.new_empty(tensor.shape, device="cpu")
        kept.append((tensor, staged))
        tensor = staged
    else:
        kept.append(tensor)
    address = tensor.data_ptr()
    return EVERYTHING[address : address + tensor.numel() * tensor.element_size()]


def write_staged(kept: Sequence[object]) -> None:
    """Copies what was staged in memory of the host to its devices."""
    for one in kept:
        if isinstance(one, tuple):
            target, staged = one
            target.copy_(staged)


def shape_views(
    views: Sequence[memoryview | None], dtype: torch.dtype, shape: Sequence[int] | None
) -> list[torch.Tensor | None]:
    """Tensors over the views, which they keep alive. They must not be written to: the memory
    belongs to all, and the kernel stops who does."""
    import torch

    if not isinstance(dtype, torch.dtype):
        raise InvalidArgument(f"{dtype!r} is no dtype.", hint="Give one of torch: torch.bfloat16.")
    item_bytes = dtype.itemsize
    try:
        shape = torch.Size(shape) if shape is not None else None
    except TypeError as error:
        raise InvalidArgument(f"{shape!r} is no shape.", hint="Give a tuple of lengths.") from error
    found: list[torch.Tensor | None] = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        for view in views:
            if view is None:
                found.append(None)
                continue
            if view.nbytes % item_bytes or (shape and prod(shape) * item_bytes != view.nbytes):
                raise InvalidArgument(f"A block of {view.nbytes} bytes is no {shape} of {dtype}.")
            flat = torch.frombuffer(view, dtype=dtype)
            found.append(flat.view(shape) if shape is not None else flat)
    return found
