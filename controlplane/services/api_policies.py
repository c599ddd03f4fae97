"""Verbs about policies: which there are, which run, and changing that."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tensorcast.controlplane.core.admission import check_actor
from tensorcast.controlplane.core.catalog import Kind, parameters_of, parse_parameters
from tensorcast.controlplane.services.api_desk import Desk
from tensorcast.log.execute import execute
from tensorcast.schema.aggregates.policy import PolicyState, PolicyStatus
from tensorcast.schema.api import Executed
from tensorcast.schema.api_policies import (
    ChangePolicy,
    ParameterInfo,
    PolicyInfo,
    PolicyQuery,
)
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import ConfigurePolicy, DisablePolicy, EnablePolicy
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import Seq


async def list_policies(desk: Desk, request: PolicyQuery) -> tuple[PolicyInfo, ...]:
    """All policies that this control plane knows, in their order of precedence; and those that it
    does not know and the log speaks of."""
    view = await desk.view_after(request.after)
    known = desk.catalog.kinds
    strangers = (name for name in sorted(view.policies) if name not in known)
    return (
        *(_describe(desk, view, kind) for kind in known.values()),
        *(_stranger(view.policies[name]) for name in strangers),
    )


async def show_policy(desk: Desk, request: PolicyQuery) -> PolicyInfo:
    """One policy. Raises NotFound."""
    view = await desk.view_after(request.after)
    return _describe(desk, view, desk.catalog.find(request.policy))


async def change_policy(desk: Desk, request: ChangePolicy) -> Executed:
    """Turns a policy on or off, or sets its parameters. Raises NotFound for one that this control
    plane does not know, InvalidArgument for parameters that it cannot have, PermissionDenied."""
    check_actor(request.actor)
    desk.check_changeable()
    command = request.command
    if not isinstance(command, DisablePolicy):  # what is not known any more can be turned off
        kind = desk.catalog.find(command.policy)
        command = _merged(desk.follower.view, kind, command)
    elif command.policy not in desk.follower.view.policies:
        desk.catalog.find(command.policy)
    outcome = await execute(desk.writer, desk.follower, [command], actor=request.actor)
    return Executed(events=tuple(draft.id for draft in outcome.events), seq=outcome.seq)


def _merged(
    view: ClusterView, kind: Kind, command: EnablePolicy | ConfigurePolicy
) -> EnablePolicy | ConfigurePolicy:
    """The command with all parameters that are set from now on: those that are named, and those
    that were set before; what is named as null is as the policy says again."""
    if command.parameters is None:
        parse_parameters(kind, parameters_of(view.policies.get(kind.name)))
        return command
    before = parameters_of(view.policies.get(kind.name))
    unknown = sorted(set(command.parameters) - set(kind.parameters.__struct_fields__))
    if unknown:
        known = ", ".join(kind.parameters.__struct_fields__) or "none"
        raise InvalidArgument(
            f"Policy {kind.name} has no parameter {unknown[0]!r}.", hint=f"It has {known}."
        )
    merged = {n: v for n, v in {**before, **command.parameters}.items() if v is not None}
    kind.make(parse_parameters(kind, merged))  # it may refuse what its types allow
    return msgspec.structs.replace(command, parameters=merged)


def _describe(desk: Desk, view: ClusterView, kind: Kind) -> PolicyInfo:
    state = view.policies.get(kind.name)
    told = _state_of(desk, view, kind)
    refused = desk.refusals.of(kind.name)
    return PolicyInfo(
        policy=kind.name,
        state=told,
        about=kind.about,
        origin=kind.origin,
        parameters=tuple(_parameters(kind, parameters_of(state))),
        reason=state.reason if state else "",
        detail=state.detail if state else "",
        set_by=state.actor if state else "",
        set_at=state.changed_at if state else None,
        seq=state.version if state else Seq(0),
        refused=refused.times,
        refusal=refused.last,
    )


def _state_of(desk: Desk, view: ClusterView, kind: Kind) -> str:
    state = view.policies.get(kind.name)
    if state is not None and state.status is PolicyStatus.STOPPED:
        return "stopped"
    return "on" if desk.catalog.is_running(view, kind.name) else "off"


def _parameters(kind: Kind, given: dict[str, object]) -> Iterator[ParameterInfo]:
    defaults = msgspec.to_builtins(kind.parameters())
    for field in msgspec.structs.fields(kind.parameters):
        default = defaults[field.name]
        yield ParameterInfo(
            name=field.name,
            type=_words(field.type),
            value=given.get(field.name, default),
            default=default,
        )


def _words(annotation: object) -> str:
    """A type as people write it."""
    text = getattr(annotation, "__origin__", annotation)
    plain = getattr(text, "__name__", str(text))
    return str(annotation) if plain in ("tuple", "dict", "list", "Annotated") else plain


def _stranger(state: PolicyState) -> PolicyInfo:
    return PolicyInfo(
        policy=state.id,
        state="unknown",
        about="This control plane does not have its code.",
        origin="",
        parameters=(),
        reason=state.reason,
        detail=state.detail,
        set_by=state.actor,
        set_at=state.changed_at,
        seq=state.version,
    )
