"""What holds for every aggregate, whatever it is about."""

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol, TypeVar

import pytest

from samples import record
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import Rejected
from tensorcast.schema.events import Event


class Aggregate(Protocol):
    status: StrEnum
    version: int


State = TypeVar("State", bound=Aggregate)
E = TypeVar("E", bound=Event)


def check_law(
    evolve: Callable[[State | None, Recorded, E], State],
    state: State | None,
    event: E,
    target: StrEnum | None,
) -> None:
    """An event leads to the status that the table of transitions names, and is refused where the
    table has none."""
    if target is None:
        with pytest.raises(Rejected, match="cannot follow"):
            evolve(state, record(event, 9), event)
    else:
        after = evolve(state, record(event, 9), event)
        assert (after.status, after.version) == (target, 9)
