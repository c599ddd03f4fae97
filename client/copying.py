"""Copies between tensors, by all cores and without the GIL.

A copy out of a segment takes two or three times as long as a memcpy: the pages of the source must
be mapped once. New memory to copy into would cost far more in pages of 4 KiB; in huge pages it
costs little (docs/data-plane.md). Only the functions that need torch import it.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tensorcast.storage.crew import choose_copies, spread
from tensorcast.storage.memory import allocate

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
UNIT_BYTES = 4 << 20
SLAB_BYTES = 64 << 20
LARGE_BYTES = 16 << 20
_ALIGNMENT_BYTES = 64
Pair = tuple["torch.Tensor", "torch.Tensor"]
"""A source and its target, of one dtype and shape."""


class Copies:
    """Tensors that become copies, in memory of their own: large ones in a block for each, small
    ones together in slabs."""

    def __init__(self) -> None:
        self._pairs: list[Pair] = []
        self._slab = memoryview(b"")

    def of(self, source: torch.Tensor) -> torch.Tensor:
        """A tensor that will have the bytes of `source` once they are copied. Raises
        OutOfCapacity."""
        import torch

        size_bytes = source.numel() * source.element_size()
        if not size_bytes:
            return torch.empty(source.shape, dtype=source.dtype)
        flat = torch.frombuffer(self._take(size_bytes), dtype=torch.uint8, count=size_bytes)
        target = flat.view(source.dtype).view(source.shape)
        self._pairs.append((source, target))
        return target

    def carry_out(self) -> None:
        """Copies them all."""
        copy_all(self._pairs)
        self._pairs = []

    def _take(self, size_bytes: int) -> memoryview:
        if size_bytes >= LARGE_BYTES:
            return allocate(size_bytes)
        if size_bytes > len(self._slab):
            self._slab = allocate(SLAB_BYTES)
        taken = self._slab[:size_bytes]
        self._slab = self._slab[-(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES :]
        return taken


def copy_all(pairs: Iterable[Pair]) -> None:
    """Copies bit by bit, in a few threads. Nothing is allocated."""
    works = (work for source, target in pairs for work in _cut(source, target))
    spread(_do, works, choose_copies())


def share_out(
    do: Callable[[T], object], items: Sequence[T], threads: int, stop: threading.Event
) -> None:
    """`do` for every item, in several threads, the first ones first. Raises what it raises, and
    Cancelled once `stop` is set."""
    spread(do, items, threads, stop)


def take_huge(size_bytes: int) -> torch.Tensor:
    """Zeroed bytes in huge pages, as far as there are any. Raises OutOfCapacity."""
    import torch

    return torch.frombuffer(allocate(size_bytes), dtype=torch.uint8, count=size_bytes)


def _do(work: Callable[[], object]) -> None:
    work()


def _cut(source: torch.Tensor, target: torch.Tensor) -> Iterator[Callable[[], object]]:
    """The copy in pieces for several threads. Those that need torch stay whole: it has threads of
    its own for them."""
    if not (_is_plain(source) and _is_plain(target)):
        yield partial(copy_bits, source, target)
        return
    size_bytes = source.numel() * source.element_size()
    for start in range(0, size_bytes, UNIT_BYTES):
        yield partial(
            ctypes.memmove,
            target.data_ptr() + start,
            source.data_ptr() + start,
            min(UNIT_BYTES, size_bytes - start),
        )


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its bytes lie in order in ordinary memory, as they are."""
    is_lazy = tensor.is_conj() or tensor.is_neg()
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not is_lazy


def copy_bits(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copies between tensors of one dtype and shape, bit by bit."""
    import torch

    with torch.inference_mode():
        _as_bits(target.detach()).copy_(_as_bits(source.detach()))


def _as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as whole numbers for the dtypes of one byte, not all of which can copy."""
    import torch

    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
