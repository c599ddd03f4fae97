"""The history that the API asks, in Postgres."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncEngine

from tensorcast.controlplane.store import (
    block_queries,
    engine_block_queries,
    queries,
    signal_queries,
)
from tensorcast.controlplane.store.block_queries import Mention
from tensorcast.controlplane.store.block_rows import Holding, Place
from tensorcast.controlplane.store.engine_block_queries import Holder
from tensorcast.controlplane.store.engine_block_rows import Told
from tensorcast.controlplane.store.queries import About
from tensorcast.schema.api import AuditQuery, BlockQuery, EventInfo
from tensorcast.schema.blocks import BlockKey
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.ids import NodeId, Seq


class PostgresHistory:
    """Keeps the contract of `History` on an engine, which stays the caller's."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def committed_seq(self) -> Seq:
        return await queries.committed_seq(self._engine)

    async def wait_committed(self, seq: Seq, timeout_s: float) -> Seq:
        return await queries.wait_committed(self._engine, seq, timeout_s)

    async def find_events(self, query: AuditQuery, about: About | None) -> tuple[EventInfo, ...]:
        return await queries.find_events(self._engine, query, about=about)

    async def seq_at(self, moment: datetime) -> Seq:
        return await queries.seq_at(self._engine, moment)

    async def view_at(self, seq: Seq) -> ClusterView:
        return await queries.view_at(self._engine, seq)

    async def find_signals(self, seqs: Sequence[Seq]) -> Mapping[Seq, dict[str, object]]:
        return await signal_queries.find_signals(self._engine, seqs)


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
