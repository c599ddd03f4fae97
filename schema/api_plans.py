"""What clients ask the control plane about plans, and what it answers.

As `api.py`: a request for each verb, and field names that stay.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from tensorcast.schema.api_faults import FaultInfo
from tensorcast.schema.ids import PlanId, Seq
from tensorcast.schema.plan_events import StepPath
from tensorcast.schema.plans import PlanSpec


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    pass


class WaitPlan(_Message, frozen=True, kw_only=True):
    """Verb `plan.wait`: answers `PlanInfo` when the plan is over or has changed after event
    `since`, or as it is after `timeout_s`."""

    plan: str
    since: Seq = Seq(0)
    timeout_s: float


class TryPlan(_Message, frozen=True, kw_only=True):
    """Verbs `plan.check` (what of it this cluster cannot do, as sentences) and `plan.explain` (a
    dry run, as `ForecastInfo`)."""

    spec: PlanSpec
    inputs: dict[str, object] = {}
    after: Seq = Seq(0)


class StepInfo(_Message, frozen=True, kw_only=True):
    """A step by its path. `status` is pending, running, retrying, succeeded, failed, skipped or
    cancelled; `reason` says why it was skipped or cancelled."""

    id: StepPath
    kind: str
    status: str
    attempt: int = 0
    outputs: dict[str, object] = {}
    inputs: dict[str, object] = {}
    operations: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    fault: FaultInfo | None = None
    reason: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    retry_at: datetime | None = None


class PlanInfo(_Message, frozen=True, kw_only=True):
    """`state` is running, paused, cancelling, succeeded, failed or cancelled; `steps_ended` of
    `steps_known` are over. One plan alone is told with its steps and its program."""

    id: PlanId
    name: str
    state: str
    actor: str
    steps: tuple[StepInfo, ...] = ()
    steps_ended: int = 0
    steps_known: int = 0
    inputs: dict[str, object] = {}
    outputs: dict[str, object] = {}
    labels: dict[str, str] = {}
    fault: FaultInfo | None = None
    failed_step: str = ""
    reason: str = ""
    submitted_at: datetime
    ended_at: datetime | None = None
    seq: Seq
    spec: PlanSpec | None = None


class ForecastStep(_Message, frozen=True, kw_only=True):
    """What a step would do: the work of nodes, from which sources, how many bytes, from when to
    when in seconds after the beginning (None: not known); `evicts_bytes` is what their nodes have
    to drop or move for it. `note` says what was assumed."""

    id: StepPath
    kind: str
    status: str
    nodes: tuple[str, ...] = ()
    artifact: str = ""
    sources: dict[str, tuple[str, ...]] = {}
    bytes: int = 0
    evicts_bytes: int = 0
    begins_s: float = 0.0
    ends_s: float | None = None
    note: str = ""


class ForecastInfo(_Message, frozen=True, kw_only=True):
    """A dry run on the cluster as it is: `state` is how the plan would end, `seconds` when, without
    what waits for others; None when no rate was ever measured. `faults`: what cannot be done."""

    name: str
    state: str
    steps: tuple[ForecastStep, ...]
    bytes: int
    seconds: float | None
    faults: tuple[str, ...] = ()
    evicts_bytes: int = 0
