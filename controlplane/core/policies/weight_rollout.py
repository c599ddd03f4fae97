"""Weight roll-out: a version that is published comes to the engines that serve an older one.

Reacts to
- KeyMoved of a version (`policy@7`) of weights or adapters that is newer than what `policy` points
  to: a plan (`schema/rollouts.py`) takes it to all engines that serve a version of `policy`, and
  points `policy` to it in the end.
- the end of such a plan: the next version, if one was published meanwhile.

One roll-out of a name at a time. A version that failed is not tried again; what is newer is.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from msgspec import Meta

from tensorcast.controlplane.core.names import find_key
from tensorcast.controlplane.core.plans.finding import serves
from tensorcast.controlplane.core.policies.base import Configured, Parameters
from tensorcast.schema.aggregates.plan import Plan
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import Command
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import KeyMoved
from tensorcast.schema.ids import Key, family_of, number_of
from tensorcast.schema.plan_commands import SubmitPlan
from tensorcast.schema.plan_events import PlanCancelled, PlanFailed, PlanSucceeded
from tensorcast.schema.rollouts import (
    ROLLOUT,
    VERSION,
    AllAtOnce,
    Canary,
    Health,
    Member,
    Part,
    Rolling,
    Strategy,
    VersionSet,
    plan_rollout,
    rollout_id,
)

WEIGHTS = ("weights", "adapter")


class WeightRolloutParameters(Parameters, frozen=True, kw_only=True):
    """Weights whose `names` match (`*`: any text). `strategy`: all engines at once; rolling,
    `at_once` at a time; or canary: `canaries` first, which for `soak_s` seconds must do well by
    `health`, then the others, `at_once` at a time. With no more engines than canaries, one after
    the other. `skip`: of several versions that wait only the newest is rolled out."""

    names: tuple[str, ...] = ("*",)
    strategy: Literal["all", "rolling", "canary"] = "all"
    at_once: Annotated[int, Meta(ge=1, le=10_000)] = 1
    canaries: Annotated[int, Meta(ge=1, le=10_000)] = 1
    soak_s: Annotated[float, Meta(ge=0, le=31_536_000)] = 60.0
    health: tuple[Health, ...] = ()
    skip: bool = True


class WeightRollout(Configured[WeightRolloutParameters]):
    """Rolls published weights out to the engines that serve an older version of them."""

    name = "weight-rollout"
    Parameters = WeightRolloutParameters

    def react(self, view: ClusterView, recorded: Recorded) -> tuple[Command, ...]:
        match recorded.event:
            case KeyMoved(key=key) if number_of(key):
                name = family_of(key)
            case PlanSucceeded(plan=plan) | PlanFailed(plan=plan) | PlanCancelled(plan=plan):
                name = view.plans[plan].spec.labels.get(ROLLOUT, "")
            case _:
                return ()
        if not name or not any(fnmatchcase(name, one) for one in self.parameters.names):
            return ()
        waiting = () if _is_under_way(view, name) else tuple(_waiting(view, name))
        if not waiting:
            return ()
        chosen = waiting[-1 if self.parameters.skip else 0]
        return (self._submit(view, name, chosen),)

    def _submit(self, view: ClusterView, name: str, version: Key) -> SubmitPlan:
        present = find_key(view, name)
        part = Part(
            key=name,
            artifact=view.keys[version].artifact,
            expect=present.artifact if present else "absent",
        )
        members = tuple(
            Member(
                engine=engine.id,
                node=engine.node,
                version=engine.weights,
                artifact=engine.artifact or "",
            )
            for engine in (view.engines[one] for one in sorted(view.engines_up))
            if serves(engine, name)
        )
        wanted = VersionSet(name=name, version=version, parts=(part,))
        spec = plan_rollout(wanted, members, self._strategy(len(members)))
        last = max(_rollouts(view, name), key=lambda plan: plan.submitted_seq, default=None)
        return SubmitPlan(plan=rollout_id(name, last.id if last else None), spec=spec)

    def _strategy(self, engines: int) -> Strategy:
        mine = self.parameters
        if mine.strategy == "all":
            return AllAtOnce()
        if mine.strategy == "rolling" or engines <= mine.canaries:
            return Rolling(at_once=mine.at_once)
        return Canary(
            count=mine.canaries, soak_s=mine.soak_s, health=mine.health, at_once=mine.at_once
        )


def _is_under_way(view: ClusterView, name: str) -> bool:
    return any(view.plans[plan].spec.labels.get(ROLLOUT) == name for plan in view.open_plans)


def _rollouts(view: ClusterView, name: str) -> Iterator[Plan]:
    return (plan for plan in view.plans.values() if plan.spec.labels.get(ROLLOUT) == name)


def _waiting(view: ClusterView, name: str) -> Iterator[Key]:
    """The versions that are newer than what was rolled out or tried, the oldest first."""
    present = find_key(view, name)
    family = view.keys_by_family.get(name, frozenset[Key]())
    tried = [number_of(Key(plan.spec.labels[VERSION])) for plan in _rollouts(view, name)]
    live = [
        number_of(key)
        for key in family
        if present is not None and view.keys[key].artifact == present.artifact
    ]
    last = max((*tried, *live), default=0)
    for key in sorted(family, key=number_of):
        found = view.artifacts.get(view.keys[key].artifact)
        if number_of(key) > last and found is not None and found.kind in WEIGHTS:
            yield key
