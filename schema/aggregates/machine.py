"""The few lines that look a transition up, and draw the table as a diagram."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from tensorcast.schema.errors import Rejected
from tensorcast.schema.events import TYPE_NAMES, Event
from tensorcast.schema.ids import Epoch

StatusT = TypeVar("StatusT", bound=StrEnum)


def next_status(
    transitions: Mapping[tuple[StatusT | None, type[Event]], StatusT],
    status: StatusT | None,
    event: Event,
    what: str,
) -> StatusT:
    """The status after `event`. An absent entry is the error: raises Rejected, naming `what`."""
    found = transitions.get((status, type(event)))
    if found is None:
        raise Rejected(
            f"{what} is {status or 'not there'}, so '{TYPE_NAMES[type(event)]}' cannot follow.",
            hint="Look at its state again; it may have changed meanwhile.",
        )
    return found


def check_epoch(seen: Epoch, claimed: Epoch, what: str) -> None:
    """Fencing: raises Rejected when a life of a mover older than the last one seen writes."""
    if claimed < seen:
        raise Rejected(
            f"{what} was last written in epoch {seen}; epoch {claimed} is stale.",
            hint="This mover was replaced by a newer life of itself and must stop.",
        )


def draw(transitions: Mapping[tuple[StatusT | None, type[Event]], StatusT]) -> str:
    """The table as a mermaid state diagram, in a stable order."""
    lines = [
        f"    {source or '[*]'} --> {target}: {TYPE_NAMES[event_type]}"
        for (source, event_type), target in transitions.items()
    ]
    return "\n".join(["stateDiagram-v2", *lines])
