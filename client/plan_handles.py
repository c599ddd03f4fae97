"""A plan that was applied: it can be asked, waited for, paused and cancelled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Self

from tensorcast.client.handles import wait_until
from tensorcast.schema.api import AuditQuery, EventInfo
from tensorcast.schema.api_plans import PlanInfo, StepInfo
from tensorcast.schema.errors import Cancelled, TensorCastError, Timeout
from tensorcast.schema.faults import Fault, FaultKind, to_error
from tensorcast.schema.ids import PlanId

if TYPE_CHECKING:
    from tensorcast.client.api import ControlPlane

OVER = frozenset({"succeeded", "failed", "cancelled"})


class AsyncPlanRun:
    """A plan as it was when it was last asked for (`refresh`, `wait`)."""

    def __init__(self, api: ControlPlane, info: PlanInfo) -> None:
        self._api = api
        self.info = info

    @property
    def id(self) -> PlanId:
        return self.info.id

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def status(self) -> str:
        """running, paused, cancelling, succeeded, failed or cancelled."""
        return self.info.state

    @property
    def steps(self) -> Mapping[str, StepInfo]:
        """Its steps by path."""
        return {step.id: step for step in self.info.steps}

    @property
    def outputs(self) -> Mapping[str, object]:
        """What it has given, once it has succeeded."""
        return self.info.outputs

    async def refresh(self) -> PlanInfo:
        """Asks how it is now."""
        self.info = await self._api.plan(self.id)
        return self.info

    async def wait(
        self, timeout: float | None = None, *, report: Callable[[PlanInfo], None] | None = None
    ) -> Self:
        """Waits until it has succeeded (None: as long as it takes); calls `report` now and then.
        Raises Timeout (it goes on), Cancelled, or the error that made it fail."""
        await self.settle(timeout, report=report)
        error = failure_of(self.info)
        if error is not None:
            raise error
        return self

    async def settle(
        self, timeout: float | None = None, *, report: Callable[[PlanInfo], None] | None = None
    ) -> PlanInfo:
        """Waits until it is over, well or badly. Raises Timeout."""

        async def ask(timeout_s: float) -> PlanInfo:
            self.info = await self._api.wait_plan(self.id, timeout=timeout_s)
            return self.info

        return await wait_until(
            ask,
            lambda info: info.state in OVER,
            timeout,
            report,
            Timeout(
                f"Plan {self.name!r} is not over in {timeout} s.",
                hint=f"It goes on: see `tcctl plan show {self.id}`.",
            ),
        )

    async def cancel(self, reason: str = "asked by a user") -> None:
        """Cancels it, with what it copies. Raises Rejected when it is over."""
        await self._api.cancel_plan(self.id, reason=reason)

    async def pause(self, reason: str = "") -> None:
        """No step begins until `resume`; what runs goes on. Raises Rejected."""
        await self._api.pause_plan(self.id, reason=reason)

    async def resume(self) -> None:
        """Steps begin again. Raises Rejected."""
        await self._api.resume_plan(self.id)

    async def events(self) -> tuple[EventInfo, ...]:
        """What happened to it and because of it, in the order of the log."""
        return await self._api.audit(AuditQuery(plan=self.id))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.name!r}: {self.status}>"


def failure_of(info: PlanInfo) -> TensorCastError | None:
    """The error with which a plan ended; None when it has not failed."""
    if info.state == "cancelled":
        return Cancelled(f"Plan {info.name!r} was cancelled: {info.reason or 'nobody says why'}.")
    if info.state != "failed" or info.fault is None:
        return None
    where = f"at step {info.failed_step}" if info.failed_step else "as a whole"
    detail = f"Plan {info.name!r} failed {where}: {info.fault.detail}"
    kinds = {kind.value: kind for kind in FaultKind}
    fault = Fault(kind=kinds.get(info.fault.kind, FaultKind.INVALID), detail=detail)
    error = to_error(fault, artifact=None, node=None, operation=None)
    error.hint = f"`tcctl plan show {info.id}` tells all steps."
    return error
