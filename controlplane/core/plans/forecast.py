"""The dry run: a plan run on a copy of what is known, by the same runner, in no time. Pure.

Operations take as long as their bytes do at the rate that was measured: the median of what the node
(or else any node) did of the same kind (as large, or of 16 MiB), or what its network can. What a
plan waits for from others is taken to come at once, and what it would give to be unknown: steps
that need that are told as such. Nothing is written and nobody is asked.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from statistics import median
from types import UnionType
from typing import Final, NamedTuple

from tensorcast.controlplane.core.broadcast import LABELS
from tensorcast.controlplane.core.plans.placement import check_placement
from tensorcast.controlplane.core.plans.room import Room
from tensorcast.controlplane.core.plans.runner import next_due, react
from tensorcast.controlplane.core.plans.scopes import Scope
from tensorcast.controlplane.core.plans.telling import Told, tell_steps
from tensorcast.controlplane.core.plans.waits import Wait
from tensorcast.controlplane.core.view import size_bytes
from tensorcast.schema.aggregates.operation import Operation, OperationStatus
from tensorcast.schema.aggregates.plan import OPEN, Plan, PlanStatus, StepState, StepStatus
from tensorcast.schema.api_plans import ForecastInfo, ForecastStep
from tensorcast.schema.cluster import ClusterView, decide, project
from tensorcast.schema.commands import (
    Command,
    CompleteReplica,
    DropReplica,
    EvictReplica,
    FailOperation,
    StartOperation,
    SucceedOperation,
)
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.events import TYPE_NAMES
from tensorcast.schema.faults import Fault, FaultKind
from tensorcast.schema.ids import EventId, NodeId, OperationId, Seq, derive_plan_id, replica_id
from tensorcast.schema.plan_checks import describe_step
from tensorcast.schema.plan_commands import SubmitPlan, SucceedStep
from tensorcast.schema.plan_events import StepPath
from tensorcast.schema.plan_types import gives, sources_of
from tensorcast.schema.plan_values import ValueType
from tensorcast.schema.plans import CallStep, PlanSpec, SoakStep, Step, WaitTime
from tensorcast.schema.work import Evict, Materialize, Persist, Verify, kind_of, target_tier

ROUNDS_MAX: Final = 100_000
HISTORY_MAX: Final = 50
"""So many operations of a kind, the last ones, tell its rate."""
TELLING_BYTES: Final = 16 << 20
"""Copies of so many bytes tell the rate of any larger one; smaller ones that of smaller ones."""
UNKNOWN: Final = "unknown"
_NAME: Final = derive_plan_id("forecast")


def forecast(
    view: ClusterView,
    spec: PlanSpec,
    inputs: Mapping[str, object],
    now: datetime,
    labels: Sequence[str] = LABELS,
) -> ForecastInfo:
    """What a plan would do if it were submitted now. Raises InvalidArgument for one that makes no
    sense."""
    run = _Run(view, now, labels)
    run.execute(SubmitPlan(plan=_NAME, spec=spec, inputs=dict(inputs)))
    run.to_the_end()
    plan = run.plan
    told = list(tell_steps(plan))
    since = run.unknown_since(told)
    steps = tuple(run.tell(scope.path(step), step, state, since) for scope, step, state in told)
    moved = [one for one in steps if one.bytes]
    is_timed = not moved or all(one.ends_s is not None for one in moved)
    faults = check_placement(view, spec, inputs)
    state = plan.status.value if plan.status not in OPEN and since is None else UNKNOWN
    if faults and plan.status is PlanStatus.SUCCEEDED:
        state = PlanStatus.FAILED.value  # what cannot be done is not done, whatever was assumed
    return ForecastInfo(
        name=spec.name,
        state=state,
        steps=steps,
        bytes=sum(one.bytes for one in steps),
        evicts_bytes=sum(one.evicts_bytes for one in steps),
        seconds=round((run.now - now).total_seconds(), 3) if is_timed else None,
        faults=faults,
    )


class _Run:
    """A copy of the cluster that goes on by itself."""

    def __init__(self, view: ClusterView, now: datetime, labels: Sequence[str]) -> None:
        self.view = view
        self.now = now
        self._begin = now
        self._labels = labels
        self._rates = Rates(view)
        self._room = Room()
        self._ends: list[tuple[datetime, OperationId]] = []
        self._begun: set[OperationId] = set()
        self._untimed: set[OperationId] = set()
        self._assumed: set[str] = set()

    @property
    def plan(self) -> Plan:
        return self.view.plans[_NAME]

    def execute(self, *commands: Command) -> None:
        """Folds the events of commands. Raises what `decide` raises."""
        for command in commands:
            events, _ = decide(self.view, command)
            for event in events:
                seq = Seq(self.view.at + 1)
                recorded = Recorded(
                    seq=seq,
                    id=EventId(str(seq)),
                    type=TYPE_NAMES[type(event)],
                    v=1,
                    at=self.now,
                    actor="forecast",
                    event=event,
                )
                self.view = project(self.view, recorded)

    def to_the_end(self) -> None:
        """Until the plan is over, or goes on in no way that is known."""
        for _ in range(ROUNDS_MAX):
            if self.plan.status not in OPEN or not self._advance():
                return

    def _advance(self) -> bool:
        if self._let_come(SoakStep):  # engines have not done here what they were asked
            return True
        decisions = react(self.view, self.plan, self.now, {}, self._labels)
        for decision in decisions:
            self.execute(*decision.commands)
        self._note_operations()
        if decisions:
            return True
        if self._ends:
            self.now, name = heapq.heappop(self._ends)
            self._finish(self.view.operations[name])
            return True
        return self._let_come(Wait) or self._let_time_pass()

    def _note_operations(self) -> None:
        for name in sorted(set(self.view.open_operations) - self._begun):
            self._begun.add(name)
            seconds = self._rates.seconds(self.view, self.view.operations[name])
            if seconds is None:
                self._untimed.add(name)
            heapq.heappush(self._ends, (self.now + timedelta(seconds=seconds or 0.0), name))

    def _finish(self, operation: Operation) -> None:
        if operation.status not in (OperationStatus.ISSUED, OperationStatus.RUNNING):
            return
        work, node = operation.work, operation.node
        epoch = self.view.nodes[node].epoch
        tier = target_tier(work)
        done: list[Command] = [StartOperation(operation=operation.id, epoch=epoch)]
        if isinstance(work, Evict):
            gone = replica_id(work.artifact, node, work.tier)
            done.append(EvictReplica(replica=gone, epoch=epoch, reason=work.reason))
            done.append(DropReplica(replica=gone, epoch=epoch))
        elif tier is not None:
            self._room.take(self.view, operation, tier)
            if self._room.lacks(operation):
                detail = self._room.describe([operation]) + "."
                fault = Fault(kind=FaultKind.OUT_OF_CAPACITY, detail=detail, permanent=True)
                self.execute(done[0])
                self.execute(FailOperation(operation=operation.id, epoch=epoch, fault=fault))
                return
            done.append(
                CompleteReplica(
                    replica=replica_id(work.artifact, node, tier),
                    artifact=work.artifact,
                    node=node,
                    tier=tier,
                    epoch=epoch,
                    chunks_total=self.view.artifacts[work.artifact].manifest.chunks_total,
                )
            )
        moved = size_bytes(self.view, work.artifact) if tier is not None else 0
        done.append(SucceedOperation(operation=operation.id, epoch=epoch, bytes_moved=moved))
        for command in done:
            try:
                self.execute(command)
            except TensorCastError:  # what is there already stays as it is
                continue

    def _let_come(self, kinds: UnionType | type[Step]) -> bool:
        """What others must say or do is taken to be said and done, for these kinds of steps."""
        found = False
        for scope, step, state in list(tell_steps(self.plan)):
            is_open = state is not None and state.status is StepStatus.RUNNING
            if is_open and isinstance(step, kinds) and not isinstance(step, WaitTime):
                path = scope.path(step)
                assert state is not None
                self._assumed.add(path)
                outputs = _placeholders(step, state)
                done = SucceedStep(plan=_NAME, step=path, attempt=state.attempt, outputs=outputs)
                self.execute(done)
                found = True
        return found

    def _let_time_pass(self) -> bool:
        due = next_due(self.plan, self.now)
        if due is None:
            return False
        self.now = due
        return True

    def unknown_since(self, told: Iterable[Told]) -> Seq | None:
        """The first failure of a step for a value that others are yet to give: what followed from
        it says nothing."""
        failed = (
            state.version
            for scope, step, state in told
            if state is not None and state.status is StepStatus.FAILED
            if self._takes_assumed(scope, step)
        )
        return min(failed, default=None)

    def _takes_assumed(self, scope: Scope | None, step: Step) -> bool:
        """Whether a step takes outputs of one that was only taken to have come."""
        while scope is not None:
            if any(scope.path(name) in self._assumed for name in sources_of(step, scope.ids)):
                return True
            scope = scope.outer
        return False

    def tell(
        self, path: StepPath, step: Step, state: StepState | None, since: Seq | None
    ) -> ForecastStep:
        """A step as the dry run left it; what it gave up from event `since` on is not known."""
        told = describe_step(step)
        if state is None or (since is not None and _was_given_up(state) and state.version >= since):
            note = "depends on what is not known before"
            return ForecastStep(id=path, kind=told, status="pending", note=note)
        operations = [
            self.view.operations[OperationId(name)]
            for name in state.operations
            if OperationId(name) in self.view.operations
        ]
        issued = [op for op in operations if op.policy == _NAME]
        untimed = any(op.id in self._untimed for op in issued)
        ended = state.ended_at is not None and not untimed
        return ForecastStep(
            id=path,
            kind=told,
            status="assumed" if path in self._assumed else state.status.value,
            nodes=tuple(op.node for op in operations) or _named(state.inputs.get("nodes")),
            artifact=str(state.inputs.get("artifact", "")),
            sources={op.node: _sources(op) for op in issued if _sources(op)},
            bytes=sum(size_bytes(self.view, op.work.artifact) for op in issued if _moves(op)),
            evicts_bytes=self._room.evicted_for(issued),
            begins_s=self._seconds(state.started_at),
            ends_s=self._seconds(state.ended_at) if ended and state.ended_at else None,
            note=_note(
                state, untimed, is_assumed=path in self._assumed, room=self._room.describe(issued)
            ),
        )

    def _seconds(self, moment: datetime) -> float:
        return round((moment - self._begin).total_seconds(), 3)


def _was_given_up(state: StepState) -> bool:
    return state.status in (StepStatus.FAILED, StepStatus.SKIPPED, StepStatus.CANCELLED)


def _note(state: StepState, untimed: bool, *, is_assumed: bool, room: str) -> str:
    if state.fault is not None:
        return state.fault.detail
    if room:
        return room
    if is_assumed:
        return "taken to come at once"
    if untimed:
        return "no rate of so much was measured yet"
    return state.reason


def _placeholders(step: Step, state: StepState) -> dict[str, object]:
    """Outputs of the right types that say nothing but what the step waits for."""
    plain: dict[ValueType, object] = {
        ValueType.MAPPING: {},
        ValueType.LIST: [],
        ValueType.NODES: [],
        ValueType.ENGINES: [],
        ValueType.INTEGER: 0,
        ValueType.NUMBER: 0.0,
        ValueType.BOOLEAN: False,
    }
    known = {} if isinstance(step, CallStep) else state.inputs
    return {name: known.get(name, plain.get(t, UNKNOWN)) for name, t in gives(step).items()}


def _sources(operation: Operation) -> tuple[str, ...]:
    return operation.work.sources if isinstance(operation.work, Materialize) else ()


def _moves(operation: Operation) -> bool:
    is_done = operation.status is not OperationStatus.FAILED
    return is_done and not isinstance(operation.work, Evict | Verify)


def _named(value: object) -> tuple[str, ...]:
    return tuple(str(one) for one in value) if isinstance(value, list | tuple) else ()


class _Measured(NamedTuple):
    moved_bytes: int
    rate: float


class Rates:
    """Bytes a second of each kind of work, as measured: of a node, and of all. What moved little
    tells how long a copy takes to begin, so it tells nothing of one that moves much."""

    def __init__(self, view: ClusterView) -> None:
        self._of_node: dict[tuple[str, NodeId], list[_Measured]] = {}
        self._of_kind: dict[str, list[_Measured]] = {}
        done = (op for op in view.operations.values() if op.status is OperationStatus.SUCCEEDED)
        for operation in heapq.nlargest(10 * HISTORY_MAX, done, key=lambda op: op.version):
            took_s, moved = _took_s(operation), operation.bytes_moved
            if moved and took_s > 0:
                kind, one = kind_of(operation.work), _Measured(moved, moved / took_s)
                self._of_node.setdefault((kind, operation.node), []).append(one)
                self._of_kind.setdefault(kind, []).append(one)

    def seconds(self, view: ClusterView, operation: Operation) -> float | None:
        """How long the bytes of an operation take; None: nothing like it was ever measured."""
        kind = kind_of(operation.work)
        if isinstance(operation.work, Evict | Verify):
            return 0.0
        size = size_bytes(view, operation.work.artifact)
        rate = _rate(self._of_node.get((kind, operation.node), ()), size)
        rate = rate or _rate(self._of_kind.get(kind, ()), size)
        if not rate and not isinstance(operation.work, Persist):
            rate = float(view.nodes[operation.node].bandwidth)
        return size / rate if rate else None


def _rate(measured: Sequence[_Measured], size: int) -> float:
    """The median of the last that tell of so many bytes; 0.0 when there are none."""
    least = min(size, TELLING_BYTES)
    telling = [one.rate for one in measured if one.moved_bytes >= least][:HISTORY_MAX]
    return median(telling) if telling else 0.0


def _took_s(operation: Operation) -> float:
    if operation.ended_at is None:
        return 0.0
    return (operation.ended_at - operation.issued_at).total_seconds()
