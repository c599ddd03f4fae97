"""Timers: the silence of a mover, an engine or a lease's holder becomes an event.

Silence counts only while this process provably hears: at each look its own word must have come
back through the server in time. A service that has just started, or that could not hear (it was
suspended, or NATS was away, frozen or slow), gives everybody their full time anew. Any number may
run: the second finds that it is so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

from nats.aio.client import Client

from tensorcast.controlplane.core.liveness import (
    EngineLife,
    Life,
    Watch,
    forgive,
    silent_engines,
    silent_leases,
    silent_nodes,
    update,
)
from tensorcast.controlplane.services.echo import Echo
from tensorcast.controlplane.services.heartbeats import Heartbeats
from tensorcast.log.execute import Appender, execute
from tensorcast.log.follower import Follower
from tensorcast.log.identity import now
from tensorcast.schema.commands import Command, ExpireLease, LoseEngine
from tensorcast.schema.errors import TensorCastError

ACTOR = "timers"
TICK_S_MAX = 0.5
TICKS_A_TIMEOUT = 8
LATE_TICKS = 2
"""A tick that comes later than so many ticks, or a word that comes back later, is forgiven."""
_logger = logging.getLogger(__name__)


async def run_timers(
    nats: Client, writer: Appender, follower: Follower, heard: Heartbeats, *, node_timeout_s: float
) -> None:
    """Watches for ever. `heard` and `follower` are run by the caller."""
    tick_s = min(TICK_S_MAX, node_timeout_s / TICKS_A_TIMEOUT)
    async with Echo(nats) as echo:
        timers = Timers(writer, follower, heard, echo.returns, node_timeout_s=node_timeout_s)
        while True:
            await asyncio.sleep(tick_s)
            await timers.tick(tick_s)


class Timers:
    """The watch over nodes, engines and leases. `tick` is one look at it. `hears` says whether this
    process hears within so many seconds."""

    def __init__(
        self,
        writer: Appender,
        follower: Follower,
        heard: Heartbeats,
        hears: Callable[[float], Awaitable[bool]],
        *,
        node_timeout_s: float,
    ) -> None:
        self._writer = writer
        self._follower = follower
        self._heard = heard
        self._hears = hears
        self._node_timeout_s = node_timeout_s
        self._watch = Watch()
        self._looked_s = heard.clock()

    async def tick(self, tick_s: float) -> None:
        """Notes who was heard, and puts on record who was silent for too long. A pause since the
        last tick, or deafness, is forgiven."""
        late_s = LATE_TICKS * tick_s
        hears = await self._hears(late_s)
        now_s = self._heard.clock()
        pause_s, self._looked_s = now_s - self._looked_s, now_s
        self._look(now_s)
        if not hears or pause_s > late_s:
            self._watch = forgive(self._watch, now_s)
        for command in self._due(now_s):
            if self._heard.clock() - now_s > tick_s:
                return  # the one before took long: look again before the next verdict
            await self._record(command)

    def _look(self, now_s: float) -> None:
        view = self._follower.view
        self._heard.forget_leases(
            frozenset(lease for held in view.leases_by_artifact.values() for lease in held)
        )
        self._heard.forget_engines(view.engines_up)
        lives = {
            name: Life(heard.heartbeat.epoch, heard.at_s)
            for name, heard in self._heard.nodes.items()
        }
        engines = {
            name: EngineLife(heard.pulse.life, heard.at_s)
            for name, heard in self._heard.engines.items()
        }
        self._watch = update(self._watch, view, lives, self._heard.leases, now_s, engines)

    def _due(self, now_s: float) -> list[Command]:
        expired = [
            ExpireLease(lease=lease, last_seen=now() - timedelta(seconds=silent_s))
            for lease, silent_s in silent_leases(self._watch, self._follower.view, now_s)
        ]
        lost = [
            LoseEngine(engine=engine, life=life, last_seen=now() - timedelta(seconds=silent_s))
            for engine, life, silent_s in silent_engines(self._watch, self._follower.view, now_s)
        ]
        return [*silent_nodes(self._watch, now_s, self._node_timeout_s), *expired, *lost]

    async def _record(self, command: Command) -> None:
        try:
            await execute(self._writer, self._follower, [command], actor=ACTOR)
        except TensorCastError as error:  # the next tick tries again
            _logger.warning("%s is not recorded yet: %s", type(command).__name__, error)
