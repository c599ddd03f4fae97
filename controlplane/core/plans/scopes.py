"""Which bodies of a plan are open, and what a reference in them stands for. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Final, TypeVar

from tensorcast.schema.aggregates.plan import ACTIVE, Plan, StepState, StepStatus
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import Seq
from tensorcast.schema.plan_events import StepPath
from tensorcast.schema.plan_types import needs_of, sources_of
from tensorcast.schema.plan_values import INDEX, INPUT, ITEM, Reference, dig
from tensorcast.schema.plans import (
    ConditionStep,
    Holder,
    MapStep,
    OnFailure,
    Step,
    SubPlanStep,
)

STOPS: Final = frozenset({OnFailure.STOP, OnFailure.COMPENSATE})
_NOTHING: Final = object()
T = TypeVar("T")


class Scope:
    """A body of a plan that may run: its steps, and what they see. `holder` is the step that it is
    for (None: the plan itself); `group` names the plan or sub-plan whose limit counts here."""

    def __init__(
        self,
        plan: Plan,
        steps: tuple[Step, ...],
        *,
        prefix: str = "",
        holder: StepPath | None = None,
        outer: Scope | None = None,
        inputs: Mapping[str, object] | None = None,
        item: object = _NOTHING,
        index: int | None = None,
        limit: int | None = None,
    ) -> None:
        self.plan = plan
        self.steps = steps
        self.prefix = prefix
        self.holder = holder
        self.outer = outer
        self.index = index
        self._inputs = inputs
        self._item = item
        self._limit = limit

    @cached_property
    def ids(self) -> frozenset[str]:
        """The names of its steps."""
        return frozenset(step.id for step in self.steps)

    def path(self, step: Step | str) -> StepPath:
        """Where a step of this body stands in the plan."""
        return StepPath(self.prefix + (step if isinstance(step, str) else step.id))

    def state(self, step: Step | str) -> StepState | None:
        """How far a step of this body is; None when it has not begun."""
        return self.plan.steps.get(self.path(step))

    @property
    def group(self) -> Scope:
        """The outermost body of the plan or sub-plan that this one is part of."""
        scope = self
        while scope.outer is not None:
            scope = scope.outer
        return scope

    @property
    def limit(self) -> int | None:
        """How many operations and calls of its plan may run at once; of the outermost body only."""
        return self._limit

    def states(self) -> Iterator[tuple[Step, StepState]]:
        """The steps that have begun, or will not."""
        for step in self.steps:
            state = self.state(step)
            if state is not None:
                yield step, state

    @property
    def failure(self) -> tuple[Step, StepState] | None:
        """The first step whose failure stops the body."""
        failed = [
            (step, state)
            for step, state in self.states()
            if state.status is StepStatus.FAILED and step.on_failure in STOPS
        ]
        return min(failed, key=lambda pair: pair[1].version, default=None)

    @property
    def is_over(self) -> bool:
        """Whether every step has ended."""
        found = [self.state(step) for step in self.steps]
        return all(state is not None and state.status not in ACTIVE for state in found)

    @property
    def has_stopped(self) -> bool:
        """Whether it has failed, and what compensates that has ended."""
        failure = self.failure
        if failure is None:
            return False
        undoing = compensation(self, failure[0])
        return undoing is None or undoing.is_over or undoing.failure is not None

    def needs(self, step: Step) -> frozenset[str]:
        """The steps beside a step that must have ended before it begins."""
        return needs_of(step, self.ids)

    def missing(self, step: Step) -> str | None:
        """A step beside it that has ended without the outputs that this one takes."""
        for name in sorted(sources_of(step, self.ids)):
            state = self.state(name)
            if state is not None and state.status is not StepStatus.SUCCEEDED:
                return name
        return None

    def since(self, step: Step) -> Seq:
        """The last event that a step had to wait for."""
        states = [self.state(name) for name in self.needs(step)]
        own = self.state(step)
        holder = self.plan.steps.get(self.holder) if self.holder is not None else None
        seqs = (state.version for state in (*states, own, holder) if state is not None)
        return max(self.plan.turned, *seqs, Seq(0))

    def lookup(self, reference: Reference) -> object:
        """The value that a reference stands for here. Raises InvalidArgument."""
        root = reference.root
        if root in (ITEM, INDEX):
            return self._lookup_item(reference)
        scope: Scope | None = self
        while scope is not None:
            if root == INPUT and scope.outer is None:
                return dig(scope._inputs or {}, reference, 0)
            if root in scope.ids and root != INPUT:
                return scope._lookup_output(reference)
            scope = scope.outer
        raise InvalidArgument(f"{reference} stands for nothing here.")

    def _lookup_item(self, reference: Reference) -> object:
        scope: Scope | None = self
        while scope is not None and scope.index is None:
            scope = scope.outer
        if scope is None:
            raise InvalidArgument(f"{reference} stands for nothing outside of a map.")
        return dig(scope._item if reference.root == ITEM else scope.index, reference, 0)

    def _lookup_output(self, reference: Reference) -> object:
        state = self.state(reference.root)
        if state is None or state.status is not StepStatus.SUCCEEDED:
            raise InvalidArgument(f"{reference} stands for nothing: the step has not succeeded.")
        return dig(state.outputs, reference, 0)


def root_scope(plan: Plan) -> Scope:
    """The body of the plan itself."""
    spec = plan.spec
    return Scope(plan, spec.steps, inputs=plan.inputs, limit=spec.concurrency_max)


def compensation(scope: Scope, step: Step) -> Scope | None:
    """What compensates a step, if anything does."""
    if not step.compensate:
        return None
    path = scope.path(step)
    prefix = f"{path}/compensate/"
    return Scope(scope.plan, step.compensate, prefix=prefix, holder=path, outer=scope)


def bodies(scope: Scope, step: Step, state: StepState) -> tuple[Scope, ...]:
    """The bodies of a holder that has begun; of a map one for each item."""
    path, plan = scope.path(step), scope.plan
    match step:
        case ConditionStep():
            chosen = step.then if state.inputs.get("met") else step.otherwise
            return (Scope(plan, chosen, prefix=f"{path}/", holder=path, outer=scope),)
        case MapStep():
            return tuple(
                Scope(
                    plan,
                    step.steps,
                    prefix=f"{path}/{index}/",
                    holder=path,
                    outer=scope,
                    item=item,
                    index=index,
                )
                for index, item in enumerate(items_of(state))
            )
        case SubPlanStep():
            limit = step.plan.concurrency_max
            values = state.inputs
            return (
                Scope(
                    plan,
                    step.plan.steps,
                    prefix=f"{path}/",
                    holder=path,
                    inputs=values,
                    limit=limit,
                ),
            )
        case _:
            return ()


def items_of(state: StepState) -> list[object]:
    """What a map that has begun goes over."""
    items = state.inputs.get("items")
    return list(items) if isinstance(items, list | tuple) else []


def window(scope: Scope, step: MapStep, state: StepState) -> tuple[Scope, ...]:
    """The items of a map whose bodies may run now: those that have begun and are not over, and as
    many new ones, in order, as its limit leaves room for."""
    found: list[Scope] = []
    for body in bodies(scope, step, state):
        if body.is_over:
            continue
        if step.concurrency_max is not None and len(found) >= step.concurrency_max:
            break
        found.append(body)
    return tuple(found)


def open_scopes(scope: Scope) -> Iterator[Scope]:
    """A body and all open ones within it: those of holders that run, and those that compensate what
    has failed."""
    yield scope
    for step, state in scope.states():
        if state.status is StepStatus.FAILED and step.on_failure is OnFailure.COMPENSATE:
            undoing = compensation(scope, step)
            if undoing is not None:
                yield from open_scopes(undoing)
        elif state.status is StepStatus.RUNNING and isinstance(step, Holder):
            inner = (
                window(scope, step, state)
                if isinstance(step, MapStep)
                else bodies(scope, step, state)
            )
            for body in inner:
                yield from open_scopes(body)


def active_below(plan: Plan, path: str) -> Iterator[tuple[StepPath, StepState]]:
    """All steps within a step that are not over, the innermost first."""
    prefix = f"{path}/" if path else ""
    found = [
        (name, state)
        for name, state in plan.steps.items()
        if name.startswith(prefix) and state.status in ACTIVE
    ]
    yield from sorted(found, key=lambda pair: (-pair[0].count("/"), pair[0]))
