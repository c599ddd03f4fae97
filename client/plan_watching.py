"""Steps of a plan that look at engines, and that move several keys; part of `Steps`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, Unpack

from tensorcast.client.plan_steps import listed, make_step, mapping
from tensorcast.schema.plans import Check, FindEngines, MoveKeysStep, SoakStep, Step

if TYPE_CHECKING:
    from tensorcast.client.plan_builder import Names, Options, Planned


class _Steps(Protocol):
    def add(self, step: Step) -> Planned: ...


class WatchingSteps:
    """Each method adds a step and returns it."""

    def find_engines(
        self: _Steps,
        name: str,
        *,
        weights: str = "",
        labels: Mapping[str, str] | None = None,
        unless: str = "",
        **options: Unpack[Options],
    ) -> Planned:
        """The engines that are up now, serve a version of `weights`, have all `labels` and do not
        serve the artifact `unless`. Gives engines, nodes."""
        said = mapping(labels)
        step = make_step(FindEngines, name, options, weights=weights, labels=said, unless=unless)
        return self.add(step)

    def soak(
        self: _Steps,
        name: str,
        seconds: float | str,
        *,
        engines: Names = (),
        artifact: str = "",
        topic: str = "",
        where: Mapping[str, object] | None = None,
        checks: Sequence[Check] = (),
        count: int = 0,
        since: Planned | str = "",
        **options: Unpack[Options],
    ) -> Planned:
        """For so many seconds none of the engines may stop or serve anything but the artifact, and
        signals on the topic must pass the checks (without checks none may come). Signals count from
        when the step `since` began. Gives signals."""
        step = make_step(
            SoakStep,
            name,
            options,
            for_s=seconds,
            engines=listed(engines),
            artifact=artifact,
            topic=topic,
            where=mapping(where),
            checks=listed(checks),
            count=count,
            since=since if isinstance(since, str) else since.id,
        )
        return self.add(step)

    def move_keys(
        self: _Steps,
        name: str,
        moves: Mapping[str, str],
        *,
        expect: Mapping[str, str] | None = None,
        **options: Unpack[Options],
    ) -> Planned:
        """Points several keys to artifacts, all at once or none: each if it points to what `expect`
        says of it (an artifact, "absent", "any"). Gives moves."""
        wanted = expect or {}
        written = [
            {"key": key, "artifact": artifact, "expect": wanted.get(key, "any")}
            for key, artifact in moves.items()
        ]
        return self.add(make_step(MoveKeysStep, name, options, moves=written))
