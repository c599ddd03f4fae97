"""A namespace: the keys that begin with its name, and who may do what with them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

import msgspec

from tensorcast.schema.access import user_of
from tensorcast.schema.aggregates.machine import next_status
from tensorcast.schema.commands import GrantAccess, NamespaceCommand
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import InvalidArgument, NotFound, Rejected
from tensorcast.schema.events import Event
from tensorcast.schema.guesses import suggest
from tensorcast.schema.ids import Seq
from tensorcast.schema.namespaces import (
    Namespace,
    NamespaceEvent,
    NamespaceGranted,
    NamespaceRevoked,
    Right,
    Rights,
    check_name,
    order_rights,
    parse_namespace,
    parse_who,
)


class NamespaceStatus(StrEnum):
    RULED = "ruled"


TRANSITIONS: Mapping[tuple[NamespaceStatus | None, type[Event]], NamespaceStatus] = {
    (None, NamespaceGranted): NamespaceStatus.RULED,
    (NamespaceStatus.RULED, NamespaceGranted): NamespaceStatus.RULED,
    (NamespaceStatus.RULED, NamespaceRevoked): NamespaceStatus.RULED,
}


class NamespaceRules(msgspec.Struct, frozen=True, kw_only=True):
    """What each user (`*`: everybody) may do. Without any rule it is open to all."""

    id: Namespace
    status: NamespaceStatus
    rules: dict[str, Rights]
    changed_at: datetime
    version: Seq = Seq(0)


def decide(state: NamespaceRules | None, command: NamespaceCommand) -> tuple[NamespaceEvent, ...]:
    """The events that the command leads to. Raises InvalidArgument, NotFound, and Rejected when
    nobody could change the rules any more."""
    namespace, who = parse_namespace(command.namespace), parse_who(command.who)
    wanted = order_rights(command.rights)
    if not wanted:
        raise InvalidArgument("No right is named.", hint=f"Name some of {', '.join(Right)}.")
    rules = state.rules if state else {}
    has = rules.get(who, ())
    if isinstance(command, GrantAccess):
        if state is None:
            check_name(namespace)
        fresh = tuple(right for right in wanted if right not in has)
        if not fresh:
            return ()
        return (NamespaceGranted(namespace=namespace, who=who, rights=fresh),)
    if state is None or not state.rules:
        raise NotFound(
            f"Namespace {namespace!r} has no rules.", hint="`tcctl access ls` shows what there is."
        )
    taken = tuple(right for right in wanted if right in has)
    if not taken:
        raise NotFound(
            f"{who!r} has no such right in namespace {namespace!r}, so none can be taken away"
            f"{suggest(who, rules) or '.'}",
            hint=f"Rules there are for {', '.join(sorted(rules))}: `tcctl access ls`.",
        )
    left = _without(rules, who, taken)
    if left and not any(Right.GRANT in rights for rights in left.values()):
        raise Rejected(
            f"Nobody could change the rules of namespace {namespace!r} any more.",
            hint=f"Grant somebody else that first: `tcctl access grant {namespace} USER grant`.",
        )
    return (NamespaceRevoked(namespace=namespace, who=who, rights=taken),)


def evolve(
    state: NamespaceRules | None, recorded: Recorded, event: NamespaceEvent
) -> NamespaceRules:
    """The rules after `event`. Raises Rejected when the event cannot follow."""
    status = next_status(
        TRANSITIONS, state.status if state else None, event, f"namespace {event.namespace}"
    )
    rules = state.rules if state else {}
    if isinstance(event, NamespaceGranted):
        owner = user_of(recorded.actor)
        if not rules and owner:
            rules = {owner: tuple(Right)}
        both = (*rules.get(event.who, ()), *event.rights)
        rules = {**rules, event.who: order_rights(both)}
    else:
        rules = _without(rules, event.who, event.rights)
    return NamespaceRules(
        id=event.namespace,
        status=status,
        rules=rules,
        changed_at=recorded.at,
        version=recorded.seq,
    )


def _without(rules: Mapping[str, Rights], who: str, rights: Rights) -> dict[str, Rights]:
    """The rules when `who` has these rights no more."""
    left = tuple(right for right in rules.get(who, ()) if right not in rights)
    others = {name: has for name, has in rules.items() if name != who}
    return {**others, who: left} if left else others
