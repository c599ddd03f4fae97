"""What surrounds an event: who, when, why, and its position in the log."""

from __future__ import annotations

from datetime import datetime

import msgspec

from tensorcast.schema.events import Event, UnknownEvent
from tensorcast.schema.ids import EventId, Seq


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """An event on its way into the log.

    `expected` is the position of the last event of the same aggregate that the writer has seen
    (0: none may exist). None appends without that check; only a journal that has already been
    checked does so.
    """

    id: EventId
    at: datetime
    actor: str
    event: Event
    cause: EventId | None = None
    trace: str | None = None
    expected: Seq | None = None

    def __post_init__(self) -> None:
        if self.at.tzinfo is None:
            raise ValueError("the time of an event needs a time zone")


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """An event with its envelope and its position."""

    seq: Seq
    id: EventId
    type: str
    v: int
    at: datetime
    actor: str
    event: Event | UnknownEvent
    cause: EventId | None = None
    trace: str | None = None
