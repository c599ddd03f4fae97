"""The scheduler: every event, seen in the view right after it, is put to the policies, and what
they decide is carried out. Any number may run: the same decision has the same id, so the first
append wins and the others find that it is so already.

Reactions are carried out one event after the other, so that each decision is checked against a
view that includes all decisions before it, also those of other schedulers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from tensorcast.controlplane.core.catalog import CATALOG, Catalog
from tensorcast.controlplane.core.decisions import Decision, decide_reactions, is_right
from tensorcast.controlplane.core.guard import Guard
from tensorcast.controlplane.services.refusals import Refusals
from tensorcast.controlplane.services.retries import Retries
from tensorcast.log.execute import Appender, execute
from tensorcast.log.folding import Folding
from tensorcast.log.follower import Follower
from tensorcast.log.port import APPEND_EVENTS_MAX, Cursors, Log, Stored
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import Command
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import (
    Conflict,
    InvalidArgument,
    NotFound,
    Rejected,
    TensorCastError,
    Timeout,
    Unavailable,
)
from tensorcast.schema.ids import Seq

READER = "scheduler"
CURSOR_PERIOD_S = 1.0
PAUSE_S = 0.5
FOLLOW_S_MAX = 60.0
COMMANDS_MAX = APPEND_EVENTS_MAX
NOTHING = ClusterView()
_logger = logging.getLogger(__name__)


async def run_scheduler(
    log: Log,
    writer: Appender,
    cursors: Cursors,
    *,
    follower: Follower,
    catalog: Catalog = CATALOG,
    folding: Folding | None = None,
    beginning: ClusterView = NOTHING,
    refusals: Refusals | None = None,
) -> None:
    """Reacts to every event after the stored cursor, for ever. `follower` follows the same log
    (its `run` is the caller's); commands are decided on its view. What cannot be taken is parked,
    and nothing follows from it. The log is folded from `beginning` on, a view from before the
    cursor."""
    reacted = await cursors.load(READER)
    scheduler = Scheduler(
        writer,
        follower,
        reacted=reacted,
        catalog=catalog,
        folding=folding,
        view=beginning,
        refusals=refusals,
    )
    await scheduler.retries.recall(beginning, log)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_store_cursor(scheduler, cursors))
        tasks.create_task(scheduler.retries.run())
        async for batch in log.read(after=beginning.at):
            for stored in batch:
                await scheduler.take(stored)
            await asyncio.sleep(0)  # a long history must not starve the other services


class Scheduler:
    """One reader's position: `view` is the fold so far; `reacted` the last event whose reactions
    are all done."""

    def __init__(
        self,
        writer: Appender,
        follower: Follower,
        *,
        reacted: Seq,
        catalog: Catalog = CATALOG,
        folding: Folding | None = None,
        view: ClusterView = NOTHING,
        refusals: Refusals | None = None,
    ) -> None:
        self._folding = folding or Folding()
        self.view = view
        self.reacted = reacted
        self.retries = Retries(writer, follower)
        self._writer = writer
        self._follower = follower
        self._catalog = catalog
        self._guard = Guard()
        self._refusals = refusals or Refusals()

    async def take(self, stored: Stored) -> None:
        """Folds one event and, when it is new and not parked, does what follows from it."""
        before = self.view.skipped
        self.view, recorded = self._folding.take(self.view, stored)
        if recorded is not None and self.view.skipped == before:
            self.retries.note(self.view, recorded)
            self._guard.note(recorded)
            if recorded.seq > self.reacted:
                for decision in self._decide(recorded):
                    await self._carry_out(decision, recorded)
        self.reacted = max(self.reacted, stored.seq)

    def _decide(self, recorded: Recorded) -> Sequence[Decision]:
        """What follows from an event. A policy that stumbles over it stops no other."""
        catalog, newest = self._catalog, self._follower.view
        policies = tuple(
            policy
            for policy in catalog.running(self.view)
            # One that was stopped meanwhile is not asked again: it may never have come back.
            if newest.at < self.view.at or catalog.is_running(newest, policy.name)
        )
        decisions = decide_reactions(
            self.view, recorded, policies, catalog=catalog, guard=self._guard
        )
        for decision in decisions:
            if decision.fault:
                name, seq = decision.policy, recorded.seq
                _logger.error("policy %s cannot take event %d: %s", name, seq, decision.fault)
        return decisions

    async def _carry_out(self, decision: Decision, recorded: Recorded) -> None:
        """Until it is done or needless: the log may be away for a while."""
        await self._follower.wait_for(recorded.seq, FOLLOW_S_MAX)
        for start in range(0, len(decision.commands), COMMANDS_MAX):
            part = decision.commands[start : start + COMMANDS_MAX]
            await self._do_what_is_right(decision, part, recorded)

    async def _do_what_is_right(
        self, decision: Decision, commands: Sequence[Command], recorded: Recorded
    ) -> None:
        """At once if possible. When the newest view refuses that, one by one, so that a command
        that somebody overtook never takes others with it. What a policy decided that was turned
        off meanwhile is not done any more."""
        policy = decision.policy
        while right := self._right(decision, commands):
            try:
                await self._execute(decision, right, recorded)
                return
            except (Rejected, NotFound, InvalidArgument) as error:
                _logger.info("%s looks again at event %d: %s", policy, recorded.seq, error)
                if len(right) == 1:
                    self._refusals.note(policy, recorded.seq, str(error))
                    return
                for command in right:
                    await self._do_what_is_right(decision, [command], recorded)
                return
            except (Unavailable, Timeout, Conflict) as error:
                _logger.warning("%s waits to answer event %d: %s", policy, recorded.seq, error)
            await asyncio.sleep(PAUSE_S)

    def _right(self, decision: Decision, commands: Sequence[Command]) -> list[Command]:
        view = self._follower.view
        if not self._catalog.is_running(view, decision.policy):
            return []
        return [command for command in commands if is_right(view, command)]

    async def _execute(
        self, decision: Decision, commands: Sequence[Command], recorded: Recorded
    ) -> None:
        await execute(
            self._writer,
            self._follower,
            commands,
            actor=decision.actor,
            cause=recorded.id,
            derived=True,
        )


async def _store_cursor(scheduler: Scheduler, cursors: Cursors) -> None:
    """About once a second: a scheduler that is started anew repeats at most that much, and finds
    it done."""
    stored = scheduler.reacted
    while True:
        await asyncio.sleep(CURSOR_PERIOD_S)
        if scheduler.reacted == stored:
            continue
        try:
            await cursors.store(READER, scheduler.reacted)
            stored = scheduler.reacted
        except TensorCastError as error:
            _logger.warning("the scheduler's cursor cannot be stored: %s", error)
