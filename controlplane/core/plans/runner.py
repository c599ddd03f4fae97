"""React: the next decisions about a plan, and when to look at it again. Pure.

A look goes from the inside out and takes one layer at a time: first what has ended or broken, then,
when there is no such thing, what may begin, and when nothing is left, the end of the plan. Each
decision changes the plan, so it is looked at again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from tensorcast.controlplane.core.broadcast import LABELS
from tensorcast.controlplane.core.plans.begin import begin, halt
from tensorcast.controlplane.core.plans.outcomes import Broken, Done
from tensorcast.controlplane.core.plans.scopes import (
    Scope,
    active_below,
    bodies,
    items_of,
    open_scopes,
    root_scope,
)
from tensorcast.controlplane.core.plans.tasks import (
    Order,
    Standing,
    Task,
    inspect,
    issue_wanted,
    order_of,
    own_id,
    stop_operations,
)
from tensorcast.controlplane.core.plans.waits import (
    Heard,
    Wait,
    as_fault,
    due_time,
    look,
)
from tensorcast.schema.aggregates.plan import ACTIVE, OPEN, Plan, PlanStatus, StepState, StepStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import Command
from tensorcast.schema.errors import InvalidArgument, TensorCastError
from tensorcast.schema.faults import Fault, FaultKind
from tensorcast.schema.ids import Seq
from tensorcast.schema.plan_commands import (
    EndPlan,
    FailStep,
    SkipStep,
    StepCommand,
    StopStep,
    SucceedStep,
)
from tensorcast.schema.plan_events import StepPath
from tensorcast.schema.plan_types import COLLECTED
from tensorcast.schema.plan_values import resolve
from tensorcast.schema.plans import (
    ConditionStep,
    Holder,
    MapStep,
    OperationStep,
    ReplicateStep,
    Retry,
    SoakStep,
    Step,
    SubPlanStep,
    WaitTime,
    Work,
    retry_of,
)

_NO_STEP: Final = StepPath("")
COMMANDS_MAX: Final = 500
"""Most commands of one decision but for what belongs together."""


class Decision(msgspec.Struct, frozen=True):
    """Commands that are appended together or not at all, because of the event at a position."""

    commands: tuple[Command, ...]
    because: Seq


def react(
    view: ClusterView,
    plan: Plan,
    now: datetime,
    heard: Heard | None = None,
    labels: Sequence[str] = LABELS,
) -> tuple[Decision, ...]:
    """What is to be done about a plan now; () when it waits, or is over. `heard` are the signals
    that its listening steps want (`waits.listening`)."""
    if plan.status not in OPEN:
        return ()
    return _Look(view, plan, now, heard or {}, labels).decide()


def abandon(
    view: ClusterView, plan: Plan, fault: Fault, step: StepPath = _NO_STEP
) -> tuple[Decision, ...]:
    """Ends a plan that cannot go on: what follows for it (for `step`, which fails) can never be
    written."""
    if plan.status not in OPEN:
        return ()
    end = EndPlan(plan=plan.id, step=step, fault=fault)
    known = plan.steps.get(step)
    if not step or (known is not None and known.status not in ACTIVE):
        return _stop(view, plan, fault.detail, end)
    attempt = known.attempt if known is not None else 1
    return _stop(
        view,
        plan,
        fault.detail,
        FailStep(plan=plan.id, step=step, attempt=attempt, fault=fault),
        end,
    )


def step_at(commands: Sequence[Command], place: int = 0) -> StepPath:
    """The step that a command of a decision is for: that of the first event of a step from there
    on; "" when there is none."""
    for command in commands[place:]:
        if isinstance(command, StepCommand):
            return command.step
    return _NO_STEP


def _stop(
    view: ClusterView, plan: Plan, reason: str, *ends: FailStep | EndPlan
) -> tuple[Decision, ...]:
    """Stops everything, and the plan with it; a step that fails is not stopped beside that."""
    failing = {end.step for end in ends if isinstance(end, FailStep)}
    stopped = (
        one
        for one in halt(view, plan, "", reason)
        if not (isinstance(one, StopStep) and one.step in failing)
    )
    commands: list[Command] = [*stopped, *ends]
    return tuple(
        Decision(tuple(commands[start : start + COMMANDS_MAX]), plan.version)
        for start in range(0, len(commands), COMMANDS_MAX)
    )


class _Look:
    """One look at one plan."""

    def __init__(
        self, view: ClusterView, plan: Plan, now: datetime, heard: Heard, labels: Sequence[str]
    ) -> None:
        self.view = view
        self.plan = plan
        self.now = now
        self.heard = heard
        self.labels = labels
        self.root = root_scope(plan)

    def decide(self) -> tuple[Decision, ...]:
        if self.plan.status is PlanStatus.CANCELLING:
            return self._stop("the plan is cancelled", EndPlan(plan=self.plan.id))
        deadline_s = self.plan.spec.deadline_s
        if deadline_s is not None and self.now >= _after(self.plan.submitted_at, deadline_s):
            fault = Fault(kind=FaultKind.TIMED_OUT, detail=f"It took more than {deadline_s:g} s.")
            return self._stop(fault.detail, EndPlan(plan=self.plan.id, fault=fault))
        scopes = list(open_scopes(self.root))
        settled = [one for scope in scopes for one in self._settle(scope)]
        if settled:
            return _merge(settled)
        if self.root.has_stopped:
            return self._fail()
        if self.plan.status is PlanStatus.PAUSED:
            return ()
        started = self._starts(scopes)
        if started or not self.root.is_over or self.root.failure is not None:
            return _merge(started)
        return self._succeed()

    # ---- the end of a plan ---------------------------------------------------------------------

    def _stop(self, reason: str, end: EndPlan) -> tuple[Decision, ...]:
        return _stop(self.view, self.plan, reason, end)

    def _fail(self) -> tuple[Decision, ...]:
        assert self.root.failure is not None
        step, state = self.root.failure
        path = self.root.path(step)
        assert state.fault is not None
        end = EndPlan(plan=self.plan.id, step=path, fault=state.fault)
        return self._stop(f"step {path} failed", end)

    def _succeed(self) -> tuple[Decision, ...]:
        texts = self.plan.spec.outputs
        outputs = {name: _resolved(text, self.root) for name, text in texts.items()}
        return (Decision((EndPlan(plan=self.plan.id, outputs=outputs),), self.plan.version),)

    # ---- what has ended ------------------------------------------------------------------------

    def _settle(self, scope: Scope) -> Iterator[Decision]:
        """What is over of the steps of a body that run, or were to begin by now."""
        failure = scope.failure
        for step in scope.steps:
            state = scope.state(step)
            if state is None:
                if failure is None and self._is_late(step):
                    yield self._broken(scope, step, None, _too_late(step))
            elif state.status in ACTIVE:
                if failure is not None and step.id != failure[0].id:
                    reason = f"step {failure[0].id} failed"
                    commands = halt(self.view, self.plan, scope.path(step), reason)
                    yield Decision(tuple(commands), failure[1].version)
                elif self._is_late(step):
                    yield self._broken(scope, step, state, _too_late(step))
                elif state.status is StepStatus.RUNNING:
                    yield from self._settle_running(scope, step, state)

    def _is_late(self, step: Step) -> bool:
        limit_s = step.deadline_s
        return limit_s is not None and self.now >= _after(self.plan.submitted_at, limit_s)

    def _has_timed_out(self, step: Step, state: StepState) -> bool:
        limit_s = step.timeout_s
        return limit_s is not None and self.now >= _after(state.started_at, limit_s)

    def _settle_running(self, scope: Scope, step: Step, state: StepState) -> Iterator[Decision]:
        found = self._outcome(scope, step, state)
        if not isinstance(found, Done | Broken) and self._has_timed_out(step, state):
            detail = f"It did not end in {step.timeout_s:g} s."
            is_holder = isinstance(step, Holder)
            found = Broken(Fault(kind=FaultKind.TIMED_OUT, detail=detail, permanent=is_holder))
        if isinstance(found, Done):
            command = SucceedStep(
                plan=self.plan.id,
                step=scope.path(step),
                attempt=state.attempt,
                outputs=found.outputs,
            )
            yield Decision((command,), max(state.version, found.because))
        elif isinstance(found, Broken):
            yield self._broken(scope, step, state, found)
        elif isinstance(found, Decision):
            yield found

    def _outcome(
        self, scope: Scope, step: Step, state: StepState
    ) -> Done | Broken | Decision | None:
        if isinstance(step, OperationStep | ReplicateStep):
            return self._operations(scope, step, state)
        if isinstance(step, Holder):
            return self._held(scope, step, state)
        assert isinstance(step, Wait), "all else ends as it begins"
        return look(self.view, scope, step, state, self.now, self.heard)

    def _operations(
        self, scope: Scope, step: OperationStep | ReplicateStep, state: StepState
    ) -> Done | Broken | Decision | None:
        order = order_of(self.plan, scope.path(step), step, state)
        tasks = inspect(self.view, order, state.operations)
        because = max((task.because for task in tasks), default=Seq(0))
        if self.plan.status is PlanStatus.RUNNING:
            issued = issue_wanted(self.view, order, tasks, self.labels)
            if issued:
                return Decision(tuple(issued), max(state.version, because))
        if any(task.standing in (Standing.RUNNING, Standing.WANTED) for task in tasks):
            return None
        broken = [task for task in tasks if task.standing is Standing.FAILED]
        if broken:
            return Broken(_fault_of(broken), because)
        return Done(_outputs(step, order, tasks), because)

    def _held(self, scope: Scope, step: Holder, state: StepState) -> Done | Broken | None:
        inner = bodies(scope, step, state)
        for body in inner:
            failure = body.failure
            if failure is not None and body.has_stopped:
                broken, at = failure
                assert at.fault is not None
                return Broken(_from_within(body.path(broken), at.fault), at.version)
        if not all(body.is_over for body in inner):
            return None
        ended = (one.version for body in inner for _, one in body.states())
        return Done(_gathered(step, state, inner), max(ended, default=Seq(0)))

    def _broken(
        self, scope: Scope, step: Step, state: StepState | None, broken: Broken
    ) -> Decision:
        """The step fails, with all within it and all that it copies; perhaps to be tried again."""
        path = scope.path(step)
        attempt = state.attempt if state is not None else 1
        commands: list[Command] = []
        if state is not None:
            for name, inner in active_below(self.plan, path):
                commands += stop_operations(self.view, self.plan, name, inner)
                commands.append(StopStep(plan=self.plan.id, step=name, reason=f"{path} failed"))
            commands += stop_operations(self.view, self.plan, path, state)
        retry_at = None if self._is_late(step) else self._retry_at(step, attempt, broken.fault)
        commands.append(
            FailStep(
                plan=self.plan.id,
                step=path,
                attempt=attempt,
                fault=broken.fault,
                retry_at=retry_at,
            )
        )
        seen = state.version if state is not None else self.plan.turned
        return Decision(tuple(commands), broken.because or seen)

    def _retry_at(self, step: Step, attempt: int, fault: Fault) -> datetime | None:
        rule = retry_of(step)
        if not fault.retryable or attempt >= rule.attempts:
            return None
        return _after(self.now, backoff_s(rule, attempt))

    # ---- what may begin ------------------------------------------------------------------------

    def _starts(self, scopes: Sequence[Scope]) -> list[Decision]:
        ready = [
            (scope, step)
            for scope in scopes
            if scope.failure is None
            for step in scope.steps
            if self._is_ready(scope, step)
        ]
        ready.sort(key=lambda pair: -pair[1].priority)
        room: dict[int, int] = {}
        decisions = []
        for scope, step in ready:
            if isinstance(step, Work):
                group = scope.group
                left = room.get(id(group))
                left = self._room(scopes, group) if left is None else left
                room[id(group)] = left - 1
                if left <= 0:
                    continue
            decisions.append(self._begin(scope, step))
        return decisions

    def _is_ready(self, scope: Scope, step: Step) -> bool:
        state = scope.state(step)
        if state is not None:
            is_due = state.retry_at is not None and self.now >= state.retry_at
            return state.status is StepStatus.RETRYING and is_due
        needed = [scope.state(name) for name in scope.needs(step)]
        return all(one is not None and one.status not in ACTIVE for one in needed)

    def _room(self, scopes: Sequence[Scope], group: Scope) -> int:
        """How many more operations and calls of a plan or sub-plan may run."""
        running = sum(
            state.status is StepStatus.RUNNING and isinstance(step, Work)
            for scope in scopes
            if scope.group is group
            for step, state in scope.states()
        )
        return (group.limit or 1) - running

    def _begin(self, scope: Scope, step: Step) -> Decision:
        path, state = scope.path(step), scope.state(step)
        because = scope.since(step)
        missing = scope.missing(step)
        if missing is not None:
            reason = f"it needs what {scope.path(missing)} did not give"
            return Decision((SkipStep(plan=self.plan.id, step=path, reason=reason),), because)
        attempt = state.attempt + 1 if state is not None else 1
        try:
            commands = begin(self.view, scope, step, attempt, self.labels)
        except TensorCastError as error:
            failed = state.attempt if state is not None else 1
            fault = as_fault(error)
            fail = FailStep(plan=self.plan.id, step=path, attempt=failed, fault=fault)
            return Decision((fail,), because)
        return Decision(commands, because)


def next_due(plan: Plan, now: datetime) -> datetime | None:
    """When time alone can change what is to be done about a plan; None: never."""
    if plan.status not in OPEN:
        return None
    times = [time for time in _times(plan) if time > now]
    return min(times, default=None)


def _times(plan: Plan) -> Iterator[datetime]:
    begin_at = plan.submitted_at
    if plan.spec.deadline_s is not None:
        yield _after(begin_at, plan.spec.deadline_s)
    for scope in open_scopes(root_scope(plan)):
        for step in scope.steps:
            state = scope.state(step)
            if state is not None and state.status not in ACTIVE:
                continue
            if step.deadline_s is not None:
                yield _after(begin_at, step.deadline_s)
            if state is not None and state.retry_at is not None:
                yield state.retry_at
            if state is not None and state.status is StepStatus.RUNNING:
                if step.timeout_s is not None:
                    yield _after(state.started_at, step.timeout_s)
                if isinstance(step, WaitTime | SoakStep):
                    yield due_time(step, state)


def backoff_s(rule: Retry, attempt: int) -> float:
    """How long after try `attempt` the next one may begin, in seconds."""
    return min(rule.backoff_s * 2.0 ** min(attempt - 1, 64), rule.backoff_s_max)


def _after(begin: datetime, seconds: float) -> datetime:
    return begin + timedelta(seconds=seconds)


def _too_late(step: Step) -> Broken:
    detail = f"It was not done within {step.deadline_s:g} s of the plan's beginning."
    return Broken(Fault(kind=FaultKind.TIMED_OUT, detail=detail, permanent=True))


def _fault_of(broken: Sequence[Task]) -> Fault:
    """The fault of several nodes: that of one which a retry cannot help, if there is one."""
    faults = [task.fault for task in broken if task.fault is not None]
    worst = min(faults, key=lambda fault: fault.retryable)
    if len(broken) == 1:
        return worst
    named = ", ".join(task.node for task in broken[:5]) + (", ..." if len(broken) > 5 else "")
    detail = f"{len(broken)} nodes failed ({named}): {worst.detail}"
    return msgspec.structs.replace(worst, detail=detail)


def _from_within(path: StepPath, fault: Fault) -> Fault:
    """The fault of a step, as that of its holder."""
    detail = fault.detail if fault.detail.startswith("Step ") else f"Step {path}: {fault.detail}"
    return msgspec.structs.replace(fault, detail=detail, permanent=True)


def _outputs(
    step: OperationStep | ReplicateStep, order: Order, tasks: Sequence[Task]
) -> dict[str, object]:
    moved = sum(task.bytes_moved for task in tasks)
    operations = [task.operation for task in tasks if task.operation is not None]
    if isinstance(step, ReplicateStep):
        return {
            "artifact": order.artifact,
            "nodes": [task.node for task in tasks],
            "operations": operations,
            "bytes_moved": moved,
        }
    return {
        "artifact": order.artifact,
        "node": tasks[0].node,
        "operation": operations[0] if operations else "",
        "bytes_moved": moved,
        "joined": bool(operations) and operations[0] != own_id(order, 0),
    }


def _gathered(step: Holder, state: StepState, inner: Sequence[Scope]) -> dict[str, object]:
    match step:
        case ConditionStep():
            return {"met": state.inputs["met"]}
        case MapStep():
            collected = [_resolved(step.collect, body) for body in inner] if step.collect else []
            return {"items": items_of(state), COLLECTED: collected}
        case SubPlanStep():
            return {name: _resolved(text, inner[0]) for name, text in step.plan.outputs.items()}


def _resolved(text: str, scope: Scope) -> object:
    """What an expression stands for; None where a step was skipped or might fail, and gave
    nothing."""
    try:
        return resolve(text, scope.lookup)
    except InvalidArgument:
        return None


def _merge(decisions: Sequence[Decision]) -> tuple[Decision, ...]:
    """One decision where several follow from one event. Of two about one step the first counts:
    what is left of the other is seen at the next look."""
    touched: set[str] = set()
    merged: list[Decision] = []
    for decision in decisions:
        steps = {step for c in decision.commands if (step := getattr(c, "step", None))}
        if steps & touched:
            continue
        touched |= steps
        last = merged[-1] if merged else None
        if last is None or last.because != decision.because or _is_full(last, decision):
            merged.append(decision)
        else:
            merged[-1] = Decision((*last.commands, *decision.commands), last.because)
    return tuple(merged)


def _is_full(one: Decision, other: Decision) -> bool:
    return len(one.commands) + len(other.commands) > COMMANDS_MAX
