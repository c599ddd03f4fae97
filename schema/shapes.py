"""Shapes: what data must look like, as JSON Schema of which some words are understood.

Understood: type (object, array, string, number, integer, boolean, null, or a list of them),
properties, required, additionalProperties (true, false or a shape), items, enum, minimum, maximum,
minLength, maxLength, minItems, maxItems; and title, description, which say nothing. Another word is
refused when a shape is given: nobody shall rely on what is not checked.
(JSON Schema draft 2020-12, https://json-schema.org/draft/2020-12.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, cast

import msgspec

from tensorcast.schema.errors import InvalidArgument

Shape = Mapping[str, object]
SHAPE_BYTES_MAX: Final = 32 << 10
DEPTH_MAX: Final = 32


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: Final[Mapping[str, Callable[[object], bool]]] = {
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, list | tuple),
    "string": lambda value: isinstance(value, str),
    "number": _is_number,
    "integer": lambda value: _is_number(value) and float(cast("float", value)).is_integer(),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}
_BOUNDS: Final = ("minimum", "maximum")
_LENGTHS: Final = ("minLength", "maxLength", "minItems", "maxItems")
_WORDS: Final = frozenset(
    {
        *("type", "properties", "required", "additionalProperties", "items", "enum"),
        *_BOUNDS,
        *_LENGTHS,
        *("title", "description"),
    }
)


def record(**fields: str | Shape) -> Shape:
    """The shape of an object that has these fields, and may have others; each is the name of a
    type or a shape, and `optional` ones may be absent."""
    properties = {
        name: {"type": shape} if isinstance(shape, str) else shape for name, shape in fields.items()
    }
    required = [name for name, shape in properties.items() if not _is_optional(shape)]
    return {"type": "object", "properties": properties, "required": required}


def optional(name: str) -> Shape:
    """The shape of a field of this type that may be null or absent."""
    return {"type": [name, "null"]}


def _is_optional(shape: Shape) -> bool:
    types = shape.get("type")
    return isinstance(types, list) and "null" in types


def check_shape(shape: object, *, depth: int = 0) -> None:
    """Raises InvalidArgument for what is no shape."""
    if not isinstance(shape, Mapping) or depth > DEPTH_MAX:
        raise _no_shape("A shape is an object with a type.")
    unknown = sorted(map(str, set(shape) - _WORDS))
    if unknown:
        raise _no_shape(f"The word {unknown[0]!r} is not understood in a shape.")
    types = shape.get("type", [])
    names = [types] if isinstance(types, str) else types
    if not isinstance(names, list | tuple) or any(name not in _TYPES for name in names):
        raise _no_shape(f"{types!r} is not a type.")
    for word in (*_BOUNDS, *_LENGTHS):
        if word in shape and not _is_number(shape[word]):
            raise _no_shape(f"{word} is a number.")
    required = shape.get("required", [])
    if not isinstance(required, list | tuple) or not all(isinstance(n, str) for n in required):
        raise _no_shape("required is a list of names.")
    if not isinstance(shape.get("enum", []), list | tuple):
        raise _no_shape("enum is a list of values.")
    for inner in _inner(shape):
        check_shape(inner, depth=depth + 1)
    if not depth and len(msgspec.json.encode(shape)) > SHAPE_BYTES_MAX:
        raise _no_shape(f"A shape takes {SHAPE_BYTES_MAX} bytes at most.")


def _inner(shape: Mapping[str, object]) -> Iterator[object]:
    properties = shape.get("properties", {})
    if not isinstance(properties, Mapping):
        raise _no_shape("properties is an object of shapes.")
    yield from properties.values()
    if "items" in shape:
        yield shape["items"]
    if not isinstance(shape.get("additionalProperties", True), bool):
        yield shape["additionalProperties"]


def _no_shape(message: str) -> InvalidArgument:
    return InvalidArgument(
        message, hint='As in {"type": "object", "properties": {"key": {"type": "string"}}}.'
    )


def find_fault(shape: Shape, value: object, place: str = "data") -> str | None:
    """What is wrong with a value, in words that name the place; None when it has the shape."""
    types = shape.get("type", ())
    names = (types,) if isinstance(types, str) else cast("tuple[str, ...]", types)
    if names and not any(_TYPES[name](value) for name in names):
        return f"{place} is not {' or '.join(names)}"
    if "enum" in shape and value not in cast("list[object]", shape["enum"]):
        return f"{place} is none of {shape['enum']}"
    if _is_number(value):
        return _find_bound(shape, cast("float", value), place)
    if isinstance(value, str):
        return _find_length(shape, len(value), "Length", place)
    if isinstance(value, list | tuple):
        return _find_length(shape, len(value), "Items", place) or _find_in_items(
            shape, value, place
        )
    return _find_in_fields(shape, value, place) if isinstance(value, Mapping) else None


def _find_bound(shape: Shape, value: float, place: str) -> str | None:
    if "minimum" in shape and value < cast("float", shape["minimum"]):
        return f"{place} is less than {shape['minimum']}"
    if "maximum" in shape and value > cast("float", shape["maximum"]):
        return f"{place} is more than {shape['maximum']}"
    return None


def _find_length(shape: Shape, length: int, what: str, place: str) -> str | None:
    if length < cast("float", shape.get(f"min{what}", 0)):
        return f"{place} is shorter than {shape[f'min{what}']}"
    if f"max{what}" in shape and length > cast("float", shape[f"max{what}"]):
        return f"{place} is longer than {shape[f'max{what}']}"
    return None


def _find_in_items(
    shape: Shape, value: list[object] | tuple[object, ...], place: str
) -> str | None:
    if "items" not in shape:
        return None
    items = cast("Shape", shape["items"])
    faults = (find_fault(items, item, f"{place}[{i}]") for i, item in enumerate(value))
    return next((fault for fault in faults if fault), None)


def _find_in_fields(shape: Shape, value: Mapping[str, object], place: str) -> str | None:
    properties = cast("Mapping[str, Shape]", shape.get("properties", {}))
    for name in cast("list[str]", shape.get("required", [])):
        if name not in value:
            return f"{place}.{name} is missing"
    further = shape.get("additionalProperties", True)
    for name, item in value.items():
        inner = properties.get(name, further)
        if inner is False:
            return f"{place}.{name} is not known"
        fault = None if inner is True else find_fault(cast("Shape", inner), item, f"{place}.{name}")
        if fault:
            return fault
    return None
