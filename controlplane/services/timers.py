"""Timers: the silence of a mover or of a lease's holder becomes an event.

A service that has just started gives everybody their full time, and so does one that could not
hear (it was suspended, or NATS was away). Any number may run: the second finds that it is so.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

from nats.aio.client import Client

from tensorcast.controlplane.core.liveness import (
    Life,
    Watch,
    forgive,
    silent_leases,
    silent_nodes,
    update,
)
from tensorcast.controlplane.services.heartbeats import Heartbeats
from tensorcast.log.execute import Appender, execute
from tensorcast.log.follower import Follower
from tensorcast.log.identity import now
from tensorcast.schema.commands import Command, ExpireLease
from tensorcast.schema.errors import TensorCastError

ACTOR = "timers"
TICK_S_MAX = 0.5
TICKS_A_TIMEOUT = 8
LATE_TICKS = 2
"""A tick that comes later than so many ticks was a pause of this process: it is forgiven."""
_logger = logging.getLogger(__name__)


async def run_timers(
    nats: Client, writer: Appender, follower: Follower, heard: Heartbeats, *, node_timeout_s: float
) -> None:
    """Watches for ever. `heard` and `follower` are run by the caller."""
    timers = Timers(writer, follower, heard, node_timeout_s=node_timeout_s)
    tick_s = min(TICK_S_MAX, node_timeout_s / TICKS_A_TIMEOUT)
    while True:
        await asyncio.sleep(tick_s)
        await timers.tick(tick_s, can_hear=nats.is_connected)


class Timers:
    """The watch over nodes and leases. `tick` is one look at it."""

    def __init__(
        self, writer: Appender, follower: Follower, heard: Heartbeats, *, node_timeout_s: float
    ) -> None:
        self._writer = writer
        self._follower = follower
        self._heard = heard
        self._node_timeout_s = node_timeout_s
        self._watch = Watch()
        self._looked_s = heard.clock()

    async def tick(self, tick_s: float, *, can_hear: bool) -> None:
        """Notes who was heard, and puts on record who was silent for too long. A pause since the
        last tick, or deafness, is forgiven."""
        now_s = self._heard.clock()
        pause_s = now_s - self._looked_s
        self._looked_s = now_s
        if not can_hear or pause_s > LATE_TICKS * tick_s:
            self._watch = forgive(self._watch, pause_s)
        view = self._follower.view
        self._heard.forget_leases(
            frozenset(lease for held in view.leases_by_artifact.values() for lease in held)
        )
        lives = {
            name: Life(heard.heartbeat.epoch, heard.at_s)
            for name, heard in self._heard.nodes.items()
        }
        self._watch = update(self._watch, view, lives, self._heard.leases, now_s)
        if can_hear:
            for command in self._due(now_s):
                await self._record(command)

    def _due(self, now_s: float) -> list[Command]:
        expired = [
            ExpireLease(lease=lease, last_seen=now() - timedelta(seconds=silent_s))
            for lease, silent_s in silent_leases(self._watch, self._follower.view, now_s)
        ]
        return [*silent_nodes(self._watch, now_s, self._node_timeout_s), *expired]

    async def _record(self, command: Command) -> None:
        try:
            await execute(self._writer, self._follower, [command], actor=ACTOR)
        except TensorCastError as error:  # the next tick tries again
            _logger.warning("%s is not recorded yet: %s", type(command).__name__, error)
