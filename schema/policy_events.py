"""Facts about policies: which are on, with which parameters, and which were stopped, and why.

Part of the union in `events.py`. Code is never in the log: a policy is known by its name.
"""

from __future__ import annotations

import msgspec


class PolicyEnabled(msgspec.Struct, frozen=True, kw_only=True):
    """It answers events from now on."""

    policy: str


class PolicyConfigured(msgspec.Struct, frozen=True, kw_only=True):
    """These are its parameters from now on; those that are not named are as the policy says."""

    policy: str
    parameters: dict[str, object] = {}


class PolicyDisabled(msgspec.Struct, frozen=True, kw_only=True):
    """It answers no more events."""

    policy: str


class PolicyStopped(msgspec.Struct, frozen=True, kw_only=True):
    """It answers no more events until somebody enables it, for it raised (`reason` is "raised"),
    took too long ("slow") or asked for too much ("flood") or for what it may not ("forbidden"). The
    cause is the event that it answered so."""

    policy: str
    reason: str
    detail: str


PolicyEvent = PolicyEnabled | PolicyConfigured | PolicyDisabled | PolicyStopped

POLICY_EVENT_TYPES: dict[str, type[PolicyEvent]] = {
    "policy.enabled": PolicyEnabled,
    "policy.configured": PolicyConfigured,
    "policy.disabled": PolicyDisabled,
    "policy.stopped": PolicyStopped,
}
