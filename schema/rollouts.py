"""Roll-outs: new weights for engines that serve, written as a plan. Pure.

The new weights come to the engines' nodes while these serve the old ones; each engine brings and
checks them (`stage`); then they change between requests (`switch`), all at once, some at a time,
or a few first that must do well for a while. When all serve them, the keys move, together. What
fails on the way stops the roll-out: no further engine changes, those that have changed go back, no
key moves. Engines do as docs/weights.md says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import PlanId, derive_plan_id, is_artifact_id
from tensorcast.schema.plans import (
    CONCURRENCY,
    ITEMS_MAX,
    MOVES_MAX,
    CallStep,
    Check,
    EmitStep,
    FindEngines,
    KeyMove,
    MapStep,
    MoveKeysStep,
    OnFailure,
    PlanSpec,
    ReplicateStep,
    SoakStep,
    Step,
    SubPlanStep,
    WaitEngines,
)

STAGE: Final = "stage"
SWITCH: Final = "switch"
UNSTAGE: Final = "unstage"
"""What engines are asked. STAGE: bring these weights and check them, serve the old ones. SWITCH:
serve what was staged from the next request on. UNSTAGE: forget what was staged."""
ROLLOUT: Final = "rollout"
VERSION: Final = "version"
PREVIOUS: Final = "previous"
UNDOES: Final = "undoes"
"""A label of a roll-out that takes another one back: the version of that one."""
"""Labels of the plan: the name of the weights, the version, and what most engines served."""
ROLLED_OUT: Final = "weights.rolled_out"
ROLLED_BACK: Final = "weights.rolled_back"
MOVE: Final = "move"
MOVED: Final = f"{SWITCH}/{MOVE}"
"""The step that moves the keys."""

Positive = Annotated[int, Meta(ge=1, le=10_000)]
Seconds = Annotated[float, Meta(ge=0, le=31_536_000)]


class _Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Part(_Struct, frozen=True, kw_only=True):
    """A key that points to `artifact` in the end, if it points to `expect` then (an artifact,
    `absent`, or `any`)."""

    key: str
    artifact: str
    expect: str = "any"


class VersionSet(_Struct, frozen=True, kw_only=True):
    """A version of the weights `name`, and its parts: one, or one for each rank. Their keys move
    together. The first part is what the record says that an engine serves."""

    name: str
    version: str
    parts: tuple[Part, ...]


class Member(_Struct, frozen=True, kw_only=True):
    """An engine, its node, and the weights that it serves now (no artifact: they are not from the
    cluster, so that it cannot go back to them)."""

    engine: str
    node: str | None = None
    version: str = ""
    artifact: str = ""


class AllAtOnce(_Struct, frozen=True, kw_only=True, tag="all"):
    """All engines change at the same time."""


class Rolling(_Struct, frozen=True, kw_only=True, tag="rolling"):
    """At most `at_once` engines change at the same time; the others serve."""

    at_once: Positive = 1


class Health(_Struct, frozen=True, kw_only=True):
    """Signals by which canaries are judged, as in the step `soak`: those on `topic` whose data say
    what `where` says must pass all `checks`, and `count` must have come; without `checks` none may
    come."""

    topic: str
    where: dict[str, object] = {}
    checks: tuple[Check, ...] = ()
    count: Annotated[int, Meta(ge=0, le=10_000)] = 0


class Canary(_Struct, frozen=True, kw_only=True, tag="canary"):
    """The first `count` engines change; for `soak_s` seconds they must stay up, and all `health`
    be good; then the others do, `at_once` at a time (None: all)."""

    count: Positive = 1
    soak_s: Seconds = 60.0
    health: tuple[Health, ...] = ()
    at_once: Positive | None = None


Strategy = AllAtOnce | Rolling | Canary


class RolloutLimits(_Struct, frozen=True, kw_only=True):
    """How long one engine may take to stage and to switch. `check`: engines compare all bytes with
    their digests once more, as they did when they came to the node."""

    stage_s: Annotated[float, Meta(gt=0)] = 600.0
    switch_s: Annotated[float, Meta(gt=0)] = 120.0
    check: bool = True


def rollout_id(name: str, last: PlanId | None) -> PlanId:
    """The plan that rolls these weights out after the roll-out `last`: there is one, however many
    ask for it at the same moment."""
    return derive_plan_id(rollout_dedup(name, last))


def rollout_dedup(name: str, last: PlanId | None) -> str:
    """What `rollout_id` follows from."""
    return f"rollout\n{name}\n{last or ''}"


def plan_rollout(
    wanted: VersionSet,
    members: Sequence[Member],
    strategy: Strategy,
    *,
    limits: RolloutLimits | None = None,
    late: bool = True,
) -> PlanSpec:
    """The plan of a roll-out. `late`: engines that began to serve an older version meanwhile are
    brought along in the end. Raises InvalidArgument for what makes no sense."""
    limits = limits or RolloutLimits()
    _check(wanted, members, strategy, limits)
    steps: list[Step] = []
    if members:
        steps += _prepare(wanted, members, limits)
    steps.append(_switch(wanted, members, strategy, limits))
    if late:
        steps += _bring_late(wanted, limits)
    said: dict[str, object] = {"name": wanted.name, "version": wanted.version}
    said |= {"artifact": wanted.parts[0].artifact, "engines": [one.engine for one in members]}
    last = (SWITCH, "late") if late else (SWITCH,)
    steps.append(EmitStep(id="say", topic=ROLLED_OUT, data=said, depends_on=last))
    return PlanSpec(
        name=f"{wanted.version} roll-out",
        steps=tuple(steps),
        concurrency_max=_at_once(members),
        labels={ROLLOUT: wanted.name, VERSION: wanted.version, PREVIOUS: _previous(members)},
    )


def _check(
    wanted: VersionSet, members: Sequence[Member], strategy: Strategy, limits: RolloutLimits
) -> None:
    for given, kind in ((strategy, Strategy), (limits, RolloutLimits)):
        try:
            msgspec.convert(msgspec.to_builtins(given), kind)
        except msgspec.ValidationError as error:
            words = str(error)[:1].lower() + str(error)[1:]
            raise InvalidArgument(f"{type(given).__name__} cannot be so: {words}.") from error
    if not wanted.parts or len(wanted.parts) > MOVES_MAX:
        raise InvalidArgument(f"A version has 1 to {MOVES_MAX} parts.")
    if len({part.key for part in wanted.parts}) < len(wanted.parts):
        raise InvalidArgument(f"Two parts of {wanted.version} have one key.")
    if len(members) > ITEMS_MAX:
        raise InvalidArgument(f"A roll-out is for {ITEMS_MAX} engines at most.")
    if len({member.engine for member in members}) < len(members):
        raise InvalidArgument("An engine is named twice.")
    if isinstance(strategy, Canary) and members and strategy.count >= len(members):
        raise InvalidArgument(
            f"{strategy.count} of {len(members)} engines cannot be canaries.",
            hint="One engine at least must be left that is none.",
        )


def _previous(members: Sequence[Member]) -> str:
    served = Counter(member.version for member in members if member.artifact)
    return max(sorted(served), key=lambda version: served[version], default="")


def _at_once(members: Sequence[Member]) -> int:
    return max(CONCURRENCY, len(members))


# ---- while the old weights serve ---------------------------------------------------------------


def _prepare(wanted: VersionSet, members: Sequence[Member], limits: RolloutLimits) -> list[Step]:
    nodes = tuple(dict.fromkeys(member.node for member in members if member.node))
    engines = tuple(member.engine for member in members)
    steps: list[Step] = []
    if nodes:
        fan = ReplicateStep(id="fan", artifact="${item}", to=nodes)
        artifacts = tuple(dict.fromkeys(part.artifact for part in wanted.parts))
        steps.append(MapStep(id="prefetch", artifacts=artifacts, steps=(fan,)))
    forget = _unstage(limits, "${item}")
    steps.append(
        MapStep(
            id=STAGE,
            items=engines,
            steps=(_stage(wanted, limits),),
            depends_on=("prefetch",) if nodes else (),
            on_failure=OnFailure.COMPENSATE,
            compensate=(MapStep(id=UNSTAGE, items=engines, steps=(forget,)),),
        )
    )
    return steps


def _arguments(wanted: VersionSet, limits: RolloutLimits) -> dict[str, object]:
    said: dict[str, object] = {"version": wanted.version, "artifact": wanted.parts[0].artifact}
    if len(wanted.parts) > 1:
        said["parts"] = {part.key: part.artifact for part in wanted.parts}
    return said if limits.check else {**said, "check": False}


def _stage(wanted: VersionSet, limits: RolloutLimits) -> CallStep:
    return CallStep(
        id="bring",
        engine="${item}",
        verb=STAGE,
        arguments=_arguments(wanted, limits),
        timeout_s=limits.stage_s,
    )


def _change(wanted: VersionSet, limits: RolloutLimits) -> CallStep:
    return CallStep(
        id="ask",
        engine="${item}",
        verb=SWITCH,
        arguments={"version": wanted.version},
        timeout_s=limits.switch_s,
    )


def _unstage(limits: RolloutLimits, engine: str) -> CallStep:
    return CallStep(
        id="forget",
        engine=engine,
        verb=UNSTAGE,
        timeout_s=limits.switch_s,
        on_failure=OnFailure.CONTINUE,
    )


# ---- the change --------------------------------------------------------------------------------


def _switch(
    wanted: VersionSet, members: Sequence[Member], strategy: Strategy, limits: RolloutLimits
) -> SubPlanStep:
    """All or nothing: what is undone when any step of it fails."""
    engines = tuple(member.engine for member in members)
    steps = _waves(wanted, engines, strategy, limits) if members else []
    if members:
        waves = tuple(step.id for step in steps)
        artifact = wanted.parts[0].artifact
        serving = WaitEngines(
            id="serving",
            artifact=artifact,
            engines=engines,
            timeout_s=limits.switch_s,
            depends_on=waves,
        )
        steps.append(serving)
    moves = tuple(
        KeyMove(key=part.key, artifact=part.artifact, expect=part.expect) for part in wanted.parts
    )
    after = ("serving",) if members else ()
    steps.append(MoveKeysStep(id=MOVE, moves=moves, depends_on=after))
    inner = PlanSpec(name=SWITCH, steps=tuple(steps), concurrency_max=_at_once(members))
    undo = _undo(wanted, members, limits)
    return SubPlanStep(
        id=SWITCH,
        plan=inner,
        depends_on=(STAGE,) if members else (),
        on_failure=OnFailure.COMPENSATE,
        compensate=undo,
    )


def _waves(
    wanted: VersionSet, engines: tuple[str, ...], strategy: Strategy, limits: RolloutLimits
) -> list[Step]:
    body = (_change(wanted, limits),)
    match strategy:
        case AllAtOnce():
            return [MapStep(id="change", items=engines, steps=body)]
        case Rolling():
            at_once = strategy.at_once
            return [MapStep(id="change", items=engines, steps=body, concurrency_max=at_once)]
        case Canary():
            first, rest = engines[: strategy.count], engines[strategy.count :]
            soaks = _soaks(wanted, first, strategy)
            return [
                MapStep(id="canary", items=first, steps=body),
                *soaks,
                MapStep(
                    id="rest",
                    items=rest,
                    steps=body,
                    concurrency_max=strategy.at_once,
                    depends_on=tuple(soak.id for soak in soaks),
                ),
            ]


def _soaks(wanted: VersionSet, canaries: tuple[str, ...], strategy: Canary) -> list[SoakStep]:
    """One step that looks at the engines, and one for each topic."""
    artifact = wanted.parts[0].artifact
    watch = SoakStep(
        id="soak",
        for_s=strategy.soak_s,
        engines=canaries,
        artifact=artifact,
        depends_on=("canary",),
    )
    return [
        watch,
        *(
            SoakStep(
                id=f"health-{number}",
                for_s=strategy.soak_s,
                topic=health.topic,
                where=health.where,
                since="canary",
                checks=health.checks,
                count=health.count,
                depends_on=("canary",),
            )
            for number, health in enumerate(strategy.health, start=1)
        ),
    ]


def _undo(wanted: VersionSet, members: Sequence[Member], limits: RolloutLimits) -> tuple[Step, ...]:
    """Every engine goes back to what it served; one that did not change finds that it serves it."""
    artifact = wanted.parts[0].artifact
    known = [one for one in members if one.artifact and one.artifact != artifact]
    steps: list[Step] = []
    if known:
        items = tuple(_before(wanted, one) for one in known)
        steps.append(MapStep(id="undo", items=items, steps=_go_back(wanted, limits)))
    said: dict[str, object] = {"name": wanted.name, "version": wanted.version}
    said["engines"] = [one.engine for one in known]
    after = ("undo",) if known else ()
    steps.append(EmitStep(id="told", topic=ROLLED_BACK, data=said, depends_on=after))
    return tuple(steps)


def _before(wanted: VersionSet, member: Member) -> dict[str, object]:
    """An engine, and what it is asked to stage again: what it served, with all parts as far as the
    keys tell them."""
    before = {part.key: part.expect for part in wanted.parts if is_artifact_id(part.expect)}
    return {
        "engine": member.engine,
        "version": member.version,
        "artifact": member.artifact,
        "parts": before if wanted.parts[0].expect == member.artifact else {},
    }


def _go_back(wanted: VersionSet, limits: RolloutLimits) -> tuple[Step, ...]:
    engine, go_on = "${item.engine}", OnFailure.CONTINUE
    named = ("version", "artifact", *(("parts",) if len(wanted.parts) > 1 else ()))
    said: dict[str, object] = {name: f"${{item.{name}}}" for name in named}
    stage = CallStep(
        id="bring",
        engine=engine,
        verb=STAGE,
        arguments=said if limits.check else {**said, "check": False},
        timeout_s=limits.stage_s,
        on_failure=go_on,
    )
    switch = CallStep(
        id="back",
        engine=engine,
        verb=SWITCH,
        arguments={"version": "${item.version}"},
        timeout_s=limits.switch_s,
        on_failure=go_on,
        depends_on=(stage.id,),
    )
    forget = msgspec.structs.replace(_unstage(limits, engine), depends_on=(switch.id,))
    return (stage, switch, forget)


# ---- who came meanwhile ------------------------------------------------------------------------


def _bring_late(wanted: VersionSet, limits: RolloutLimits) -> list[Step]:
    artifact = wanted.parts[0].artifact
    go_on = OnFailure.CONTINUE
    stage = msgspec.structs.replace(_stage(wanted, limits), on_failure=go_on)
    follow = msgspec.structs.replace(
        _change(wanted, limits), on_failure=go_on, depends_on=(stage.id,)
    )
    return [
        FindEngines(id="newcomers", weights=wanted.name, unless=artifact, depends_on=(SWITCH,)),
        MapStep(
            id="late",
            items="${newcomers.engines}",
            steps=(stage, follow),
        ),
    ]


def previous_parts(moves: object) -> Mapping[str, str]:
    """What the keys pointed to before they moved, out of what the step that moved them gave; those
    that were new are left out."""
    found = moves if isinstance(moves, list | tuple) else ()
    return {
        str(one["key"]): str(one["previous"])
        for one in found
        if isinstance(one, Mapping) and one.get("previous")
    }
