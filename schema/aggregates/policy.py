"""A policy: whether it runs, and with which parameters. What it does is code; its name is here."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import assert_never

import msgspec

from tensorcast.schema.aggregates.machine import next_status
from tensorcast.schema.commands import (
    ConfigurePolicy,
    DisablePolicy,
    EnablePolicy,
    PolicyCommand,
    StopPolicy,
)
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.events import Event
from tensorcast.schema.ids import Seq, parse_policy
from tensorcast.schema.policy_events import (
    PolicyConfigured,
    PolicyDisabled,
    PolicyEnabled,
    PolicyEvent,
    PolicyStopped,
)

PARAMETERS_BYTES_MAX = 64 << 10


class PolicyStatus(StrEnum):
    """UNSET: nobody has said whether it shall run; that is as the policy itself says."""

    UNSET = "unset"
    ENABLED = "enabled"
    DISABLED = "disabled"
    STOPPED = "stopped"


TRANSITIONS: Mapping[tuple[PolicyStatus | None, type[Event]], PolicyStatus] = {
    (None, PolicyConfigured): PolicyStatus.UNSET,
    **{(status, PolicyConfigured): status for status in PolicyStatus},
    **{
        (status, event): target
        for status in (None, *PolicyStatus)
        for event, target in (
            (PolicyEnabled, PolicyStatus.ENABLED),
            (PolicyDisabled, PolicyStatus.DISABLED),
            (PolicyStopped, PolicyStatus.STOPPED),
        )
    },
}


class PolicyState(msgspec.Struct, frozen=True, kw_only=True):
    """`parameters` are those that somebody has set; `actor` is who changed it last; `reason` and
    `detail` tell why it was stopped."""

    id: str
    status: PolicyStatus
    changed_at: datetime
    actor: str
    parameters: dict[str, object] = {}
    reason: str = ""
    detail: str = ""
    version: Seq = Seq(0)


def decide(state: PolicyState | None, command: PolicyCommand) -> tuple[PolicyEvent, ...]:
    """The events that the command leads to. Raises InvalidArgument for a name or for parameters
    that no policy can have; whether a policy has such parameters is checked before."""
    name = parse_policy(command.policy)
    status = state.status if state else None
    match command:
        case EnablePolicy():
            changed: tuple[PolicyEvent, ...] = ()
            if command.parameters is not None:
                changed = _configured(state, name, command.parameters)
            is_on = status is PolicyStatus.ENABLED
            return changed if is_on else (*changed, PolicyEnabled(policy=name))
        case ConfigurePolicy():
            return _configured(state, name, command.parameters)
        case DisablePolicy():
            return () if status is PolicyStatus.DISABLED else (PolicyDisabled(policy=name),)
        case StopPolicy(reason=reason, detail=detail):
            if status in (PolicyStatus.STOPPED, PolicyStatus.DISABLED):
                return ()
            return (PolicyStopped(policy=name, reason=reason, detail=detail),)
        case _:
            assert_never(command)


def _configured(
    state: PolicyState | None, name: str, parameters: dict[str, object]
) -> tuple[PolicyConfigured, ...]:
    try:
        size_bytes = len(msgspec.json.encode(parameters))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"The parameters of a policy cannot be JSON: {error}.") from error
    if size_bytes > PARAMETERS_BYTES_MAX:
        raise InvalidArgument(
            f"The parameters of a policy take {size_bytes} bytes; {PARAMETERS_BYTES_MAX} are the "
            "limit."
        )
    if parameters == (state.parameters if state else {}):
        return ()
    return (PolicyConfigured(policy=name, parameters=parameters),)


def evolve(state: PolicyState | None, recorded: Recorded, event: PolicyEvent) -> PolicyState:
    """The state after `event`. Raises Rejected when the event cannot follow."""
    was = state.status if state else None
    status = next_status(TRANSITIONS, was, event, f"policy {event.policy}")
    if isinstance(event, PolicyConfigured):
        parameters = event.parameters
    else:
        parameters = state.parameters if state else {}
    reason, detail = "", ""
    if isinstance(event, PolicyStopped):
        reason, detail = event.reason, event.detail
    elif isinstance(event, PolicyConfigured) and state is not None:
        reason, detail = state.reason, state.detail
    return PolicyState(
        id=event.policy,
        status=status,
        changed_at=recorded.at,
        actor=recorded.actor,
        parameters=parameters,
        reason=reason,
        detail=detail,
        version=recorded.seq,
    )
