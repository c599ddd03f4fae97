"""How a life of a mover begins: from the log, or without it.

With the log: it is read to its end, from what is remembered of it (`recollection.py`) on, what the
last life owed it is paid, and the node joins. While NATS is away, by what is remembered alone: the
node serves its readers and its peers what it has, and what it would tell waits in the journal, its
joining first. When the log is back, it hears all that, and what could not be decided without it is
decided then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from tensorcast.log.follower import Follower
from tensorcast.log.jetstream import JetStreamLog
from tensorcast.log.restore import find_restored
from tensorcast.log.writer import Writer
from tensorcast.movers.agent import Agent
from tensorcast.movers.disk_pulls import DiskPulls
from tensorcast.movers.journal import Journal
from tensorcast.movers.membership import Membership
from tensorcast.movers.recovery import Recovery
from tensorcast.movers.reports import Life
from tensorcast.movers.transports.tcp.server import TcpServer
from tensorcast.schema.aggregates.node import NodeStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.ids import Seq

CATCH_UP_S_MAX: Final = 60.0

_logger = logging.getLogger(__name__)


async def check_log(log: JetStreamLog, journal: Journal) -> None:
    """Raises Corrupt when this is not the log that the node belongs to, Unavailable."""
    found = await find_restored(log.connection, log.cluster)
    restored = found[0] if found and found[1].created == log.created else None
    await journal.check_log(log.cluster, log.created, await log.last_seq(), restored)


def listen(address: str, last: str, open_server: Callable[[str], TcpServer]) -> TcpServer:
    """The server of the data port at `address`; where it may have any port, at `last`, if it can:
    without the log nobody can be told another one. Raises Unavailable."""
    if last and address.endswith(":0"):
        try:
            return open_server(last)
        except Unavailable as error:
            _logger.warning("peers will not find this node before NATS is back: %s", error)
    return open_server(address)


class Beginning:
    """Used once, at the start."""

    def __init__(
        self,
        log: JetStreamLog,
        writer: Writer,
        journal: Journal,
        follower: Follower,
        life: Life,
        agent: Agent,
        membership: Membership,
        recovery: Recovery,
        disk_pulls: DiskPulls,
        tell: Callable[[str], None],
    ) -> None:
        self._tell = tell
        self._log = log
        self._writer = writer
        self._life = life
        self._is_announcing = False
        self._journal = journal
        self._follower = follower
        self._agent = agent
        self._membership = membership
        self._recovery = recovery
        self._disk_pulls = disk_pulls
        self._aside: dict[str, int] = {}

    async def remember(self, kept: Mapping[str, int]) -> None:
        """Catches up with the log, pays what the last life owed it, and joins. `kept` are the
        descriptors of that life."""
        await self._agent.recall(self._log)
        await self._catch_up()
        if self._journal.pending:
            await self._journal.settled()
        await self._recovery.find_stored()
        await self._disk_pulls.find_partial()
        await self._recovery.adopt(kept)
        await self._membership.join()
        await self._recovery.reconcile()

    async def remember_alone(self, kept: Mapping[str, int]) -> None:
        """As `remember`, as far as it goes without the log: nothing is given up."""
        await self._recovery.find_stored(is_certain=False)
        self._aside = await self._recovery.adopt_known(kept)
        self._is_announcing = True
        await self._membership.announce()
        self._recovery.expect()

    async def come_back(self, created: str, drain: Callable[[], None]) -> None:
        """Waits for the log, tells it what happened meanwhile (`drain` begins with it), and does
        the rest. Raises Corrupt when it is another log, Unavailable when this life cannot go on:
        `created` is what the log was by what is remembered."""
        await self._log.find()
        await self._check_surely()
        if self._log.created != created:
            raise Unavailable(
                "The log was made anew since this node remembered it.",
                hint="This mover ends; the next one reads it from its beginning.",
            )
        self._log.open()
        _logger.info("the log is back")
        await self._catch_up()
        drain()
        await self._journal.settled()
        self._membership.check_announced()
        self._is_announcing = False
        await self._recovery.find_stored()
        await self._disk_pulls.find_partial()
        await self._recovery.adopt(self._aside)
        await self._recovery.reconcile()

    async def drain(self) -> None:
        """Tells the log what is in the journal, for ever. Nothing is told while the cluster has
        given this life up: the next one does it, and its joining, if that is in the journal."""

        def may_send(view: ClusterView) -> bool:
            own = view.nodes.get(self._life.node)
            is_lost = own is not None and own.status is NodeStatus.LOST
            return not is_lost or not self._life.epoch or self._is_announcing

        await self._journal.run(self._writer, self._follower, may_send)

    async def _check_surely(self) -> None:
        while True:
            try:
                return await check_log(self._log, self._journal)
            except Unavailable as error:
                _logger.info("the log cannot be looked at: %s", error)
            await asyncio.sleep(0.5)

    async def _catch_up(self) -> None:
        last = await self._log.last_seq()

        def tell(seen: Seq) -> None:
            self._tell(f"reading the log: event {seen} of {last}")

        await self._follower.catch_up(last, CATCH_UP_S_MAX, tell)
        await self._agent.watched(last)
