"""Roll-outs for ordinary programs: the same as `rollouts.py`, each call waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from tensorcast.client.facade import settle
from tensorcast.client.plan_sync import PlanRun
from tensorcast.client.portal import Portal, documented_as
from tensorcast.client.rollouts import AsyncRolloutCalls
from tensorcast.schema.api import Executed
from tensorcast.schema.api_plans import PlanInfo
from tensorcast.schema.plans import PlanSpec
from tensorcast.schema.rollouts import AllAtOnce, RolloutLimits, Strategy

if TYPE_CHECKING:
    from tensorcast.client.naming import What
    from tensorcast.client.session import AsyncClient

_AT_ONCE = AllAtOnce()
_LIMITS = RolloutLimits()


class _Client(Protocol):
    @property
    def _portal(self) -> Portal: ...

    @property
    def _inner(self) -> AsyncClient: ...


class RolloutCalls:
    """New weights for engines that serve; part of `Client`."""

    @documented_as(AsyncRolloutCalls.roll_out)
    def roll_out(
        self: _Client,
        version: str,
        *,
        parts: Mapping[str, What] | None = None,
        engines: Sequence[str] | None = None,
        strategy: Strategy = _AT_ONCE,
        limits: RolloutLimits = _LIMITS,
    ) -> PlanRun:
        """As `AsyncClient.roll_out`."""
        work = self._inner.roll_out(
            version, parts=parts, engines=engines, strategy=strategy, limits=limits
        )
        return PlanRun(self._portal, self._portal.run(work))

    @documented_as(AsyncRolloutCalls.plan_roll_out)
    def plan_roll_out(
        self: _Client,
        version: str,
        *,
        parts: Mapping[str, What] | None = None,
        engines: Sequence[str] | None = None,
        strategy: Strategy = _AT_ONCE,
        limits: RolloutLimits = _LIMITS,
    ) -> PlanSpec:
        """As `AsyncClient.plan_roll_out`."""
        work = self._inner.plan_roll_out(
            version, parts=parts, engines=engines, strategy=strategy, limits=limits
        )
        return self._portal.run(work)

    @documented_as(AsyncRolloutCalls.undo_roll_out)
    def undo_roll_out(
        self: _Client, name: str, *, strategy: Strategy = _AT_ONCE, limits: RolloutLimits = _LIMITS
    ) -> PlanRun:
        """As `AsyncClient.undo_roll_out`."""
        work = self._inner.undo_roll_out(name, strategy=strategy, limits=limits)
        return PlanRun(self._portal, self._portal.run(work))

    @documented_as(AsyncRolloutCalls.move_keys)
    def move_keys(
        self: _Client, moves: Mapping[str, What], *, expect: Mapping[str, What | None] | None = None
    ) -> Executed:
        """As `AsyncClient.move_keys`."""
        settle(*moves.values())
        return self._portal.run(self._inner.move_keys(moves, expect=expect))

    def roll_outs(self: _Client, name: str | None = None) -> tuple[PlanInfo, ...]:
        """The roll-outs (of these weights), the last one first."""
        return self._portal.run(self._inner.roll_outs(name))
