"""Which other nodes hold which blocks: the KV log, followed by this mover.

It is an opinion, and may be out of date: a node may have evicted a block a moment ago, or hold one
that it has not told of yet. Nothing wrong comes of it. Who is asked for a block that it does not
have says so, and what it sends is checked against its digest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

from tensorcast.log.blocks import BlockLog
from tensorcast.log.follower import Follower
from tensorcast.log.port import Log, Stored
from tensorcast.movers.core.block_places import BlockPlaces
from tensorcast.schema.aggregates.node import NodeStatus
from tensorcast.schema.block_events import BlockEvent, decode_blocks
from tensorcast.schema.errors import Corrupt, TensorCastError, Timeout, Unavailable
from tensorcast.schema.ids import NodeId, Seq

CATCH_UP_S_MAX: Final = 60.0
RETRY_S: Final = 0.5
HOPELESS_PAUSE_S: Final = 30.0
ASKED_AT_ONCE_MAX: Final = 64
_logger = logging.getLogger(__name__)


class BlockProjection:
    """Keeps the contract of `BlockLocator`. Needs `run` in a task. `follower` follows `log` and
    knows which nodes are up, and in which life."""

    def __init__(self, blocks: BlockLog, log: Log, follower: Follower, own: NodeId) -> None:
        self.at = Seq(0)
        self._blocks = blocks
        self._log = log
        self._follower = follower
        self._own = own
        self._places = BlockPlaces(own)

    def __len__(self) -> int:
        """How many blocks are known to be on other nodes."""
        return len(self._places)

    # ---- from any thread -------------------------------------------------------------------

    def locate(self, keys: Sequence[bytes]) -> list[tuple[NodeId, ...]]:
        """As `BlockLocator.locate`. Costs less than a microsecond a key."""
        return self._places.locate(keys, self._follower.view.nodes)

    def address(self, node: NodeId) -> str | None:
        """As `BlockLocator.address`."""
        found = self._follower.view.nodes.get(node)
        return found.address if found is not None and found.status is NodeStatus.UP else None

    # ---- in the event loop -----------------------------------------------------------------

    async def run(self) -> None:
        """Follows for ever. A log that cannot be reached leaves what was known; another log of
        the same name is followed from its beginning."""
        while True:
            try:
                await self._follow()
            except Corrupt as error:
                _logger.warning("the KV log is followed anew: %s", error)
            except (Unavailable, Timeout) as error:
                _logger.info("where blocks are is not followed: %s", error)
            except TensorCastError as error:
                _logger.warning("where blocks are is not followed: %s", error)
                await asyncio.sleep(HOPELESS_PAUSE_S)
            await asyncio.sleep(RETRY_S)

    async def _follow(self) -> None:
        reach = await self._blocks.reach()
        # Whoever has told something by now has joined before.
        await self._follower.wait_for(await self._log.last_seq(), CATCH_UP_S_MAX)
        after = await self._find_beginning(reach.last)
        self._places = BlockPlaces(self._own)
        async with aclosing(self._blocks.read(reach.created, after=after)) as batches:
            self.at = after
            async for batch in batches:
                for stored in batch:
                    self._take(stored)
                    await asyncio.sleep(0)  # thousands of keys each: the others come between
                await self._sweep()

    async def _find_beginning(self, last: Seq) -> Seq:
        """Where to read from to learn what every node holds: before the earliest of their last
        beginnings. Who has not begun yet will."""
        up = [
            node.id
            for node in self._follower.view.nodes.values()
            if node.status is NodeStatus.UP and node.id != self._own
        ]
        gate = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

        async def ask(node: NodeId) -> Seq:
            async with gate:
                return await self._blocks.last_cleared(node)

        found = await asyncio.gather(*map(ask, up))
        return Seq(min((seq - 1 for seq in found if seq), default=last))

    def _take(self, stored: Stored) -> None:
        try:
            event = decode_blocks(stored.payload, stored.seq).event
        except Corrupt as error:
            _logger.error("%s", error)
        else:
            if isinstance(event, BlockEvent):
                self._places.apply(event)
        self.at = stored.seq

    async def _sweep(self) -> None:
        while self._places.needs_sweep:
            self._places.sweep()
            await asyncio.sleep(0)
