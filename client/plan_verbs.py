"""What clients ask the control plane about plans; part of `ControlPlane`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from tensorcast.client.identity import new_event_id
from tensorcast.schema.api import LIST_MAX, Browse, Executed, Show
from tensorcast.schema.api_plans import ForecastInfo, PlanInfo, TryPlan, WaitPlan
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import PlanId, Seq, derive_plan_id
from tensorcast.schema.plain import check_numbers, check_plain
from tensorcast.schema.plan_commands import (
    CancelPlan,
    PausePlan,
    PlanUserCommand,
    ResumePlan,
    SubmitPlan,
)
from tensorcast.schema.plan_values import INPUT, Reference, dig, resolve
from tensorcast.schema.plans import PlanSpec

if TYPE_CHECKING:
    from tensorcast.client.position import Position

T = TypeVar("T")
ANSWER_SLACK_S = 2.0
PLAN_WAIT_S = 3.0


class _Asks(Protocol):
    @property
    def position(self) -> Position: ...

    async def ask(
        self, verb: str, request: msgspec.Struct, answer: type[T], *, timeout: float | None = None
    ) -> T: ...

    async def ask_once(
        self, verb: str, request: msgspec.Struct, answer: type[T], *, timeout: float
    ) -> T: ...

    async def execute(self, command: PlanUserCommand, *, force: bool = False) -> Executed: ...


class PlanVerbs:
    """Plans are run by the control plane; what happens to them is in the log."""

    async def submit_plan(
        self: _Asks,
        spec: PlanSpec,
        inputs: Mapping[str, object] | None = None,
        *,
        dedup_id: str = "",
    ) -> PlanId:
        """Has a plan run; returns its id at once. What is submitted again under the same `dedup_id`
        (that of the plan, unless one is given) is the same plan. Raises InvalidArgument, Conflict
        when another plan has that id."""
        given = _given(inputs)
        check_numbers(msgspec.to_builtins(spec), f"The plan {spec.name!r}")
        name = dedup_id or _resolved(spec, given) or new_event_id()
        plan = derive_plan_id(name)
        await self.execute(SubmitPlan(plan=plan, spec=spec, inputs=given))
        return plan

    async def plans(
        self: _Asks, *, status: str | None = None, label: str = "", limit: int = LIST_MAX
    ) -> tuple[PlanInfo, ...]:
        """The plans, the last submitted first; those of one state, those that have a label."""
        request = Browse(limit=limit, status=status, label=label, after=self.position.seq)
        return await self.ask("plan.list", request, tuple[PlanInfo, ...])

    async def plan(self: _Asks, what: str, *, after: Seq | None = None) -> PlanInfo:
        """One plan with its steps, by its id, the beginning of its id, or its name, as it was
        after event `after` or later. Raises NotFound."""
        seen = max(after or 0, self.position.seq)
        return await self.ask("plan.show", Show(what=what, after=Seq(seen)), PlanInfo)

    async def wait_plan(
        self: _Asks, plan: str, *, since: int = 1 << 62, timeout: float = PLAN_WAIT_S
    ) -> PlanInfo:
        """The plan when it is over, or has changed after event `since`, or as it is after
        `timeout` (at most 3 s)."""
        timeout_s = min(timeout, PLAN_WAIT_S)
        query = WaitPlan(plan=plan, since=Seq(since), timeout_s=timeout_s)
        wait_s = timeout_s + ANSWER_SLACK_S
        return await self.ask_once("plan.wait", query, PlanInfo, timeout=wait_s)

    async def check_plan(
        self: _Asks, spec: PlanSpec, inputs: Mapping[str, object] | None = None
    ) -> tuple[str, ...]:
        """All that is wrong with a plan, also with this cluster in view: one sentence each."""
        query = TryPlan(spec=spec, inputs=_given(inputs), after=self.position.seq)
        return await self.ask("plan.check", query, tuple[str, ...])

    async def explain_plan(
        self: _Asks, spec: PlanSpec, inputs: Mapping[str, object] | None = None
    ) -> ForecastInfo:
        """What a plan would do now: a dry run. Raises InvalidArgument."""
        query = TryPlan(spec=spec, inputs=_given(inputs), after=self.position.seq)
        return await self.ask("plan.explain", query, ForecastInfo)

    async def cancel_plan(self: _Asks, plan: str, *, reason: str = "asked by a user") -> Executed:
        """Cancels a plan, with what it copies. Raises NotFound, Rejected when it is over."""
        return await self.execute(CancelPlan(plan=PlanId(plan), reason=reason))

    async def pause_plan(self: _Asks, plan: str, *, reason: str = "") -> Executed:
        """No step of the plan begins until it is resumed. Raises NotFound, Rejected."""
        return await self.execute(PausePlan(plan=PlanId(plan), reason=reason))

    async def resume_plan(self: _Asks, plan: str) -> Executed:
        """Undoes `pause_plan`. Raises NotFound, Rejected."""
        return await self.execute(ResumePlan(plan=PlanId(plan)))


def _given(inputs: Mapping[str, object] | None) -> dict[str, object]:
    """The inputs of a plan. Raises InvalidArgument for what JSON cannot hold."""
    if inputs is not None and not isinstance(inputs, Mapping):
        raise InvalidArgument(
            f"The inputs of a plan are a mapping, not {inputs!r}.", hint='As in {"n": 3}.'
        )
    found = dict(inputs or {})
    for name, value in found.items():
        try:
            msgspec.json.encode(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgument(f"Input {name!r} cannot be JSON: {error}.") from error
        check_plain(value, f"Input {name!r}")
    return found


def _resolved(spec: PlanSpec, inputs: Mapping[str, object]) -> str:
    """The dedup_id of a plan with the values of its inputs."""
    values = {name: inputs.get(name, one.default) for name, one in spec.inputs.items()}

    def lookup(reference: Reference) -> object:
        if reference.root != INPUT:
            raise InvalidArgument(f"{reference} is no input of the plan.")
        return dig(values, reference, 0)

    found = resolve(spec.dedup_id, lookup)
    return f"{spec.name}\n{found}" if spec.dedup_id else ""
