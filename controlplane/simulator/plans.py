"""The plans of a simulated cluster, run by the runner of production with virtual time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from tensorcast.controlplane.core.broadcast import LABELS
from tensorcast.controlplane.core.plans.runner import Decision, abandon, next_due, react, step_at
from tensorcast.controlplane.core.plans.waits import Heard, Listening, is_wanted, listening
from tensorcast.controlplane.core.plans.wakes import wakes
from tensorcast.controlplane.core.rights import check_command
from tensorcast.controlplane.simulator.world import DECIDE_S, World
from tensorcast.schema.access import user_of
from tensorcast.schema.aggregates.plan import Plan
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import Conflict, TensorCastError
from tensorcast.schema.events import SignalEmitted
from tensorcast.schema.faults import from_error
from tensorcast.schema.ids import EventId, PlanId, Seq
from tensorcast.schema.plan_events import StepPath
from tensorcast.schema.signals import Signal, matches

LOOKS_MAX: Final = 1000
PAUSE_S: Final = 0.5


class PlanRunner:
    """Looks at each plan that an event may move, `DECIDE_S` after it, and when its time has come.
    `signals` and `ids` are those of the log before the world began."""

    def __init__(
        self,
        world: World,
        *,
        signals: Iterable[Signal] = (),
        ids: Mapping[Seq, EventId] | None = None,
        labels: Sequence[str] = LABELS,
    ) -> None:
        self._world = world
        self._labels = labels
        self._signals = list(signals)
        self._ids = dict(ids or {})
        self._awake: set[PlanId] = set()
        world.watchers.append(self._note)
        for plan in world.view.open_plans:
            self._wake(plan, DECIDE_S)

    def _note(self, recorded: Recorded) -> None:
        self._ids[recorded.seq] = recorded.id
        signal = signal_of(recorded)
        if signal is not None:
            self._signals.append(signal)
        for plan in wakes(self._world.view, recorded):
            self._wake(plan, DECIDE_S)

    def _wake(self, plan: PlanId, after_s: float) -> None:
        if plan not in self._awake:
            self._awake.add(plan)
            self._world.agenda.after(after_s, lambda: self._look(plan))

    def _look(self, name: PlanId) -> None:
        self._awake.discard(name)
        for _ in range(LOOKS_MAX):
            view, now = self._world.view, self._world.now
            plan = view.plans[name]
            if name not in view.open_plans:
                return
            decisions = react(view, plan, now, hear(plan, self._signals), self._labels)
            if not decisions:
                self._rest(plan, now)
                return
            for decision in decisions:
                if not self._carry_out(plan, decision):
                    return
        raise AssertionError(f"plan {name} never rests")

    def _rest(self, plan: Plan, now: datetime) -> None:
        due = next_due(plan, now)
        if due is not None:
            delay_s = (due - now).total_seconds()
            self._world.agenda.after(delay_s, lambda: self._wake(plan.id, 0.0))

    def _carry_out(self, plan: Plan, decision: Decision) -> bool:
        """Whether it is done. Else somebody was faster, and it is looked at again; or it can never
        be, and the plan is over."""
        step = step_at(decision.commands)
        try:
            for place, command in enumerate(decision.commands):
                step = step_at(decision.commands, place)
                check_command(self._world.view, user_of(plan.actor), command)
            self._do(plan.id, decision)
        except Conflict:
            self._wake(plan.id, PAUSE_S)
            return False
        except TensorCastError as error:
            self._abandon(plan.id, error, step)
            return False
        return True

    def _abandon(self, name: PlanId, error: TensorCastError, step: StepPath) -> None:
        view = self._world.view
        for decision in abandon(view, view.plans[name], from_error(error), step):
            self._do(name, decision)

    def _do(self, plan: PlanId, decision: Decision) -> None:
        cause = self._ids.get(decision.because)
        self._world.do(*decision.commands, actor=plan, cause=cause)


def signal_of(recorded: Recorded) -> Signal | None:
    """The signal that an event is, if it is one."""
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


def hear(plan: Plan, signals: Sequence[Signal], view: ClusterView | None = None) -> Heard:
    """What the listening steps of a plan have heard, of all signals (up to a view)."""
    last = view.at if view is not None else None
    return {one.path: _wanted(one, signals, last) for one in listening(plan)}


def _wanted(one: Listening, signals: Sequence[Signal], last: Seq | None) -> list[Signal]:
    found: list[Signal] = []
    for signal in signals:
        if len(found) >= one.enough or (last is not None and signal.seq > last):
            break
        is_for_it = signal.seq > one.after and matches(one.pattern, signal.topic)
        if is_for_it and is_wanted(one, signal):
            found.append(signal)
    return found
