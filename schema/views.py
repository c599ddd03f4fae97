"""A view: a selection of an artifact, resolved to slices and to byte ranges of its byte space.

`names` are regular expressions that must match a whole tensor name; `slices` cut one dimension of
tensors whose name matches; `shard` cuts it into `world` equal parts and takes part `rank`, as
tensor-parallel ranks do.
"""

from __future__ import annotations

import re
from math import prod

import msgspec

from tensorcast.schema.chunks import ByteRange
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.files import without_files
from tensorcast.schema.tensors import DTYPE_BITS, Index, TensorSpec


class Slice(msgspec.Struct, frozen=True, gc=False):
    """`length` elements from `start` on along dimension `dim`."""

    dim: int
    start: int
    length: int


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A selection. An empty one is the whole artifact. Rules are (pattern, value) pairs; the first
    pattern that matches a tensor's whole name counts."""

    names: tuple[str, ...] = ()
    slices: tuple[tuple[str, Slice], ...] = ()
    rank: int = 0
    world: int = 1
    rules: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise InvalidArgument(
                f"Rank {self.rank} is not one of {self.world} ranks.", hint="Ranks count from 0."
            )

    @classmethod
    def tensors(cls, *names: str) -> View:
        """The tensors whose whole name matches one of these regular expressions."""
        return cls(names=names)

    @classmethod
    def slice(cls, name: str, *, dim: int, start: int, length: int) -> View:
        """Part of one dimension of the tensors that match `name`; the others whole."""
        return cls(slices=((name, Slice(dim, start, length)),))

    @classmethod
    def shard(cls, *, rank: int, world: int, rules: dict[str, int]) -> View:
        """What tensor-parallel rank `rank` of `world` needs: `rules` maps a pattern to the
        dimension that is cut; tensors without a rule come whole."""
        return cls(rank=rank, world=world, rules=tuple(rules.items()))


class Selected(msgspec.Struct, frozen=True, gc=False):
    """One tensor of a view: the whole of `spec` (slice None) or a part of one dimension."""

    spec: TensorSpec
    part: Slice | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        if self.part is None:
            return self.spec.shape
        shape = list(self.spec.shape)
        shape[self.part.dim] = self.part.length
        return tuple(shape)


def resolve(view: View, index: Index) -> tuple[Selected, ...]:
    """The tensors of a view in the order of the index; never the files that travel with them.

    Raises NotFound when a name pattern matches nothing, InvalidArgument when a cut does not fit.
    """
    chosen = _choose(view.names, without_files(index))
    return tuple(Selected(spec, _part(view, spec)) for spec in chosen)


def _choose(names: tuple[str, ...], index: Index) -> Index:
    if not names:
        return index
    patterns = [_compile(name) for name in names]
    for pattern in patterns:
        if not any(pattern.fullmatch(spec.name) for spec in index):
            raise NotFound(
                f"No tensor is named {pattern.pattern!r}.",
                hint="`tcctl artifact tensors` lists the names.",
            )
    return tuple(s for s in index if any(p.fullmatch(s.name) for p in patterns))


def _part(view: View, spec: TensorSpec) -> Slice | None:
    for name, part in view.slices:
        if _compile(name).fullmatch(spec.name):
            return _check(spec, part)
    for name, dim in view.rules:
        if _compile(name).fullmatch(spec.name):
            return _shard(view, spec, dim)
    return None


def _shard(view: View, spec: TensorSpec, dim: int) -> Slice:
    if not 0 <= dim < len(spec.shape):
        raise InvalidArgument(f"{spec.name!r} of shape {spec.shape} has no dimension {dim}.")
    length, rest = divmod(spec.shape[dim], view.world)
    if rest:
        raise InvalidArgument(
            f"Dimension {dim} of {spec.name!r} has {spec.shape[dim]} elements, which do not divide "
            f"by {view.world} ranks."
        )
    return _check(spec, Slice(dim, view.rank * length, length))


def _check(spec: TensorSpec, part: Slice) -> Slice:
    fits = (
        0 <= part.dim < len(spec.shape)
        and part.start >= 0
        and part.length >= 0
        and part.start + part.length <= spec.shape[part.dim]
    )
    if not fits:
        raise InvalidArgument(
            f"Elements {part.start}..{part.start + part.length} of dimension {part.dim} are not in "
            f"{spec.name!r} of shape {spec.shape}."
        )
    if DTYPE_BITS[spec.dtype] % 8:
        raise InvalidArgument(f"{spec.name!r} has a sub-byte dtype, which cannot be cut.")
    return part


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidArgument(f"{pattern!r} is no regular expression: {error}.") from error


def byte_ranges(selected: Selected) -> tuple[ByteRange, ...]:
    """Where the elements of a selected tensor lie in the byte space, in order, each range
    contiguous. A strided tensor gives its whole extent."""
    spec, part = selected.spec, selected.part
    if part is None or spec.strides is not None:
        return (spec.extent,) if spec.size_bytes else ()
    width = DTYPE_BITS[spec.dtype] // 8
    inner = prod(spec.shape[part.dim + 1 :]) * width
    row = spec.shape[part.dim] * inner
    outer = prod(spec.shape[: part.dim])
    size = part.length * inner
    if size * outer == 0:
        return ()
    first = spec.offset + part.start * inner
    if size == row:
        return (ByteRange(first, size * outer),)
    return tuple(ByteRange(first + i * row, size) for i in range(outer))
