"""What the fields of a plan's steps hold: plain values, and references to what earlier steps gave.

A reference is text: `${pull.node}` is output `node` of step `pull`, `${input.version}` an input of
the plan, `${item}` and `${index}` what a map goes over. A text that is one reference stands for the
value itself, whatever its type; references within a longer text become part of the text. In
structured data (what a signal says) they may stand anywhere. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.plain import check_numbers

INPUT: Final = "input"
ITEM: Final = "item"
INDEX: Final = "index"
RESERVED: Final = frozenset({INPUT, ITEM, INDEX, "plan", "compensate"})
"""Names that no step may have."""

_REFERENCE: Final = re.compile(r"\$\{([^{}]*)\}")
_PATH: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")


class ValueType(StrEnum):
    """What a value is. ANY: known only when the plan runs, and checked then."""

    ARTIFACT = "artifact"
    KEY = "key"
    NODE = "node"
    NODES = "nodes"
    ENGINE = "engine"
    ENGINES = "engines"
    OPERATION = "operation"
    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    LIST = "list"
    MAPPING = "mapping"
    ANY = "any"


_NAMES: Final = frozenset(
    {
        ValueType.ARTIFACT,
        ValueType.KEY,
        ValueType.NODE,
        ValueType.ENGINE,
        ValueType.OPERATION,
    }
)
_LISTS: Final = frozenset({ValueType.NODES, ValueType.ENGINES})


class Reference(msgspec.Struct, frozen=True):
    """The name of a step (or `input`, `item`, `index`), and the way into what it gave."""

    root: str
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "${" + ".".join((self.root, *self.path)) + "}"


Lookup = Callable[[Reference], object]


def parse_reference(text: str) -> Reference:
    """What stands between the braces. Raises InvalidArgument."""
    if not _PATH.fullmatch(text):
        raise InvalidArgument(
            f"'${{{text}}}' is no reference.",
            hint="Write ${step.output}, ${input.name} or ${item}.",
        )
    root, *path = text.split(".")
    return Reference(root, tuple(path))


def whole_reference(value: object) -> Reference | None:
    """The reference that a text is, from its first to its last character. Raises
    InvalidArgument."""
    found = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    return parse_reference(found[1]) if found else None


def references_in(value: object) -> Iterator[Reference]:
    """All references in a value, however deep. Raises InvalidArgument."""
    for text in texts_in(value):
        yield from map(parse_reference, named_in(text))


def texts_in(value: object) -> Iterator[str]:
    """All texts in a value, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from texts_in(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from texts_in(one)


def named_in(text: str) -> Iterator[str]:
    """What stands between `${` and `}` in a text."""
    for found in _REFERENCE.finditer(text) if "${" in text else ():
        yield found[1]


def resolve(value: object, lookup: Lookup) -> object:
    """The value with what its references stand for. Raises InvalidArgument, and what `lookup`
    raises."""
    if isinstance(value, str):
        whole = whole_reference(value)
        if whole is not None:
            return lookup(whole)
        return _REFERENCE.sub(lambda found: _as_text(parse_reference(found[1]), lookup), value)
    if isinstance(value, Mapping):
        return {name: resolve(one, lookup) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [resolve(one, lookup) for one in value]
    return value


def _as_text(reference: Reference, lookup: Lookup) -> str:
    value = lookup(reference)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidArgument(
            f"{reference} is {_name(value)}, which cannot be part of a text.",
            hint="Only texts and numbers can.",
        )
    return str(value)


def dig(value: object, reference: Reference, start: int) -> object:
    """What lies in `value` along the path of the reference from part `start` on. Raises
    InvalidArgument when there is no such thing."""
    for part in reference.path[start:]:
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list | tuple) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise InvalidArgument(
                f"{reference} stands for nothing: {_name(value)} has no {part!r}."
            )
    return value


def type_of(value: object) -> ValueType:
    """The type of a plain value; a text may be the name of anything."""
    match value:
        case bool():
            return ValueType.BOOLEAN
        case int():
            return ValueType.INTEGER
        case float():
            return ValueType.NUMBER
        case str():
            return ValueType.TEXT
        case list() | tuple():
            return ValueType.LIST
        case _:
            return ValueType.MAPPING if isinstance(value, Mapping) else ValueType.ANY


def fits(given: ValueType, wanted: ValueType) -> bool:
    """Whether a value of one type may stand where another one is wanted: an integer for a number, a
    key for an artifact, a text for any name, any name for a text."""
    if given is wanted or ValueType.ANY in (given, wanted):
        return True
    match wanted:
        case ValueType.NUMBER:
            return given is ValueType.INTEGER
        case ValueType.ARTIFACT:
            return given in (ValueType.KEY, ValueType.TEXT)
        case ValueType.TEXT:
            return given in _NAMES
        case ValueType.LIST:
            return given in _LISTS
        case ValueType.NODES | ValueType.ENGINES:
            return given is ValueType.LIST
        case _:
            return wanted in _NAMES and given is ValueType.TEXT


def check_value(value: object, wanted: ValueType, what: str) -> object:
    """The value, if it is of the type, and can be kept. Raises InvalidArgument, naming `what`."""
    check_numbers(value, what)
    if wanted in _NAMES and not (isinstance(value, str) and 0 < len(value) <= 512):
        raise _wrong(value, wanted, what)
    if wanted in _LISTS and not (
        isinstance(value, list | tuple) and all(isinstance(one, str) and one for one in value)
    ):
        raise _wrong(value, wanted, what)
    plain = wanted in _NAMES or wanted in _LISTS or wanted is ValueType.ANY
    if not plain and not fits(type_of(value), wanted):
        raise _wrong(value, wanted, what)
    return value


def _wrong(value: object, wanted: ValueType, what: str) -> InvalidArgument:
    return InvalidArgument(f"{what} must be {_ARTICLES[wanted]}, not {_name(value)}.")


_ARTICLES: Final[dict[ValueType, str]] = {
    ValueType.ARTIFACT: "the name of an artifact",
    ValueType.KEY: "a key",
    ValueType.NODE: "the name of a node",
    ValueType.NODES: "a list of names of nodes",
    ValueType.ENGINE: "the name of an engine",
    ValueType.ENGINES: "a list of names of engines",
    ValueType.OPERATION: "the id of an operation",
    ValueType.TEXT: "a text",
    ValueType.INTEGER: "an integer",
    ValueType.NUMBER: "a number",
    ValueType.BOOLEAN: "true or false",
    ValueType.LIST: "a list",
    ValueType.MAPPING: "a mapping",
    ValueType.ANY: "a value",
}


def describe_type(wanted: ValueType) -> str:
    """A type in words, for sentences."""
    return _ARTICLES[wanted]


def _name(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
