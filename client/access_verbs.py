"""Who may do what in which namespace; part of `ControlPlane`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

import msgspec

from tensorcast.client.position import Position
from tensorcast.schema.api import Browse, Executed
from tensorcast.schema.api_access import AccessInfo
from tensorcast.schema.commands import Command, GrantAccess, RevokeAccess
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.namespaces import Right, Rights, order_rights, parse_namespace, parse_who

T = TypeVar("T")


class _Asks(Protocol):
    position: Position

    async def ask(
        self, verb: str, request: msgspec.Struct, answer: type[T], *, timeout: float | None = None
    ) -> T: ...
    async def execute(self, command: Command, *, force: bool = False) -> Executed: ...


class AccessVerbs:
    """The rules of namespaces: a namespace without any is open to all."""

    async def access(self: _Asks) -> tuple[AccessInfo, ...]:
        """The rules of all namespaces that have some."""
        request = Browse(after=self.position.seq)
        return await self.ask("access.list", request, tuple[AccessInfo, ...])

    async def grant_access(
        self: _Asks, namespace: str, who: str, rights: Iterable[str] = ()
    ) -> Executed:
        """Gives a user (`*`: everybody) rights in a namespace: `read`, `write`, `keys`, `plans`,
        `grant`; by default `read`. Its first rule closes a namespace to all others, and gives
        the caller all rights. Raises PermissionDenied, InvalidArgument."""
        command = GrantAccess(
            namespace=parse_namespace(namespace),
            who=parse_who(who),
            rights=parse_rights(rights) or (Right.READ,),
        )
        return await self.execute(command)

    async def revoke_access(
        self: _Asks, namespace: str, who: str, rights: Iterable[str] = ()
    ) -> Executed:
        """Takes rights away, by default all. Raises NotFound, PermissionDenied, Rejected when
        nobody could change the rules any more."""
        command = RevokeAccess(
            namespace=parse_namespace(namespace),
            who=parse_who(who),
            rights=parse_rights(rights) or tuple(Right),
        )
        return await self.execute(command)


def parse_rights(names: Iterable[str]) -> Rights:
    """Rights by their names. Raises InvalidArgument."""
    wanted = tuple(names)
    unknown = sorted(set(wanted) - set(Right))
    if unknown:
        raise InvalidArgument(
            f"{unknown[0]!r} is no right.", hint=f"Use some of {', '.join(Right)}."
        )
    return order_rights(Right(name) for name in wanted)
