"""The history that the API asks, in Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine

from tensorcast.controlplane.store import (
    block_queries,
    dead_queries,
    engine_block_queries,
    queries,
    signal_queries,
)
from tensorcast.controlplane.store.block_queries import Mention
from tensorcast.controlplane.store.block_rows import Holding, Place
from tensorcast.controlplane.store.dead_queries import Counts
from tensorcast.controlplane.store.engine_block_queries import Holder
from tensorcast.controlplane.store.engine_block_rows import Told
from tensorcast.controlplane.store.event_infos import About
from tensorcast.schema.api import AuditQuery, BlockQuery, EventInfo
from tensorcast.schema.api_store import DeadPage, DeadQuery
from tensorcast.schema.blocks import BlockKey
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.ids import EventId, NodeId, Seq

WALKS_MAX: Final = 2
VIEWS_MAX: Final = 32
"""Most views of one walk that are kept."""
KEEP_S: Final = 60.0


class Opened:
    """The views of the past that were opened last, for who walks from one moment to the next. Those
    of one walk share most of what they hold; few walks are kept, and all are forgotten when nobody
    has asked for a while."""

    def __init__(self, *, keep_s: float = KEEP_S) -> None:
        self._walks: list[dict[Seq, ClusterView]] = []
        self._epoch = 0
        self._keep_s = keep_s
        self._forgetting: asyncio.TimerHandle | None = None

    def nearest(self, epoch: int, seq: Seq) -> ClusterView:
        """The latest of them at or before event `seq`; the empty view when there is none."""
        if epoch != self._epoch:
            self._walks.clear()
        self._epoch = epoch
        views = [view for walk in self._walks for view in walk.values() if view.at <= seq]
        return max(views, key=lambda view: view.at, default=ClusterView())

    def keep(self, view: ClusterView, known: ClusterView) -> None:
        """Remembers a view that was folded from `known`, or read from elsewhere. The one that was
        kept longest goes for it."""
        walk = next((walk for walk in self._walks if walk.get(known.at) is known), None)
        if walk is None:
            walk = {}
            self._walks = [walk, *self._walks[: WALKS_MAX - 1]]
        walk.pop(view.at, None)
        walk[view.at] = view
        if len(walk) > VIEWS_MAX:
            del walk[next(iter(walk))]
        if self._forgetting is not None:
            self._forgetting.cancel()
        loop = asyncio.get_running_loop()
        self._forgetting = loop.call_later(self._keep_s, self._walks.clear)


class PostgresHistory:
    """Keeps the contract of `History` on an engine, which stays the caller's."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._opened = Opened()
        self._opening = asyncio.Lock()

    async def committed_seq(self) -> Seq:
        return await queries.committed_seq(self._engine)

    async def wait_committed(self, seq: Seq, timeout_s: float) -> Seq:
        return await queries.wait_committed(self._engine, seq, timeout_s)

    async def find_events(self, query: AuditQuery, about: About | None) -> tuple[EventInfo, ...]:
        return await queries.find_events(self._engine, query, about=about)

    async def find_event(self, event: EventId) -> EventInfo | None:
        return await queries.find_event(self._engine, event)

    async def find_effects(self, causes: Sequence[EventId], limit: int) -> tuple[EventInfo, ...]:
        return await queries.find_effects(self._engine, causes, limit=limit)

    async def seq_at(self, moment: datetime) -> Seq:
        return await queries.seq_at(self._engine, moment)

    async def view_at(self, seq: Seq) -> ClusterView:
        async with self._opening:  # one at a time: a view of the past can be large
            epoch = await queries.log_epoch(self._engine)
            known = self._opened.nearest(epoch, seq)
            if known.at < seq:
                async for view in queries.views_to(self._engine, seq, known):
                    self._opened.keep(view, known)
                    known = view
            return known

    async def find_signals(self, seqs: Sequence[Seq]) -> Mapping[Seq, dict[str, object]]:
        return await signal_queries.find_signals(self._engine, seqs)

    async def find_letters(self, query: DeadQuery) -> DeadPage:
        return await dead_queries.find_letters(self._engine, query)

    async def count_letters(self) -> Counts:
        return await dead_queries.count_letters(self._engine)

    async def want_retry(self) -> int:
        return await dead_queries.want_retry(self._engine)

    async def count_wanted(self) -> int:
        return await dead_queries.count_wanted(self._engine)


class PostgresBlocks:
    """Keeps the contract of `BlockHistory` on an engine, which stays the caller's."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def holdings(self) -> Mapping[Place, Holding]:
        return await block_queries.holdings(self._engine)

    async def find_mentions(self, key: BlockKey, node: NodeId | None) -> tuple[Mention, ...]:
        return await block_queries.find_mentions(self._engine, key, node)

    async def find_block_events(self, query: BlockQuery) -> tuple[EventInfo, ...]:
        return await block_queries.find_block_events(self._engine, query)

    async def engine_views(self) -> Mapping[str, tuple[Told, tuple[int, ...]]]:
        return await engine_block_queries.read_views(self._engine)

    async def find_holders(
        self, prefixes: Sequence[bytes], block_tokens: int
    ) -> tuple[Holder, ...]:
        return await engine_block_queries.find_holders(self._engine, prefixes, block_tokens)
