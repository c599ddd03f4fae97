"""What applications do with plans; part of `AsyncClient`."""

from __future__ import annotations

from collections.abc import Mapping, MutableSet
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tensorcast.client.calls import AsyncCalls
from tensorcast.client.plan_builder import Plan, checked
from tensorcast.client.plan_files import read_plan
from tensorcast.client.plan_handles import AsyncPlanRun
from tensorcast.schema.api_plans import ForecastInfo
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.plans import PlanSpec

if TYPE_CHECKING:
    from tensorcast.client.api import ControlPlane
    from tensorcast.client.position import Position
    from tensorcast.client.signals import AsyncSignals

AnyPlan = Plan | PlanSpec | str | Path


class _Client(Protocol):
    @property
    def api(self) -> ControlPlane: ...

    @property
    def position(self) -> Position: ...

    @property
    def readers(self) -> MutableSet[AsyncSignals | AsyncCalls]: ...


class AsyncPlanCalls:
    """Plans, and the calls that they make."""

    async def apply(
        self: _Client,
        plan: AnyPlan,
        inputs: Mapping[str, object] | None = None,
        *,
        dedup_id: str = "",
    ) -> AsyncPlanRun:
        """Has a plan run: a `Plan`, or the path of a YAML or JSON file. Returns as soon as it is in
        the log; `.wait()` follows it. From then on it needs nobody but the control plane, however
        often that dies. Applied again under the same `dedup_id` it is the same plan.

        Raises InvalidArgument that tells all that is wrong with it, Conflict when another plan has
        that `dedup_id`, Unavailable.
        """
        await self.position.settled()
        name = await self.api.submit_plan(read(plan), inputs, dedup_id=dedup_id)
        return AsyncPlanRun(self.api, await self.api.plan(name))

    async def explain(
        self: _Client, plan: AnyPlan, inputs: Mapping[str, object] | None = None
    ) -> ForecastInfo:
        """What a plan would do now: its steps, how many bytes from where, and how long that takes
        at the rates that were measured. Nothing happens. Raises InvalidArgument."""
        await self.position.settled()
        return await self.api.explain_plan(read(plan), inputs)

    async def plan(self: _Client, plan: str) -> AsyncPlanRun:
        """A plan that was applied, by its id or name. Raises NotFound."""
        return AsyncPlanRun(self.api, await self.api.plan(plan))

    def calls(self: _Client, engine: str) -> AsyncCalls:
        """The calls that plans make to an engine (or any program) of this name: `async for call in
        client.calls("e1"): await call.answer({...})`. Each is given until it is answered."""
        reader = AsyncCalls(self.api, engine)
        self.readers.add(reader)
        return reader


def read(plan: AnyPlan) -> PlanSpec:
    """The plan as it is written. Raises InvalidArgument, NotFound."""
    if isinstance(plan, Plan):
        return plan.spec
    if isinstance(plan, PlanSpec):
        return checked(plan)
    if not isinstance(plan, str | Path):
        raise InvalidArgument(
            f"{plan!r} is no plan.", hint="Give a tc.Plan, or the path of a YAML or JSON file."
        )
    return read_plan(plan)
