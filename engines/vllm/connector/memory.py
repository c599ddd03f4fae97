"""Where the bytes of the engine's blocks lie: its KV cache as tables of runs, one run for each
layer."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from tensorcast.client.blocks_pieces import Pieces
from tensorcast.schema.errors import Cancelled, InvalidArgument

if TYPE_CHECKING:
    import torch

PART_BYTES_MAX: Final = 16 << 20
"""A block with more bytes is kept as several, each of some layers: slots of the store are cut out
of 64 MiB, and the smaller they are the less is left over."""

Table = NDArray[np.uint8]


class CacheMemory:
    """A cache in the memory of the host. `tables`: for each part of a block, arrays (blocks of the
    cache, layers, bytes of one layer's run)."""

    def __init__(self, caches: Mapping[str, torch.Tensor]) -> None:
        """`caches`: for each layer a tensor whose first dimension counts blocks, each of them
        contiguous. Raises InvalidArgument for any other."""
        if not caches:
            raise InvalidArgument("The engine has no KV cache.")
        layers = [_table_of(name, cache) for name, cache in caches.items()]
        self.kept = list(caches.values())
        self.blocks = min(len(layer) for layer in layers)
        self.tables = [_merge(part) for part in split_layers(layers, PART_BYTES_MAX)]
        self.part_bytes = tuple(
            sum(table.shape[1] * table.shape[2] for table in part) for part in self.tables
        )

    @property
    def parts(self) -> int:
        return len(self.tables)

    @property
    def block_bytes(self) -> int:
        """Of all parts of a block."""
        return sum(self.part_bytes)

    def pieces(self, block_id: int) -> list[Pieces]:
        """The parts of a block, to be written to."""
        return [Pieces([table[block_id] for table in part]) for part in self.tables]

    def guarded(self, block_id: int, guard: Guard) -> list[Pieces]:
        """The parts of a block, to be read as long as nobody wants it back."""
        return [GuardedPieces([table[block_id] for table in part], guard) for part in self.tables]


class Guard:
    """Whether blocks may still be read. After `give_up` returns nobody reads them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_given_up = False

    def give_up(self) -> None:
        """Waits for the copy of one part at most."""
        with self._lock:
            self.is_given_up = True

    def copy(self, pieces: Pieces, target: memoryview) -> None:
        """Raises Cancelled when they were given up."""
        with self._lock:
            if self.is_given_up:
                raise Cancelled("The engine needs the block for something else.")
            Pieces.copy_to(pieces, target)


class GuardedPieces(Pieces):
    """Pieces that are read under a guard."""

    __slots__ = ("_guard",)

    def __init__(self, tables: Sequence[Table], guard: Guard) -> None:
        super().__init__(tables)
        self._guard = guard

    def copy_to(self, target: memoryview) -> None:
        self._guard.copy(self, target)


def _table_of(name: str, cache: torch.Tensor) -> Table:
    """The layer's blocks as (blocks, bytes), in the cache's own memory."""
    import torch

    if cache.device.type != "cpu":
        raise InvalidArgument(
            f"The KV cache of {name} is on {cache.device}.",
            hint="The TensorCast connector moves caches in the memory of the host only: see "
            "docs/vllm.md.",
        )
    if cache.dim() < 2 or not cache[0].is_contiguous():
        raise InvalidArgument(
            f"A block of {name} is not contiguous (shape {tuple(cache.shape)}).",
            hint="The TensorCast connector needs the layout in which each layer counts blocks "
            "first.",
        )
    flat = torch.empty(0, dtype=torch.uint8).set_(cache.untyped_storage()).numpy()
    item = cache.element_size()
    start, size = cache.storage_offset() * item, cache[0].numel() * item
    strides = (cache.stride(0) * item, 1)
    return np.lib.stride_tricks.as_strided(flat[start:], (cache.shape[0], size), strides)


def split_layers(layers: Sequence[Table], part_bytes_max: int) -> list[list[Table]]:
    """The layers in groups of so many bytes a block at most; one alone may have more."""
    groups: list[list[Table]] = []
    filled = 0
    for layer in layers:
        size = layer.shape[1]
        if not groups or filled + size > part_bytes_max:
            groups.append([])
            filled = 0
        groups[-1].append(layer)
        filled += size
    return groups


def _merge(layers: Sequence[Table]) -> list[Table]:
    """Tables (blocks, layers, bytes): one for all layers that lie at equal distances."""
    shapes = {(layer.shape, layer.strides) for layer in layers}
    places = [layer.__array_interface__["data"][0] for layer in layers]
    gaps = {after - before for before, after in pairwise(places)}
    if len(shapes) == 1 and len(gaps) == 1 and min(gaps) > 0:
        (count, size), (stride, _) = layers[0].shape, layers[0].strides
        shape, strides = (count, len(layers), size), (stride, gaps.pop(), 1)
        return [np.lib.stride_tricks.as_strided(layers[0], shape, strides)]
    return [layer[:, None, :] for layer in layers]
