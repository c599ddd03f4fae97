"""Plain values, as JSON holds them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tensorcast.schema.errors import InvalidArgument


def check_finite(value: object, what: str) -> None:
    """Raises InvalidArgument for a number in a value, however deep, that JSON cannot hold (NaN and
    the infinite ones), naming its place in `what`: written it would be nothing at all."""
    place = find_endless(value)
    if place is not None:
        where = f" (at {place})" if place else ""
        raise InvalidArgument(
            f"{what} has a number that JSON cannot hold{where}: NaN, or an infinite one.",
            hint="Leave it out, or write a text or a finite number.",
        )


def find_endless(value: object) -> str | None:
    """The place of a number that is not finite, "" for the value itself; None: there is none."""
    left: list[tuple[str, object]] = [("", value)]
    while left:
        place, one = left.pop()
        if isinstance(one, float) and not math.isfinite(one):
            return place.lstrip(".")
        if isinstance(one, Mapping):
            left.extend((f"{place}.{name}", inner) for name, inner in one.items())
        elif isinstance(one, list | tuple):
            left.extend((f"{place}[{number}]", inner) for number, inner in enumerate(one))
    return None
