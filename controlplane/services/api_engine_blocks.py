"""Verbs about the blocks in engines' own caches: told by their watchers, asked by routers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from tensorcast.controlplane.core.admission import check_actor
from tensorcast.controlplane.services.api_desk import Desk
from tensorcast.controlplane.store.engine_block_queries import Holder
from tensorcast.controlplane.store.engine_block_rows import Told
from tensorcast.log.identity import now
from tensorcast.schema.aggregates.engine import EngineStatus
from tensorcast.schema.api_engine_blocks import (
    EXACT,
    PARTIAL,
    REPORT_EVENTS_MAX,
    SILENT,
    EngineView,
    HoldersQuery,
    PrefixHolder,
    ReportBlocks,
    Reported,
    ReportedEvent,
    ViewQuery,
)
from tensorcast.schema.block_events import BlockDraft
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.engine_blocks import ENGINE_BLOCK_EVENT_TYPES, EngineBlockEvent
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import EngineId, Seq, parse_engine, parse_event
from tensorcast.schema.prefixes import name_prefixes
from tensorcast.schema.signals import Topic

SILENT_S: Final = 45.0
"""A watcher says how busy its engine is three times as often."""
LOAD_TOPIC: Final = "engine.load"


async def report_blocks(desk: Desk, request: ReportBlocks) -> Reported:
    """Appends what a watcher tells to the KV log. Safe to repeat with the same ids for two minutes.
    Raises InvalidArgument, PermissionDenied, Unavailable."""
    check_actor(request.actor)
    if not 0 < len(request.events) <= REPORT_EVENTS_MAX:
        raise InvalidArgument(f"A report has 1 to {REPORT_EVENTS_MAX} events.")
    drafts = [
        BlockDraft(id=parse_event(one.id), at=one.at, actor=request.actor, event=_parse(one))
        for one in request.events
    ]
    seq = await desk.block_log.append(drafts)
    return Reported(seq=seq, created=(await desk.block_log.reach()).created)


def _parse(one: ReportedEvent) -> EngineBlockEvent:
    cls = ENGINE_BLOCK_EVENT_TYPES.get(one.type)
    if cls is None:
        raise InvalidArgument(f"{one.type!r} is not told of engines.")
    try:
        event = msgspec.json.decode(one.data, type=cls)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidArgument(f"An event {one.type!r} cannot be read: {error}.") from error
    parse_engine(event.engine)
    return event


async def list_views(desk: Desk, request: ViewQuery) -> tuple[EngineView, ...]:
    """What is known of the blocks of each engine that is watched, by name."""
    views = await desk.blocks.engine_views()
    view = desk.follower.view
    found = [_describe(view, engine, *known, now()) for engine, known in sorted(views.items())]
    return tuple(one for one in found if request.all or not has_stopped(view, one.engine))


def has_stopped(view: ClusterView, engine: EngineId) -> bool:
    """Whether an engine is known to run no more. Of one that never registered nothing is known."""
    found = view.engines.get(engine)
    return found is not None and found.status is not EngineStatus.UP


def _describe(
    view: ClusterView, engine: str, told: Told, block_tokens: tuple[int, ...], at: datetime
) -> EngineView:
    heard = view.signals.get(Topic(f"{LOAD_TOPIC}.{engine}"))
    heard_at = heard.last_at if heard is not None else None
    state, reason = judge(told, heard_at, at)
    return EngineView(
        engine=EngineId(engine),
        state=state,
        reason=reason,
        blocks=told.blocks,
        block_tokens=block_tokens,
        batch=told.batch,
        at=told.at,
        heard_at=heard_at,
        seq=Seq(told.seq),
        life=told.life,
    )


def judge(told: Told, heard_at: datetime | None, at: datetime) -> tuple[str, str]:
    """How well an engine's blocks are known at a moment, and why. Pure."""
    last = max(told.at, heard_at) if heard_at is not None else told.at
    silence = at - last
    if silence > timedelta(seconds=SILENT_S):
        return SILENT, f"Its watcher has been silent for {silence.total_seconds():.0f} s."
    return (EXACT, "") if told.is_exact else (PARTIAL, told.reason)


async def find_holders(desk: Desk, request: HoldersQuery) -> tuple[PrefixHolder, ...]:
    """The engines that run and hold the beginning of a prompt, the longest part first."""
    views = await desk.blocks.engine_views()
    view, at = desk.follower.view, now()
    states = {
        engine: judge(told, _heard_at(view, engine), at)
        for engine, (told, _) in views.items()
        if not has_stopped(view, EngineId(engine))
    }
    found: list[PrefixHolder] = []
    for block_tokens in sorted({size for _, sizes in views.values() for size in sizes}):
        prefixes = name_prefixes(request.tokens, block_tokens, lora=request.lora, salt=request.salt)
        if not prefixes:
            continue
        held = await desk.blocks.find_holders(prefixes, block_tokens)
        for engine, media in leading_runs(prefixes, held).items():
            if engine in states:
                found.append(_holder(view, engine, block_tokens, media, states[engine]))
    return tuple(sorted(found, key=lambda one: (-one.tokens, one.engine)))


def _heard_at(view: ClusterView, engine: str) -> datetime | None:
    heard = view.signals.get(Topic(f"{LOAD_TOPIC}.{engine}"))
    return heard.last_at if heard is not None else None


def last_heard(view: ClusterView, engine: str, told: Told) -> datetime:
    """When anybody who watches an engine was heard of last."""
    heard_at = _heard_at(view, engine)
    return told.at if heard_at is None else max(told.at, heard_at)


def leading_runs(prefixes: Sequence[bytes], held: Sequence[Holder]) -> Mapping[str, dict[str, int]]:
    """For each engine that has the first block, how many of the blocks that it has without a gap
    from there on lie in each medium (`""`: in any of them). Pure."""
    places: dict[str, dict[bytes, set[str]]] = {}
    for one in held:
        places.setdefault(one.engine, {}).setdefault(one.prefix, set()).add(one.medium)
    runs: dict[str, dict[str, int]] = {}
    for engine, media_of in places.items():
        for prefix in prefixes:
            media = media_of.get(prefix)
            if media is None:
                break
            counts = runs.setdefault(engine, {"": 0})
            for medium in ("", *media):
                counts[medium] = counts.get(medium, 0) + 1
    return runs


def _holder(
    view: ClusterView,
    engine: str,
    block_tokens: int,
    media: Mapping[str, int],
    judged: tuple[str, str],
) -> PrefixHolder:
    known = view.engines.get(EngineId(engine))
    return PrefixHolder(
        engine=EngineId(engine),
        tokens=media[""] * block_tokens,
        blocks=media[""],
        block_tokens=block_tokens,
        media={medium: count for medium, count in sorted(media.items()) if medium},
        state=judged[0],
        reason=judged[1],
        url=known.url if known is not None else "",
    )
