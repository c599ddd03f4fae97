"""Weights into a model that is made already: in place where its parameters can lie in the mapped
replica, else by one copy.

The model's own loading code says what goes where: it narrows, renames and merges, and ends in
`parameter.copy_(part of a tensor)`. `Placement` watches for these copies and does not carry them
out before it has seen all of a parameter. If the parts lie in the replica as they would in the
parameter, the parameter moves there, and no byte is read or written; its memory, which was never
touched, costs nothing. So tensor parallelism, merged matrices and quantised formats need no rules
of their own. Whatever else happens to a parameter meanwhile is done as it would be without us.

What is read is brought first: of an excerpt no other bytes come than those that
are used, and they are asked for together (`Memory.bring`).

The mapping is private: an engine that writes to its weights changes its own pages only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tensorcast.client.copying import copy_all
from tensorcast.schema.chunks import ByteRange

ALIGNMENT_BYTES = 64
NEAR_BYTES = 1 << 20
"""Bytes that lie no farther apart than this are brought with those between them."""
BATCH_BYTES = 64 << 20
"""So many bytes of copies wait for each other, so that all cores share them."""
Bring = Callable[[Sequence[ByteRange]], None]
_COPY = torch.ops.aten.copy_.default
_OWNERS = 2
"""References to the storage of a tensor that nothing else shares: its own, and Python's."""


class Placed(NamedTuple):
    """What came of the parameters. Bytes: `in_place_bytes` lie in the replica, `copied_bytes` were
    copied at once and by all cores, `other_bytes` went through the model's own code."""

    in_place: int
    in_place_bytes: int
    copied_bytes: int
    other_bytes: int


class _Part(NamedTuple):
    """A copy that waits: `offset` bytes into the parameter, from an address."""

    offset: int
    size_bytes: int
    source: torch.Tensor
    target: torch.Tensor


@dataclass
class _Slot:
    """A parameter, and the copies into it that wait. `is_open`: it may still be placed."""

    parameter: torch.nn.Parameter
    start: int
    size_bytes: int
    is_open: bool = True
    parts: dict[int, _Part] = field(default_factory=dict)

    @property
    def seen_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts.values())


class Placement(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """A context around the loading code of `model`, given tensors that lie in `memory`. When it
    ends well all copies are done; after an error those that wait are dropped."""

    def __init__(self, model: torch.nn.Module, memory: Memory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._memory = memory
        self._slots = {slot.start: slot for slot in _find_slots(model)}
        self._sizes = {start: slot.size_bytes for start, slot in self._slots.items()}
        self._waiting: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._waiting_bytes = 0
        self._model = model
        self._in_place = self._in_place_bytes = self._copied_bytes = 0

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]  # torch's
        if error is None:
            for slot in self._slots.values():
                self._settle(slot)
            used = [tensor for tensor in _tensors_of(self._model) if self._memory.holds(tensor)]
            self._memory.bring([*used, *(source for source, _ in self._waiting)])
            self._copy()
        self._slots.clear()
        self._waiting.clear()

    def placed(self) -> Placed:
        """What came of it so far."""
        total_bytes = sum(self._sizes.values())
        done_bytes = self._in_place_bytes + self._copied_bytes
        return Placed(
            self._in_place,
            self._in_place_bytes,
            self._copied_bytes,
            max(0, total_bytes - done_bytes),
        )

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if func is _COPY and self._waits(args[0], args[1]):
            return args[0]
        if not func.is_view:
            self._touch((*args, *(kwargs or {}).values()))
        return func(*args, **(kwargs or {}))

    # ---- copies that wait ----------------------------------------------------------------------

    def _waits(self, target: object, source: object) -> bool:
        """Takes a copy over, if it is one from the replica into a parameter, byte for byte."""
        if not isinstance(target, torch.Tensor) or not isinstance(source, torch.Tensor):
            return False
        if not (_is_plain(target) and _has_memory(source) and self._memory.holds(source)):
            return False
        if target.dtype != source.dtype or target.shape != source.shape:
            return False
        slot = self._slots.get(target.untyped_storage().data_ptr())
        if slot is None or not slot.is_open:
            return False
        part = _Part(
            target.data_ptr() - slot.start,
            target.numel() * target.element_size(),
            source.detach(),
            target.detach(),
        )
        if _overlaps(part, slot.parts):
            return False
        slot.parts[part.offset] = part
        if slot.seen_bytes == slot.size_bytes:
            self._settle(slot)
        return True

    def _touch(self, arguments: Iterable[object]) -> None:
        """Something else reads or writes these: what waits for them must be done before."""
        for argument in arguments:
            if isinstance(argument, list | tuple):
                self._touch(argument)
            elif isinstance(argument, torch.Tensor) and _has_memory(argument):
                if self._memory.holds(argument):
                    self._memory.bring([argument])
                slot = self._slots.get(argument.untyped_storage().data_ptr())
                if slot is not None:
                    slot.is_open = False
                    self._settle(slot)
                    self._copy()

    def _settle(self, slot: _Slot) -> None:
        """Places a parameter, or has its copies made."""
        parts = [slot.parts[offset] for offset in sorted(slot.parts)]
        slot.parts.clear()
        if not parts:
            return
        if slot.is_open and self._place(slot, parts):
            self._in_place += 1
            self._in_place_bytes += slot.size_bytes
            del self._slots[slot.start]
            return
        slot.is_open = False
        for part in parts:
            self._waiting.append((part.source, part.target))
            self._waiting_bytes += part.size_bytes
        if self._waiting_bytes >= BATCH_BYTES:
            self._copy()

    def _copy(self) -> None:
        self._memory.bring([source for source, _ in self._waiting])
        copy_all(self._waiting)
        self._copied_bytes += self._waiting_bytes
        self._waiting, self._waiting_bytes = [], 0

    def _place(self, slot: _Slot, parts: Sequence[_Part]) -> bool:
        """Moves a parameter into the replica, if its parts lie there as they do in it."""
        first = parts[0].source.data_ptr()
        end = 0
        for part in parts:
            is_next = part.offset == end and part.source.data_ptr() == first + end
            if not (is_next and _is_plain(part.source)):
                return False
            end += part.size_bytes
        if end != slot.size_bytes or first % ALIGNMENT_BYTES:
            return False
        parameter = slot.parameter
        if parameter.data_ptr() != slot.start:  # it was given other memory meanwhile
            return False
        parameter.data = self._memory.tensor(first, parameter.dtype, parameter.shape)
        return True


class Memory:
    """The mapped bytes of an artifact. `bring` is asked for bytes before they are read; None: all
    are there."""

    def __init__(self, buffer: memoryview, bring: Bring | None = None) -> None:
        self._bring = bring
        self._bytes = torch.frombuffer(buffer, dtype=torch.uint8)
        self.start = self._bytes.data_ptr()
        self.end = self.start + self._bytes.numel()
        self._buffer = buffer

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies here."""
        return self.start <= tensor.data_ptr() < self.end

    def bring(self, tensors: Sequence[torch.Tensor]) -> None:
        """Returns when the bytes of these tensors, which lie here, are there."""
        if self._bring is not None and tensors:
            self._bring([place for tensor in tensors for place in self._places(tensor)])

    def _places(self, tensor: torch.Tensor) -> Iterator[ByteRange]:
        """Where a tensor's elements lie, near ones together."""
        item = tensor.element_size()
        if tensor.dim() and tensor.stride(0) * item > NEAR_BYTES and not tensor.is_contiguous():
            for part in tensor.unbind(0):
                yield from self._places(part)
        elif tensor.numel():
            steps = zip(tensor.shape, tensor.stride(), strict=True)
            last = sum((size - 1) * stride for size, stride in steps)
            yield ByteRange(tensor.data_ptr() - self.start, (last + 1) * item)

    def tensor(self, address: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
        """A tensor over bytes of it, which it keeps alive."""
        return torch.frombuffer(
            self._buffer, dtype=dtype, count=math.prod(shape), offset=address - self.start
        ).view(shape)


def _find_slots(model: torch.nn.Module) -> list[_Slot]:
    """The parameters that own all of some memory of their own."""
    owners: dict[int, list[torch.Tensor]] = {}
    for tensor in _tensors_of(model):
        if _has_memory(tensor):
            owners.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor)
    found = []
    for start, tensors in owners.items():
        parameter = tensors[0]
        size_bytes = parameter.numel() * parameter.element_size()
        if (
            len(tensors) == 1
            and isinstance(parameter, torch.nn.Parameter)
            and _is_plain(parameter)
            and parameter.untyped_storage().nbytes() == size_bytes
            and not _is_shared(parameter)
        ):
            found.append(_Slot(parameter, start, size_bytes))
    return found


def _tensors_of(model: torch.nn.Module) -> Iterable[torch.Tensor]:
    """All parameters and buffers, each once."""
    yield from model.parameters()
    yield from model.buffers()


def _is_shared(tensor: torch.Tensor) -> bool:
    """Whether a tensor that the model does not name uses the same memory. Torch counts it
    privately; without the count only tensors with names are known."""
    count = getattr(torch._C, "_storage_Use_Count", None)
    return count is not None and count(tensor.untyped_storage()._cdata) > _OWNERS


def _has_memory(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.layout == torch.strided and tensor.numel() > 0


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its elements lie in order in ordinary memory."""
    return _has_memory(tensor) and tensor.is_contiguous() and not tensor.is_conj()


def _overlaps(part: _Part, others: Mapping[int, _Part]) -> bool:
    """Whether bytes of the parameter are written twice (then order matters)."""
    end = part.offset + part.size_bytes
    return any(
        other.offset < end and part.offset < other.offset + other.size_bytes
        for other in others.values()
    )
