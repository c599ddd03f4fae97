"""The runner of plans: looks at each open plan when something that may concern it happens, or when
its time has come, and appends what follows.

Any number may run. What a plan is waiting for is in the log, and so is all that was done: a runner
that starts looks at every open plan once, and knows as much as the one that was killed. Decisions
are appended on the expectation that nobody has moved the plan meanwhile; who is second is refused,
looks again and finds it done. Their events bear the time of the look, not that of the append: so
the log tells exactly what was known when they were decided, and they can be decided anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final, Protocol

from tensorcast.controlplane.core.broadcast import LABELS
from tensorcast.controlplane.core.plans.runner import Decision, abandon, next_due, react, step_at
from tensorcast.controlplane.core.plans.waits import Listening, is_wanted, listening
from tensorcast.controlplane.core.plans.wakes import wakes
from tensorcast.controlplane.core.rights import check_command
from tensorcast.log.execute import Appender, execute
from tensorcast.log.follower import Follower, Subscription
from tensorcast.log.identity import now
from tensorcast.log.port import NoRoom, Stored
from tensorcast.schema.access import user_of
from tensorcast.schema.aggregates.plan import Plan
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.codec import decode
from tensorcast.schema.errors import Conflict, TensorCastError, Timeout, Unavailable
from tensorcast.schema.events import SignalEmitted
from tensorcast.schema.faults import from_error
from tensorcast.schema.ids import EventId, PlanId, Seq
from tensorcast.schema.plan_events import PlanEvent, StepPath
from tensorcast.schema.signals import Pattern, Signal, matches

PAUSE_S: Final = 0.5
"""After a refusal that only time can help."""
LOOKS_MAX: Final = 100
"""Looks at one plan before others get their turn."""
LOOK_MAX: Final = timedelta(seconds=0.2)
"""What was decided longer ago is decided anew: times count from it."""
IDLE_S: Final = 3600.0
_logger = logging.getLogger(__name__)


class Finder(Protocol):
    """What the runner reads of a log beside its fold."""

    async def read_one(self, seq: Seq) -> Stored | None: ...

    async def find_signal(self, pattern: Pattern, after: Seq) -> Stored | None:
        """The first signal after a position on a topic of the pattern. Raises Unavailable."""
        ...


async def run_plans(
    log: Finder,
    writer: Appender,
    follower: Follower,
    *,
    labels: Sequence[str] = LABELS,
) -> None:
    """Runs plans for ever. `follower` is run by the caller, and has seen the log so far."""
    runner = Runner(log, writer, follower, labels)
    while True:
        with follower.subscribe() as events:
            runner.wake(follower.view.open_plans)
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(_watch(runner, events))
                looking = tasks.create_task(runner.run())
                await watching
                looking.cancel()


async def _watch(runner: Runner, events: Subscription) -> None:
    """Ends when the subscription has fallen behind."""
    try:
        async for view, recorded in events:
            runner.wake(wakes(view, recorded))
    except Unavailable as error:
        _logger.warning("the runner of plans begins anew: %s", error)


class Runner:
    """The plans to look at, and the signals that were found for them."""

    def __init__(
        self, log: Finder, writer: Appender, follower: Follower, labels: Sequence[str] = LABELS
    ) -> None:
        self._log = log
        self._writer = writer
        self._follower = follower
        self._labels = labels
        self._awake: set[PlanId] = set()
        self._due: dict[PlanId, datetime] = {}
        self._ears: dict[tuple[PlanId, StepPath, int], _Ear] = {}
        self._stirred = asyncio.Event()

    def wake(self, plans: Collection[PlanId]) -> None:
        """Has these plans looked at soon."""
        if plans:
            self._awake.update(plans)
            self._stirred.set()

    async def run(self) -> None:
        """Looks at what is awake or due, for ever."""
        while True:
            self._stirred.clear()
            moment = now()
            due = {plan for plan, at in self._due.items() if at <= moment}
            plans, self._awake = sorted(self._awake | due), set()
            async with asyncio.TaskGroup() as tasks:
                for plan in plans:
                    tasks.create_task(self.look(plan))
            await self._rest()

    async def _rest(self) -> None:
        nearest = min(self._due.values(), default=None)
        wait_s = IDLE_S if nearest is None else max(0.0, (nearest - now()).total_seconds())
        try:
            async with asyncio.timeout(min(wait_s, IDLE_S)):
                await self._stirred.wait()
        except TimeoutError:
            return

    async def look(self, name: PlanId) -> None:
        """Looks at a plan until nothing follows any more, or something stands in the way; then it
        is awake again after a while."""
        self._due.pop(name, None)
        for _ in range(LOOKS_MAX):
            view, moment = self._follower.view, now()
            plan = view.plans.get(name)
            if plan is None or name not in view.open_plans:
                self._forget(name)
                return
            step = StepPath("")
            try:
                heard = {one.path: await self._hear(view, name, one) for one in listening(plan)}
                decisions = react(view, plan, moment, heard, self._labels)
                version = plan.version
                for decision in decisions:
                    if now() - moment > LOOK_MAX and decision is not decisions[0]:
                        break
                    step = step_at(decision.commands)
                    for place, command in enumerate(decision.commands):
                        step = step_at(decision.commands, place)
                        check_command(self._follower.view, user_of(plan.actor), command)
                    version = await self._carry_out(name, decision, moment, version)
            except (Conflict, Unavailable, Timeout, NoRoom) as error:
                _logger.info("plan %s is looked at again: %s", name, error)
                asyncio.get_running_loop().call_later(PAUSE_S, self.wake, (name,))
                return
            except TensorCastError as error:
                _logger.warning("plan %s cannot go on: %s", name, error)
                await self._abandon(plan, error, step)
                return
            if not decisions:
                due = next_due(plan, moment)
                if due is not None:
                    self._due[name] = due
                return
        self.wake((name,))

    async def _carry_out(
        self, plan: PlanId, decision: Decision, moment: datetime, version: Seq
    ) -> Seq:
        """Appends a decision, and returns the last event of the plan then. Raises Conflict when
        somebody has moved the plan after its event `version`."""

        def check(view: ClusterView) -> None:
            if view.plans[plan].version != version:
                raise Conflict(f"Somebody else has moved plan {plan}.")

        done = await execute(
            self._writer,
            self._follower,
            decision.commands,
            actor=plan,
            cause=await self._event_at(decision.because),
            at=moment,
            check=check,
        )
        behind = len(done.events) - 1
        own = [n for n, draft in enumerate(done.events) if isinstance(draft.event, PlanEvent)]
        return Seq(done.seq - behind + own[-1]) if own else version

    async def _abandon(self, plan: Plan, error: TensorCastError, step: StepPath) -> None:
        """Ends a plan whose next event, for this step, can never be written."""
        view, moment = self._follower.view, now()
        version = view.plans[plan.id].version
        try:
            for decision in abandon(view, view.plans[plan.id], from_error(error), step):
                version = await self._carry_out(plan.id, decision, moment, version)
        except TensorCastError as further:
            _logger.warning("plan %s cannot end yet: %s", plan.id, further)
            asyncio.get_running_loop().call_later(PAUSE_S, self.wake, (plan.id,))

    async def _event_at(self, seq: Seq) -> EventId | None:
        stored = await self._log.read_one(seq)
        return None if stored is None else decode(stored.payload, stored.seq).id

    # ---- signals -------------------------------------------------------------------------------

    async def _hear(self, view: ClusterView, plan: PlanId, one: Listening) -> list[Signal]:
        """The signals that a step waits for, as far as there are any."""
        key = (plan, one.path, one.state.attempt)
        ear = self._ears.setdefault(key, _Ear(one.after))
        while len(ear.heard) < one.enough and _has_news(view, one.pattern, ear.position):
            stored = await self._log.find_signal(one.pattern, ear.position)
            if stored is None:
                break
            ear.position = stored.seq
            signal = _read(stored)
            if signal is not None and is_wanted(one, signal):
                ear.heard.append(signal)
        return ear.heard

    def _forget(self, plan: PlanId) -> None:
        for key in [key for key in self._ears if key[0] == plan]:
            del self._ears[key]


class _Ear:
    """How far the log was searched for a step, and what was found."""

    def __init__(self, position: Seq) -> None:
        self.position = position
        self.heard: list[Signal] = []


def _has_news(view: ClusterView, pattern: Pattern, after: Seq) -> bool:
    return any(
        topic.version > after and matches(pattern, topic.id) for topic in view.signals.values()
    )


def _read(stored: Stored) -> Signal | None:
    recorded = decode(stored.payload, stored.seq)
    event = recorded.event
    if not isinstance(event, SignalEmitted):
        return None
    return Signal(
        seq=recorded.seq,
        topic=event.topic,
        at=recorded.at,
        actor=recorded.actor,
        data=event.data,
        id=recorded.id,
    )
