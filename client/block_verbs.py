"""What clients ask the control plane about KV blocks; part of `ControlPlane`."""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

from tensorcast.schema.api import (
    Ask,
    BlockInfo,
    BlockQuery,
    BlockShow,
    EventInfo,
    NodeBlocks,
    SpaceBlocks,
)
from tensorcast.schema.blocks import BlockKey, pack_key
from tensorcast.schema.ids import parse_node

T = TypeVar("T")


class _Asks(Protocol):
    async def ask(
        self, verb: str, request: msgspec.Struct, answer: type[T], *, timeout: float | None = None
    ) -> T: ...


class BlockVerbs:
    """Questions about KV blocks, put by `ask`. Answers are as new as Postgres: a moment behind."""

    async def block_stats(self: _Asks) -> tuple[NodeBlocks, ...]:
        """What each node that is up holds in each tier, by name."""
        return await self.ask("blocks.stats", Ask(), tuple[NodeBlocks, ...])

    async def block_spaces(self: _Asks) -> tuple[SpaceBlocks, ...]:
        """The spaces of which nodes that are up hold blocks, the largest first."""
        return await self.ask("blocks.spaces", Ask(), tuple[SpaceBlocks, ...])

    async def block(self: _Asks, key: BlockKey, *, node: str | None = None) -> BlockInfo:
        """Who holds one block, and the last events that named it. Raises NotFound."""
        place = parse_node(node) if node is not None else None
        return await self.ask("blocks.show", BlockShow(key=pack_key(key), node=place), BlockInfo)

    async def block_events(self: _Asks, query: BlockQuery) -> tuple[EventInfo, ...]:
        """One page of the KV events that match, in the order of the KV log; a page may be shorter
        than was asked for. Who wants more asks after the last one's position."""
        return await self.ask("blocks.events", query, tuple[EventInfo, ...])
