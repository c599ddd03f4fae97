"""New weights beside a model that serves: its modules once more, with parameters of their own, so
that to go over to them is to exchange pointers.

    aside = Aside(model, slots)                       # the modules are there twice now
    with aside.recording():                           # what its own code does to parameters
        type(model).load_weights(aside.copy, weights)
    aside.make(do, threads, stop)                    # is done, in several threads
    aside.exchange()                                  # between two requests; once more: undone

A copy of a module shares everything with it but its parameters, which have no memory at first. The
model's own loading code says what becomes of them: each of its writes is noted, and carried out
later, module by module. As soon as it does anything else with a parameter, or would write to what
the model has now, `NotAside` is raised, and nothing has happened.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Final, NamedTuple, Protocol, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tensorcast.client.copying import share_out, take_huge

ALIGNMENT_BYTES: Final = 64
HUGE_BYTES: Final = 32 << 20
"""Tensors of so many bytes get huge pages; smaller ones the memory that others have left."""
OWN: Final = frozenset({"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"})
"""What each copy of a module has to itself."""
_COPY: Final = torch.ops.aten.copy_.default
_MISSING: Final = object()

Place = tuple[torch.nn.Module, str]
"""A module of the model, and the name of one of its parameters."""
Arguments = tuple[object, ...]


class Do(Protocol):
    """What an engine does with the parameters of its modules."""

    def begin(self) -> None:
        """A thread takes up a module."""
        ...

    def process(self, module: torch.nn.Module) -> None:
        """Makes what a module computes with out of its parameters."""
        ...


class NotAside(Exception):
    """These weights cannot be made beside the model: it must stand still for them."""


class _Step(NamedTuple):
    """A write to a part of a parameter."""

    write: torch._ops.OpOverload
    shape: Sequence[int]
    strides: Sequence[int]
    offset: int
    arguments: Arguments
    options: Mapping[str, object]


@dataclass
class Slot:
    """A parameter to be: `meta` says what it looks like, `places` where it belongs (all of them,
    where it is tied)."""

    meta: torch.Tensor
    places: list[Place]
    steps: list[_Step] = field(default_factory=list)
    made: torch.Tensor | None = None
    used: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def size_bytes(self) -> int:
        return self.meta.numel() * self.meta.element_size()

    def make(self) -> torch.Tensor:
        """The parameter with its weights; where a tensor has its very bytes, in place."""
        with self.lock:
            if self.made is None:
                found = self._find_in_place()
                made = found if found is not None else self._carry_out()
                made.__class__ = self.meta.__class__
                made.__dict__ = {**self.meta.__dict__}
                self.made, self.steps = made, []
            return self.made

    def forget(self) -> None:
        """One of its places is done with it."""
        with self.lock:
            self.used += 1
            if self.used == len(self.places):
                self.made = None

    def _find_in_place(self) -> torch.Tensor | None:
        if len(self.steps) != 1 or self.steps[0].write is not _COPY:
            return None
        source, meta = self.steps[0].arguments[0], self.meta
        if not isinstance(source, torch.Tensor) or source.shape != meta.shape:
            return None
        is_same = (
            (source.dtype, source.device.type) == (meta.dtype, "cpu")
            and source.is_contiguous()
            and meta.is_contiguous()
            and tuple(self.steps[0].shape) == tuple(meta.shape)
            and source.data_ptr() % ALIGNMENT_BYTES == 0
        )
        return source.detach().view(meta.shape) if is_same else None

    def _carry_out(self) -> torch.Tensor:
        flat = take_memory(self.meta)
        for step in self.steps:
            part = flat.as_strided(step.shape, step.strides, step.offset)
            step.write(part, *step.arguments, **step.options)
        return flat.as_strided(self.meta.shape, self.meta.stride())


def take_memory(meta: torch.Tensor) -> torch.Tensor:
    """Memory for a tensor that looks like this, as a flat tensor."""
    last = sum((size - 1) * step for size, step in zip(meta.shape, meta.stride(), strict=True))
    count = last + 1 if meta.numel() else 0
    size_bytes = count * meta.element_size()
    if size_bytes < HUGE_BYTES:
        return torch.empty(count, dtype=meta.dtype)
    return take_huge(size_bytes).view(meta.dtype)


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Notes what is written to slots. Raises NotAside for anything else that is done to them, and
    for writes to `guarded`."""

    def __init__(self, slots: Sequence[Slot], guarded: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._slots = {_storage(slot.meta): slot for slot in slots}
        self._guarded = {_storage(tensor) for tensor in guarded}

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: Arguments = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        options = kwargs or {}
        tensors = list(_tensors_in((*args, *options.values())))
        mine = [tensor for tensor in tensors if _storage(tensor) in self._slots]
        if mine and not func.is_view:
            return self._note(func, mine, args, options)
        if not mine and func._schema.is_mutable:
            self._check_written(func, args, options)
        return func(*args, **options)

    def _note(
        self,
        func: torch._ops.OpOverload,
        mine: Sequence[torch.Tensor],
        args: Arguments,
        options: Mapping[str, object],
    ) -> object:
        target = args[0]
        writes = [argument for argument in func._schema.arguments if _is_written(argument)]
        is_write = len(writes) == 1 and writes[0] is func._schema.arguments[0]
        if not is_write or len(mine) != 1 or mine[0] is not target:
            raise NotAside(f"its loading code does {func} with a parameter")
        others = list(_tensors_in((*args[1:], *options.values())))
        if any(tensor.is_meta for tensor in others):
            raise NotAside("its loading code makes parameters out of parameters")
        slot = self._slots[_storage(mine[0])]
        step = _Step(
            func,
            tuple(mine[0].shape),
            mine[0].stride(),
            int(mine[0].storage_offset()),
            args[1:],
            options,
        )
        slot.steps.append(step)
        return target

    def _check_written(
        self, func: torch._ops.OpOverload, args: Arguments, options: Mapping[str, object]
    ) -> None:
        named = {argument.name: argument for argument in func._schema.arguments}
        values = {**dict(zip(named, args, strict=False)), **options}
        written = [value for name, value in values.items() if _is_written(named[name])]
        if any(_storage(tensor) in self._guarded for tensor in _tensors_in(written)):
            raise NotAside("its loading code writes to what serves now")


class Aside:
    """The modules of a model once more. For one thread at a time."""

    def __init__(self, model: torch.nn.Module, find_slots: FindSlots) -> None:
        """`find_slots` says what the parameters look like before they have weights."""
        self._model = model
        self._copies = copy_modules(model)
        self._serving = [(place, _parameter(place)) for place in _places(model)]
        self.slots = find_slots(self._copies)
        for slot in self.slots:
            for place in slot.places:
                self._put(place, slot.meta)
        self._before = {copied: dict(copied.__dict__) for copied in self._copies.values()}
        self._attributes: list[tuple[torch.nn.Module, torch.nn.Module, str]] = []

    @property
    def copy(self) -> torch.nn.Module:
        """The model once more."""
        return self._copies[self._model]

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Around the loading code. Raises NotAside when a parameter was left out, too."""
        guarded = [*self._model.parameters(), *self._model.buffers()]
        with torch.no_grad(), Recording(self.slots, guarded):
            yield
        for slot in self.slots:
            module, name = slot.places[0]
            if slot.size_bytes and not slot.steps:
                raise NotAside(f"nothing is loaded into {name} of a {type(module).__name__}")
            if self._copies[module]._parameters.get(name) is not slot.meta:
                raise NotAside(f"its loading code replaces {name} of a {type(module).__name__}")

    def make(self, do: Do, threads: int, stop: threading.Event) -> None:
        """Makes all parameters, the largest first, and calls `do.process` for each copy of a module
        that has any. Raises NotAside when the model could not go on with them, Cancelled after
        `stop`."""
        of: dict[torch.nn.Module, dict[str, Slot]] = {}
        for slot in self.slots:
            for module, name in slot.places:
                of.setdefault(module, {})[name] = slot
        works = sorted(of, key=lambda one: -sum(slot.size_bytes for slot in of[one].values()))

        def work(module: torch.nn.Module) -> None:
            do.begin()
            with torch.no_grad():
                for name, slot in of[module].items():
                    self._put((module, name), slot.make())
                do.process(self._copies[module])
            for slot in of[module].values():
                slot.forget()

        share_out(work, works, threads, stop)
        self._check_alike()

    def exchange(self) -> None:
        """The model has the new weights, and this the old ones; or the other way round. Raises
        NotAside when the model has other parameters than at the start; then nothing happened."""
        if any(_parameter(place) is not parameter for place, parameter in self._serving):
            raise NotAside("its parameters were replaced meanwhile")
        done: set[int] = set()
        for module, copied in self._copies.items():
            for name, old in module._parameters.items():
                new = copied._parameters[name]
                if old is None or new is None or new is old or id(old) in done:
                    continue
                done.add(id(old))
                old.data, new.data = new.data, old.data
        for module, copied, name in self._attributes:
            old, new = (one.__dict__.get(name, _MISSING) for one in (module, copied))
            _set(module, name, new)
            _set(copied, name, old)

    def _check_alike(self) -> None:
        """Each parameter must be able to take the place of that which serves."""
        for module, copied in self._copies.items():
            kind = type(module).__name__
            if module._parameters.keys() != copied._parameters.keys():
                raise NotAside(f"a {kind} would have other parameters")
            for name, old in module._parameters.items():
                new = copied._parameters[name]
                if (old is None) != (new is None) or (
                    old is not None and new is not None and _looks(old) != _looks(new)
                ):
                    raise NotAside(f"{name} of a {kind} would look different")
            for name in self._changed(copied):
                value = copied.__dict__.get(name)
                if isinstance(value, MethodType) and value.__self__ is copied:
                    raise NotAside(f"{name} of a {kind} belongs to the copy")
                self._attributes.append((module, copied, name))

    def _changed(self, copied: torch.nn.Module) -> list[str]:
        """What was set beside the parameters."""
        before, now = self._before[copied], copied.__dict__
        return [
            name
            for name in sorted((before.keys() | now.keys()) - OWN)
            if before.get(name, _MISSING) is not now.get(name, _MISSING)
        ]

    def _put(self, place: Place, tensor: torch.Tensor) -> None:
        module, name = place
        self._copies[module]._parameters[name] = cast("torch.nn.Parameter", tensor)


FindSlots = Callable[[Mapping[torch.nn.Module, torch.nn.Module]], list[Slot]]
"""Given the copy of each module."""


def copy_modules(model: torch.nn.Module) -> dict[torch.nn.Module, torch.nn.Module]:
    """Each module of a model with a copy of it. The copies form the same tree."""
    found: dict[torch.nn.Module, torch.nn.Module] = {}
    for module in model.modules():
        copied = module.__class__.__new__(module.__class__)
        copied.__dict__.update(module.__dict__)
        for name in OWN & module.__dict__.keys():
            copied.__dict__[name] = copy.copy(module.__dict__[name])
        found[module] = copied
    for copied in found.values():
        for name, child in copied._modules.items():
            if child is not None:
                copied._modules[name] = found[child]
    return found


def _places(model: torch.nn.Module) -> Iterator[Place]:
    for module in model.modules():
        for name in module._parameters:
            yield module, name


def _parameter(place: Place) -> torch.Tensor | None:
    module, name = place
    return module._parameters.get(name)


def _set(module: torch.nn.Module, name: str, value: object) -> None:
    if value is _MISSING:
        module.__dict__.pop(name, None)
    else:
        module.__dict__[name] = value


def _looks(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.device


def _storage(tensor: torch.Tensor) -> int:
    """What tensors that share memory have in common; those without memory have it, too."""
    return int(tensor.untyped_storage()._cdata)


def _tensors_in(values: Sequence[object]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors_in(value)


def _is_written(argument: torch.Argument) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write
