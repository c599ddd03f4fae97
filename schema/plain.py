"""Plain values, as JSON holds them, with numbers that every reader of the log can hold. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from tensorcast.schema.errors import InvalidArgument

INTEGER_MIN: Final = -(1 << 63)
INTEGER_MAX: Final = (1 << 64) - 1
"""What 64 bits hold, with a sign or without one."""
_ENDLESS: Final = "NaN or infinite, which JSON cannot hold"
_LONG: Final = "an integer beyond 64 bits"
_HINT: Final = "Leave it out, or write a text or a finite number of 64 bits."
_encoder: Final = msgspec.msgpack.Encoder()


class Unfit(NamedTuple):
    """What cannot be kept as it is: its place ("" for the value itself), and what it is."""

    place: str
    words: str


def check_numbers(value: object, what: str) -> None:
    """Raises InvalidArgument for a number in a value, however deep, that cannot be kept (NaN, the
    infinite ones, integers beyond 64 bits), naming its place in `what`."""
    found = find_number(value)
    if found is not None:
        raise InvalidArgument(_tell(found, what), hint=_HINT)


def check_plain(value: object, what: str) -> None:
    """As `check_numbers`, and for anything else that JSON does not have: bytes, sets, names that
    are no text, objects of classes."""
    check_numbers(value, what)
    found = next(
        (Unfit(place, words) for place, one in _walk(value) if (words := _oddness(one))), None
    )
    if found is not None:
        raise InvalidArgument(
            _tell(found, what), hint="JSON has texts, numbers, true, false, null, lists and maps."
        )


def check_events(events: tuple[object, ...]) -> None:
    """Raises InvalidArgument for events with an integer that not every reader can hold."""
    for event in events:
        try:
            _encoder.encode(event)
        except OverflowError:
            check_numbers(msgspec.to_builtins(event), type(event).__name__)
            raise


def is_same(left: object, right: object) -> bool:
    """Whether two values are one in JSON: 1 is 1.0, and true is no number."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(is_same(left[n], right[n]) for n in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(is_same, left, right))
    return left == right


def has_order(left: object, right: object) -> bool:
    """Whether one may be less than the other: two numbers, or two texts."""
    both = (left, right)
    if any(isinstance(one, bool) for one in both):
        return False
    return all(isinstance(one, int | float) for one in both) or all(
        isinstance(one, str) for one in both
    )


def find_number(value: object) -> Unfit | None:
    """The first number in a value that cannot be kept; None: there is none."""
    for place, one in _walk(value):
        if isinstance(one, float) and not math.isfinite(one):
            return Unfit(place, _ENDLESS)
        if isinstance(one, int) and not INTEGER_MIN <= one <= INTEGER_MAX:
            return Unfit(place, _LONG)
    return None


def _walk(value: object) -> Iterator[tuple[str, object]]:
    """The value and all within it, each with its place."""
    left: list[tuple[str, object]] = [("", value)]
    while left:
        place, one = left.pop()
        yield place.lstrip("."), one
        if isinstance(one, Mapping):
            left.extend((f"{place}.{name}", inner) for name, inner in one.items())
        elif isinstance(one, list | tuple):
            left.extend((f"{place}[{number}]", inner) for number, inner in enumerate(one))


def _oddness(value: object) -> str:
    """What JSON does not have, in words; "" for what it has."""
    if isinstance(value, Mapping):
        odd = next((name for name in value if not isinstance(name, str)), None)
        return "" if odd is None else f"a map with the name {odd!r}, which is no text"
    known = value is None or isinstance(value, bool | int | float | str | list | tuple)
    return "" if known else f"of the type {type(value).__name__}, which JSON does not have"


def _tell(found: Unfit, what: str) -> str:
    if found.place:
        return f"{what} cannot be kept: {found.place} is {found.words}."
    return f"{what} is {found.words}."
