"""Values of environment variables, checked. Nothing is rounded or cut to fit: what cannot be taken
as it is written is refused, in one sentence that names the variable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tensorcast.schema.errors import InvalidArgument

INTEGER_MAX: Final = (1 << 63) - 1


def read_number(
    environ: Mapping[str, str], name: str, default: float, least: float, most: float | None = None
) -> float:
    """A number in these bounds. Raises InvalidArgument."""
    text = environ.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value < float("inf") or (most is not None and value > most):
        raise _refusal(name, text, "number", least, most)
    return value


def read_integer(
    environ: Mapping[str, str], name: str, default: int, least: int, most: int | None = None
) -> int:
    """A whole number in these bounds, also as 0x68 or 1e9. Raises InvalidArgument."""
    text = environ.get(name) or str(default)
    value = _integer(text)
    if value is None or not least <= value <= (INTEGER_MAX if most is None else most):
        raise _refusal(name, text, "whole number", least, most)
    return value


def read_switch(environ: Mapping[str, str], name: str) -> bool:
    """`on` or `off`, the default. Raises InvalidArgument."""
    text = environ.get(name) or "off"
    if text not in ("on", "off"):
        raise InvalidArgument(f"{name} is {text!r}.", hint="Write on or off.")
    return text == "on"


def _integer(text: str) -> int | None:
    try:
        return int(text, 16 if text.lower().startswith("0x") else 10)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value.is_integer() else None


def _refusal(name: str, text: str, what: str, least: float, most: float | None) -> InvalidArgument:
    bounds = f"{least:g} or more" if most is None else f"from {least:g} to {most:g}"
    return InvalidArgument(f"{name} is {text!r}.", hint=f"It must be a {what}, {bounds}.")
