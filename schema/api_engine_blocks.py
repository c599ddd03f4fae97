"""What is asked and told of the blocks in engines' own caches: requests and answers."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from tensorcast.schema.ids import EngineId, EventId, Seq

REPORT_EVENTS_MAX: Final = 64
"""Most events of one report."""
EXACT, PARTIAL, SILENT = "exact", "partial", "silent"
"""What is known of an engine's blocks. Partial: what is told is true, and it may hold more. Silent:
its watcher has not been heard of, so it may hold other blocks by now."""


class ReportedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event on its way; its id stays when it is reported again."""

    id: EventId
    type: str
    at: datetime
    data: msgspec.Raw


class ReportBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """Verb `engine_blocks.report`: append these events to the KV log, in order, all or none.
    Answer: `Reported`."""

    actor: str
    events: tuple[ReportedEvent, ...]


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    """Where the last event is, and in which KV log: in another one than before, everything is to
    be told anew."""

    seq: Seq
    created: str


class ViewQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Verb `engine_blocks.views`: what is known of the engines that run. With `all`, also of
    others."""

    all: bool = False


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one engine's blocks. `state` is exact, partial or silent, `reason` says
    why; `at` is the time of the last event, `heard_at` when its watcher was heard of last; `batch`
    is how far the engine's own record was told; `life` is that of the watcher whose word counts,
    and `seq` the position of its last word in the KV log."""

    engine: EngineId
    state: str
    reason: str
    blocks: int
    block_tokens: tuple[int, ...]
    batch: int
    at: datetime
    heard_at: datetime | None
    seq: Seq
    life: str = ""


class HoldersQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Verb `engine_blocks.holders`: which engines hold how much of a prompt. `lora` and `salt` are
    those of the request."""

    tokens: tuple[int, ...]
    lora: str | None = None
    salt: str | None = None


class PrefixHolder(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that holds the beginning of a prompt: `tokens` of it, in `blocks` blocks; `media`
    counts the blocks of that beginning in each of its media. `state` as in `EngineView`."""

    engine: EngineId
    tokens: int
    blocks: int
    block_tokens: int
    media: dict[str, int]
    state: str
    reason: str
    url: str = ""
