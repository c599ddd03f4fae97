"""What a mover does now and then: it lets go of what nobody wants, and notes where it stands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tensorcast.log.follower import Follower
from tensorcast.log.jetstream import JetStreamLog
from tensorcast.movers.agent import Agent
from tensorcast.movers.fabric import Fabric
from tensorcast.movers.fills import Fills
from tensorcast.movers.images import Images
from tensorcast.movers.journal import Journal
from tensorcast.movers.levels import Levels
from tensorcast.movers.memory.pool import Pool
from tensorcast.movers.recollection import Recollection
from tensorcast.movers.threads import in_thread

TIDY_S: Final = 5.0
FREE_S_MAX: Final = 60.0


class Upkeep:
    """See the module. `tell` is called when the status of the mover may have changed; `fabric_grew`
    is set when there is a transport that the log does not know of."""

    def __init__(
        self,
        log: JetStreamLog,
        follower: Follower,
        journal: Journal,
        recollection: Recollection,
        agent: Agent,
        fills: Fills,
        images: Images,
        levels: Levels,
        pool: Pool,
        fabric: Fabric,
        tell: Callable[[], None],
    ) -> None:
        self._log = log
        self._follower = follower
        self._journal = journal
        self._recollection = recollection
        self._agent = agent
        self._fills = fills
        self._images = images
        self._levels = levels
        self._pool = pool
        self._fabric = fabric
        self.fabric_grew = asyncio.Event()
        self._tell = tell

    async def run(self) -> None:
        """Every `TIDY_S`, for ever."""
        while True:
            await asyncio.sleep(TIDY_S)
            if self._log.is_open:  # what an older view has no use for may be wanted by now
                await self._agent.tidy()
                await self._recall()
            self._levels.forget()
            await in_thread(self._pool.trim, FREE_S_MAX)
            if await in_thread(self._fabric.look):
                self.fabric_grew.set()
            await self._journal.look()
            await self.note()

    async def note(self) -> None:
        """Remembers the log, and how far it was seen."""
        await self._journal.note_position(self._follower.view.at)
        if self._log.created:
            await self._recollection.keep(self._log.created)

    async def _recall(self) -> None:
        """Images that wait for memory come back as it allows."""
        if self._images.waiting():
            await self._fills.recall()
            self._tell()
