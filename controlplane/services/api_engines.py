"""Verbs about inference engines: what runs, and which weights each served when."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Final

import msgspec

from tensorcast.controlplane.core.names import resolve_engine
from tensorcast.controlplane.core.served import served_spans, span_at
from tensorcast.controlplane.services.api_answers import describe_engine
from tensorcast.controlplane.services.api_desk import AFTER_S_MAX, Desk
from tensorcast.controlplane.services.api_history import beyond
from tensorcast.controlplane.services.heartbeats import Pulse
from tensorcast.controlplane.store.event_infos import About
from tensorcast.schema.aggregates.engine import Engine, EngineStatus
from tensorcast.schema.api import (
    LIST_MAX,
    AuditQuery,
    Browse,
    EngineInfo,
    EventInfo,
    ServedInfo,
    Show,
    WeightsQuery,
)
from tensorcast.schema.errors import InvalidArgument, NotFound, Timeout, Unavailable
from tensorcast.schema.events import AggregateKind
from tensorcast.schema.ids import Seq

SERVED_SHOWN_MAX: Final = 100
PAGE_EVENTS: Final = LIST_MAX
_ALL: Final = "all"


async def list_engines(desk: Desk, request: Browse) -> tuple[EngineInfo, ...]:
    """The engines that run (or those of `status`; `all` for all), the last changed first; those of
    one node."""
    view = await desk.view_for(request)
    wanted = _parse_status(request.status or EngineStatus.UP)
    names = view.engines_up if wanted == EngineStatus.UP else view.engines
    found = [
        engine
        for engine in (view.engines[name] for name in names)
        if wanted in (_ALL, engine.status) and request.node in (None, engine.node)
    ]
    found.sort(key=lambda engine: engine.version, reverse=True)
    told = describe_engine if request.at is not None else partial(_as_heard, desk)
    return tuple(map(told, found[: _limit(request.limit)]))


async def show_engine(desk: Desk, request: Show) -> EngineInfo:
    """The engine of this name or address, with the weights that it served last. While Postgres is
    away these are not told. Raises NotFound."""
    view = await desk.view_for(request)
    engine = resolve_engine(view, request.what)
    try:
        await desk.history.wait_committed(engine.version, AFTER_S_MAX)
        events = await _events(desk, engine, before=beyond(request.at))
    except (Unavailable, Timeout):
        events = ()
    served = served_spans(events)[-SERVED_SHOWN_MAX:]
    info = describe_engine(engine) if request.at is not None else _as_heard(desk, engine)
    return msgspec.structs.replace(info, served=served)


async def weights_of(desk: Desk, request: WeightsQuery) -> ServedInfo:
    """The weights that an engine served at a time. Raises NotFound when it served none, then or
    ever."""
    if request.at is not None and request.at.tzinfo is None:
        raise InvalidArgument("The time has no zone.", hint="As in 2026-01-31T12:00:00Z.")
    view = await desk.view_after(request.after)
    engine = resolve_engine(view, request.engine)
    await desk.history.wait_committed(engine.version, AFTER_S_MAX)
    found = await _served_at(desk, engine, request.at)
    if found is None:
        when = "now" if request.at is None else f"at {request.at.isoformat()}"
        raise NotFound(
            f"Engine {engine.id} served no weights that it told of {when}.",
            hint=f"`tcctl engine show {engine.id}` shows what it served.",
        )
    return found


async def _served_at(desk: Desk, engine: Engine, moment: datetime | None) -> ServedInfo | None:
    """Reads the engine's history from its end, until what was read is old enough to tell. From its
    very end: an engine that could not reach the log tells late what it has served since."""
    events: tuple[EventInfo, ...] = ()
    while True:
        page = await _events(desk, engine, before=events[0].seq if events else None)
        events = (*page, *events)
        spans = served_spans(events)
        if moment is None:
            return spans[-1] if spans and spans[-1].until is None else None
        is_whole = len(page) < PAGE_EVENTS
        if is_whole or (spans and spans[0].since <= moment):
            return span_at(spans, moment)


async def _events(
    desk: Desk, engine: Engine, *, before: Seq | None = None
) -> tuple[EventInfo, ...]:
    query = AuditQuery(before=before, newest=True, limit=PAGE_EVENTS)
    return await desk.history.find_events(query, About(AggregateKind.ENGINE, engine.id))


def _as_heard(desk: Desk, engine: Engine) -> EngineInfo:
    """The engine with what it said of itself last in this life, while it runs."""
    info = describe_engine(engine)
    heard = desk.heartbeats.engines.get(engine.id)
    pulse = heard.pulse if heard is not None else Pulse("")
    if engine.status is not EngineStatus.UP or pulse.life != engine.life:
        return info
    return msgspec.structs.replace(info, load=pulse.load)


def _limit(limit: int) -> int:
    if limit < 1:
        raise InvalidArgument(f"A limit of {limit} makes no sense.", hint="Ask for 1 or more.")
    return min(limit, LIST_MAX)


def _parse_status(text: str) -> str:
    known = [status.value for status in EngineStatus]
    if text != _ALL and text not in known:
        raise InvalidArgument(
            f"{text!r} is not a status.", hint=f"Use one of {', '.join(known)}, or all."
        )
    return text
