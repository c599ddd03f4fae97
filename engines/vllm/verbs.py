"""What an engine can be asked by plans: a verb takes what a call says, and gives its outputs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from tensorcast.schema.errors import InvalidArgument

Outputs = dict[str, object]
Verb = Callable[[object], Awaitable[Outputs]]
T = TypeVar("T")


def read(said: object, shape: type[T]) -> T:
    """The arguments of a call. Raises InvalidArgument that says which is wrong."""
    try:
        return msgspec.convert(said, shape)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"The call cannot be understood: {error}.") from error
