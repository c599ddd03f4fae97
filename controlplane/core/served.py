"""Which weights an engine served, from when to when: read out of its events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from tensorcast.schema.api import EventInfo, ServedInfo
from tensorcast.schema.codec import decode_event
from tensorcast.schema.engine_events import (
    EngineLeft,
    EngineLost,
    EngineRegistered,
    EngineServing,
)


def served_spans(events: Iterable[EventInfo]) -> tuple[ServedInfo, ...]:
    """The weights in the order in which they served, out of an engine's events in the order of the
    log. What began before the first event is not told."""
    spans: list[ServedInfo] = []
    for info in events:
        match decode_event(info.type, info.v, info.data):
            case EngineServing() as event:
                _begin(spans, event, info)
            case EngineLost(last_seen=moment):
                _end(spans, moment)
            case EngineLeft():
                _end(spans, info.at)
            case EngineRegistered(life=life):
                if spans and spans[-1].life != life:
                    _end(spans, info.at)
            case _:
                pass
    return tuple(spans)


def _begin(spans: list[ServedInfo], event: EngineServing, info: EventInfo) -> None:
    """A life that was thought lost and tells again what it has served all along was not lost."""
    began = ServedInfo(
        engine=event.engine,
        version=event.version,
        artifact=event.artifact,
        since=event.since,
        until=None,
        life=event.life,
        seq=info.seq,
    )
    if spans and msgspec.structs.replace(spans[-1], until=None, seq=began.seq) == began:
        spans[-1] = msgspec.structs.replace(spans[-1], until=None)
        return
    _end(spans, event.since)
    spans.append(began)


def _end(spans: list[ServedInfo], moment: datetime) -> None:
    if spans and spans[-1].until is None:
        spans[-1] = msgspec.structs.replace(spans[-1], until=max(moment, spans[-1].since))


def span_at(spans: Sequence[ServedInfo], moment: datetime) -> ServedInfo | None:
    """The weights that served at that moment; the later ones at the moment of a change."""
    for span in reversed(spans):
        if span.since <= moment and (span.until is None or moment < span.until):
            return span
    return None
