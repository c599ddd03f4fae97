"""The log of a simulated cluster, its schedulers, and what must hold after every event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final

import msgspec

from tensorcast.controlplane.core.catalog import CATALOG, Catalog
from tensorcast.controlplane.core.decisions import Decision, decide_reactions, is_right
from tensorcast.controlplane.core.guard import Guard
from tensorcast.controlplane.core.view import next_try
from tensorcast.controlplane.simulator.agenda import Agenda
from tensorcast.controlplane.simulator.invariants import check_event
from tensorcast.controlplane.simulator.network import Network
from tensorcast.schema.cluster import ClusterView, decide, project
from tensorcast.schema.commands import Command, RetryOperation
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.events import TYPE_NAMES, Event, OperationFailed
from tensorcast.schema.ids import EventId, OperationId, Seq

BEGIN: Final = datetime(2030, 1, 1, tzinfo=UTC)
DECIDE_S: Final = 0.005
"""So long after an event its answer is in the log."""
Watcher = Callable[[Recorded], None]


class Costs(msgspec.Struct):
    """Seconds that were spent on folding and on deciding, by the timer that was given."""

    events: int = 0
    fold_s: float = 0.0
    decide_s: float = 0.0
    worst_s: float = 0.0


class PolicyFault(msgspec.Struct, frozen=True, kw_only=True):
    """What was wrong with the answer of a policy, the first of so many `times`: to which event, at
    its place in the simulated log and its time."""

    policy: str
    detail: str
    seq: int
    type: str
    at: datetime
    times: int = 0


class World:
    """A log, the view after it, and a scheduler that answers each event `DECIDE_S` later, in the
    view right after it, as production does. `timer` measures what that costs (the simulation itself
    reads no clock); `keeps` whether the log is kept whole."""

    def __init__(
        self,
        seed: int = 0,
        *,
        catalog: Catalog = CATALOG,
        view: ClusterView | None = None,
        begin: datetime = BEGIN,
        timer: Callable[[], float] = lambda: 0.0,
        keeps: bool = True,
        loss: float = 0.0,
    ) -> None:
        self.random = Random(seed)
        self.agenda = Agenda()
        self.network = Network(self.agenda, self.random, loss=loss)
        self.view = ClusterView() if view is None else view
        self.log: list[Recorded] = []
        self.watchers: list[Watcher] = []
        self.costs = Costs()
        self.faults: dict[str, PolicyFault] = {}
        self.catalog = catalog
        self.skipped = self.view.skipped
        self._begin = begin
        self._timer = timer
        self._keeps = keeps
        self._guard = Guard()

    @property
    def now(self) -> datetime:
        """The time of the simulated cluster."""
        return self._begin + timedelta(seconds=self.agenda.now_s)

    def try_to(
        self, *commands: Command, actor: str, cause: EventId | None = None
    ) -> tuple[Recorded, ...]:
        """As `do`; nothing when one is refused."""
        try:
            return self.do(*commands, actor=actor, cause=cause)
        except TensorCastError:
            return ()

    def do(
        self, *commands: Command, actor: str, cause: EventId | None = None
    ) -> tuple[Recorded, ...]:
        """Decides commands and appends their events as one. Raises what `decide` raises; then
        nothing is appended."""
        view, events = self.view, []
        for command in commands:
            for event in decide(view, command)[0]:
                view = project(view, self.record(view, event, actor, cause))
                events.append(event)
        return tuple(self.append(event, actor=actor, cause=cause) for event in events)

    def append(
        self,
        event: Event,
        *,
        actor: str,
        cause: EventId | None = None,
        id: EventId | None = None,
    ) -> Recorded:
        """Appends an event as it is; the invariants are checked. Raises AssertionError."""
        before = self.view
        recorded = self.record(before, event, actor, cause, id)
        started_s = self._timer()
        self.view = project(before, recorded)
        self.costs.fold_s += self._timer() - started_s
        self.costs.events += 1
        check_event(before, self.view, recorded)
        self._guard.note(recorded)
        if self._keeps:
            self.log.append(recorded)
        view = self.view
        self.agenda.after(DECIDE_S, lambda: self._react(view, recorded))
        if isinstance(event, OperationFailed):
            self._retry_later(event.operation, recorded.id)
        for watcher in self.watchers:
            watcher(recorded)
        return recorded

    def record(
        self,
        view: ClusterView,
        event: Event,
        actor: str,
        cause: EventId | None = None,
        id: EventId | None = None,
    ) -> Recorded:
        """An event with its envelope, as it would follow a view now."""
        seq = Seq(view.at + 1)
        return Recorded(
            seq=seq,
            id=id or EventId(f"00000000-0000-8000-8000-{seq:012x}"),
            type=TYPE_NAMES[type(event)],
            v=1,
            at=self.now,
            actor=actor,
            event=event,
            cause=cause,
        )

    def _react(self, view: ClusterView, recorded: Recorded) -> None:
        started_s = self._timer()
        decisions = decide_reactions(
            view,
            recorded,
            self.catalog.running(view),
            catalog=self.catalog,
            guard=self._guard,
        )
        spent_s = self._timer() - started_s
        self.costs.decide_s += spent_s
        self.costs.worst_s = max(self.costs.worst_s, spent_s)
        for decision in decisions:
            if decision.fault:
                self._note_fault(decision, recorded)
            self._carry_out(decision, decision.commands, recorded.id)

    def _note_fault(self, decision: Decision, recorded: Recorded) -> None:
        known = self.faults.get(decision.policy)
        if known is None:
            known = PolicyFault(
                policy=decision.policy,
                detail=decision.fault,
                seq=recorded.seq,
                type=recorded.type,
                at=recorded.at,
            )
        self.faults[decision.policy] = msgspec.structs.replace(known, times=known.times + 1)

    def _carry_out(self, decision: Decision, commands: Sequence[Command], cause: EventId) -> None:
        """As the scheduler does: what is right is done as one, or else one by one."""
        if not self.catalog.is_running(self.view, decision.policy):
            return
        right = [command for command in commands if is_right(self.view, command)]
        done = self.try_to(*right, actor=decision.actor, cause=cause) if right else ()
        if not done and len(right) > 1:
            for command in right:
                self._carry_out(decision, [command], cause)

    def _retry_later(self, name: OperationId, cause: EventId) -> None:
        operation = self.view.operations[name]
        again = next_try(operation)
        if again is None:
            return
        command = RetryOperation(operation=name, attempt=operation.attempt + 1)

        def retry() -> None:
            if is_right(self.view, command):
                self.try_to(command, actor="policy:retry", cause=cause)

        self.agenda.after(again.delay_s, retry)
