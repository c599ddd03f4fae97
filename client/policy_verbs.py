"""What clients ask the control plane about policies; part of `ControlPlane`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from tensorcast.schema.api import Executed
from tensorcast.schema.api_policies import ChangePolicy, PolicyInfo, PolicyQuery
from tensorcast.schema.commands import ConfigurePolicy, DisablePolicy, EnablePolicy
from tensorcast.schema.plain import check_plain

if TYPE_CHECKING:
    from tensorcast.client.position import Position

T = TypeVar("T")


class _Asks(Protocol):
    @property
    def actor(self) -> str: ...

    @property
    def position(self) -> Position: ...

    async def ask(
        self, verb: str, request: msgspec.Struct, answer: type[T], *, timeout: float | None = None
    ) -> T: ...


class PolicyVerbs:
    """Policies: which there are, which run, and changing that. All changes are safe to repeat."""

    async def policies(self: _Asks) -> tuple[PolicyInfo, ...]:
        """All policies that the control plane knows, in their order of precedence."""
        request = PolicyQuery(after=self.position.seq)
        return await self.ask("policy.list", request, tuple[PolicyInfo, ...])

    async def policy(self: _Asks, name: str) -> PolicyInfo:
        """One policy with its parameters. Raises NotFound."""
        request = PolicyQuery(policy=name, after=self.position.seq)
        return await self.ask("policy.show", request, PolicyInfo)

    async def enable_policy(
        self: _Asks, name: str, parameters: Mapping[str, object] | None = None
    ) -> Executed:
        """Has a policy answer events from now on, with these parameters beside those that were set
        before (None as a value: as the policy says). Raises NotFound, InvalidArgument."""
        given = None if parameters is None else dict(parameters)
        return await _change(self, EnablePolicy(policy=name, parameters=given))

    async def set_policy(self: _Asks, name: str, parameters: Mapping[str, object]) -> Executed:
        """Sets parameters of a policy, whether it runs or not; the others stay. Raises NotFound,
        InvalidArgument."""
        return await _change(self, ConfigurePolicy(policy=name, parameters=dict(parameters)))

    async def disable_policy(self: _Asks, name: str) -> Executed:
        """Has a policy answer no more events. What it has issued goes on. Raises NotFound."""
        return await _change(self, DisablePolicy(policy=name))


async def _change(
    plane: _Asks, command: EnablePolicy | ConfigurePolicy | DisablePolicy
) -> Executed:
    if not isinstance(command, DisablePolicy):
        check_plain(command.parameters, f"Policy {command.policy}")
    request = ChangePolicy(command=command, actor=plane.actor)
    done = await plane.ask("policy.change", request, Executed)
    plane.position.advance(done.seq)
    return done
