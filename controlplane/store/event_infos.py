"""Events of the history as they are answered, wherever they lie. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import msgspec

from tensorcast.controlplane.store.rows import UNREADABLE
from tensorcast.schema.api import EventInfo
from tensorcast.schema.events import AggregateKind
from tensorcast.schema.ids import EventId, Seq


class About(msgspec.Struct, frozen=True):
    """One thing that events can be about: an aggregate, by its kind and its whole id."""

    kind: AggregateKind
    id: str


class EventRow(NamedTuple):
    """What is read of an event to answer it."""

    seq: int
    event_id: str
    type: str
    v: int
    at: datetime
    actor: str
    payload: bytes


class _Wire(msgspec.Struct):
    """The parts of an event that are answered as they were written."""

    id: EventId
    data: msgspec.Raw
    cause: EventId | None = None


_wire_decoder = msgspec.json.Decoder(_Wire)


def event_info(row: EventRow) -> EventInfo:
    """The answer for an event."""
    if row.type == UNREADABLE:
        data = msgspec.json.encode({"bytes": row.payload})
        wire = _Wire(EventId(row.event_id), msgspec.Raw(data))
    else:
        wire = _wire_decoder.decode(row.payload)
    return EventInfo(
        seq=Seq(row.seq),
        id=wire.id,
        type=row.type,
        v=row.v,
        at=row.at,
        actor=row.actor,
        cause=wire.cause,
        data=wire.data,
    )


def like_of(pattern: str) -> str:
    """A pattern of SQL's LIKE (a backslash escapes) for one in which `*` stands for any text."""
    escaped = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace("*", "%")
