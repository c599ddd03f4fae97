"""Where a fault of a plan lies: the types and values along a path like `$.steps[0].retry`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec
from msgspec import inspect

_CLASSES: Final[Mapping[type[inspect.Type], type]] = {
    inspect.StrType: str,
    inspect.IntType: int,
    inspect.FloatType: float,
    inspect.BoolType: bool,
}
PARTS: Final = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")


def walk(
    place: str, said: object, kind: inspect.Type
) -> Iterator[tuple[inspect.Type, object, bool]]:
    """The types and values from the whole to the place; whether each is an item of a list."""
    yield kind, said, False
    for field, item in PARTS.findall(place):
        if field:
            kind = _field(kind, said, field)
            said = said.get(field) if isinstance(said, dict) else None
        else:
            kind = _item(kind)
            is_there = isinstance(said, list) and item.isdigit() and int(item) < len(said)
            said = said[int(item)] if is_there and isinstance(said, list) else None
        yield kind, said, not field


def members(kind: inspect.Type) -> Iterator[inspect.Type]:
    """The types that a type may be."""
    if isinstance(kind, inspect.Metadata):
        yield from members(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from members(one)
    else:
        yield kind


def structs(kind: inspect.Type) -> list[inspect.StructType]:
    """Those of them that have fields."""
    return [one for one in members(kind) if isinstance(one, inspect.StructType)]


def chosen(kind: inspect.Type, said: object) -> inspect.StructType | None:
    """The one of several that a value says it is."""
    found = structs(kind)
    tag = said.get("kind") if isinstance(said, dict) else None
    return next((one for one in found if one.tag in (tag, None)), None)


def _field(kind: inspect.Type, said: object, name: str) -> inspect.Type:
    struct = chosen(kind, said)
    fields = struct.fields if struct is not None else ()
    return next((one.type for one in fields if one.encode_name == name), inspect.AnyType())


def _item(kind: inspect.Type) -> inspect.Type:
    for one in members(kind):
        if isinstance(one, inspect.ListType | inspect.VarTupleType):
            return one.item_type
        if isinstance(one, inspect.DictType):
            return one.value_type
    return inspect.AnyType()


def field_names(kind: inspect.StructType | None) -> list[str]:
    """The names of the fields, as they are written."""
    return [] if kind is None else [field.encode_name for field in kind.fields]


def values(kind: inspect.Type) -> Iterable[object]:
    """All values of a type that has a few."""
    if isinstance(kind, inspect.LiteralType):
        return kind.values
    return [one.value for one in kind.cls] if isinstance(kind, inspect.EnumType) else ()


def odd_name(holder: Mapping[object, object], kind: inspect.Type) -> str | None:
    """The first name of a mapping under which something stands that is not of its type: msgspec
    says `[...]` for it. None when that cannot be told."""
    for one in members(kind):
        wanted = _CLASSES.get(type(one.value_type)) if isinstance(one, inspect.DictType) else None
        if isinstance(one, inspect.DictType) and isinstance(one.value_type, inspect.StructType):
            wanted = one.value_type.cls
        for name, value in holder.items() if wanted is not None else ():
            try:
                msgspec.convert(value, wanted)
            except (msgspec.ValidationError, RecursionError):
                return name if isinstance(name, str) else None
    return None
