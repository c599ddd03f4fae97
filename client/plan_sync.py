"""Plans for ordinary programs: the same as `plan_calls.py`, each call waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from tensorcast.client.calls import AsyncCall, AsyncCalls
from tensorcast.client.facade import Facade, waited
from tensorcast.client.plan_calls import AnyPlan, AsyncPlanCalls
from tensorcast.client.plan_handles import AsyncPlanRun
from tensorcast.client.portal import Portal, documented_as
from tensorcast.client.session import AsyncClient
from tensorcast.schema.api_plans import ForecastInfo, PlanInfo, StepInfo
from tensorcast.schema.ids import PlanId


class PlanRun(Facade[AsyncPlanRun]):
    """A plan that was applied, as it was when it was last asked for (`refresh`, `wait`)."""

    @property
    def id(self) -> PlanId:
        return self._inner.id

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def status(self) -> str:
        """running, paused, cancelling, succeeded, failed or cancelled."""
        return self._inner.status

    @property
    def info(self) -> PlanInfo:
        """All that is known of it."""
        return self._inner.info

    @property
    def steps(self) -> Mapping[str, StepInfo]:
        """Its steps by path."""
        return self._inner.steps

    @property
    def outputs(self) -> Mapping[str, object]:
        """What it has given, once it has succeeded."""
        return self._inner.outputs

    def wait(self, timeout: float | None = None) -> PlanRun:
        """Waits until it has succeeded (None: as long as it takes). Raises Timeout (it goes on),
        Cancelled, or the error that made it fail."""
        self._portal.run(self._inner.wait(timeout))
        return self

    refresh = waited(AsyncPlanRun.refresh)
    settle = waited(AsyncPlanRun.settle)
    cancel = waited(AsyncPlanRun.cancel)
    pause = waited(AsyncPlanRun.pause)
    resume = waited(AsyncPlanRun.resume)
    events = waited(AsyncPlanRun.events)


class Call(Facade[AsyncCall]):
    """A call: `verb` and `arguments` say what is wanted. Answer it, or say why not."""

    @property
    def id(self) -> str:
        """Names the try of the step that asks."""
        return self._inner.id

    @property
    def verb(self) -> str:
        return self._inner.verb

    @property
    def arguments(self) -> dict[str, object]:
        return self._inner.arguments

    is_wanted = waited(AsyncCall.is_wanted)
    drop = waited(AsyncCall.drop)
    extend = waited(AsyncCall.extend)
    answer = waited(AsyncCall.answer)
    fail = waited(AsyncCall.fail)


class Calls(Facade[AsyncCalls]):
    """The calls to one engine, in order: `for call in client.calls("e1")`."""

    def next(self, timeout: float | None = None) -> Call | None:
        """The next call; None when none came for `timeout` seconds."""
        found = self._portal.run(self._inner.next(timeout))
        return None if found is None else Call(self._portal, found)

    def __iter__(self) -> Iterator[Call]:
        while True:
            call = self.next()
            if call is None:
                return
            yield call

    def close(self) -> None:
        """Gives its place up; what was not answered is given again to the next one."""
        self._portal.run(self._inner.aclose())


class _Client(Protocol):
    @property
    def _portal(self) -> Portal: ...

    @property
    def _inner(self) -> AsyncClient: ...


class PlanCalls:
    """Plans, and the calls that they make; part of `Client`."""

    @documented_as(AsyncPlanCalls.apply)
    def apply(
        self: _Client,
        plan: AnyPlan,
        inputs: Mapping[str, object] | None = None,
        *,
        dedup_id: str = "",
    ) -> PlanRun:
        """As `AsyncClient.apply`."""
        found = self._portal.run(self._inner.apply(plan, inputs, dedup_id=dedup_id))
        return PlanRun(self._portal, found)

    @documented_as(AsyncPlanCalls.explain)
    def explain(
        self: _Client, plan: AnyPlan, inputs: Mapping[str, object] | None = None
    ) -> ForecastInfo:
        """As `AsyncClient.explain`."""
        return self._portal.run(self._inner.explain(plan, inputs))

    def plan(self: _Client, plan: str) -> PlanRun:
        """A plan that was applied, by its id or name. Raises NotFound."""
        return PlanRun(self._portal, self._portal.run(self._inner.plan(plan)))

    def calls(self: _Client, engine: str) -> Calls:
        """The calls that plans make to an engine (or any program) of this name: `for call in
        client.calls("e1"): call.answer({...})`. Each is given until it is answered; those from now
        on are not missed."""
        return Calls(self._portal, self._portal.run(self._inner.calls(engine).open()))
