"""Roll-outs of new weights to engines; part of `AsyncClient`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from tensorcast.client.plan_handles import AsyncPlanRun
from tensorcast.schema.api import EngineInfo, Executed
from tensorcast.schema.commands import MoveKey
from tensorcast.schema.errors import Conflict, InvalidArgument, NotFound
from tensorcast.schema.ids import ArtifactId, Key, family_of, number_of, parse_key
from tensorcast.schema.plans import MOVES_MAX, MoveKeysStep, all_steps
from tensorcast.schema.rollouts import (
    MOVED,
    PREVIOUS,
    ROLLOUT,
    UNDOES,
    VERSION,
    AllAtOnce,
    Member,
    Part,
    RolloutLimits,
    Strategy,
    VersionSet,
    plan_rollout,
    previous_parts,
    rollout_dedup,
)

if TYPE_CHECKING:
    from tensorcast.client.api import ControlPlane
    from tensorcast.client.naming import What
    from tensorcast.client.position import Position
    from tensorcast.schema.api_plans import PlanInfo
    from tensorcast.schema.plans import PlanSpec

OPEN: Final = ("running", "paused", "cancelling")
CANCEL_S: Final = 60.0
READS_MAX: Final = 100
_AT_ONCE: Final = AllAtOnce()
_LIMITS: Final = RolloutLimits()


class _Client(Protocol):
    @property
    def api(self) -> ControlPlane: ...

    @property
    def position(self) -> Position: ...

    async def plan_roll_out(
        self,
        version: str,
        *,
        parts: Mapping[str, What] | None = None,
        engines: Sequence[str] | None = None,
        strategy: Strategy = _AT_ONCE,
        limits: RolloutLimits = _LIMITS,
    ) -> PlanSpec: ...

    async def roll_out(
        self,
        version: str,
        *,
        parts: Mapping[str, What] | None = None,
        engines: Sequence[str] | None = None,
        strategy: Strategy = _AT_ONCE,
        limits: RolloutLimits = _LIMITS,
    ) -> AsyncPlanRun: ...

    async def roll_outs(self, name: str | None = None) -> tuple[PlanInfo, ...]: ...


class AsyncRolloutCalls:
    """New weights for engines that serve: see docs/weights.md."""

    async def roll_out(
        self: _Client,
        version: str,
        *,
        parts: Mapping[str, What] | None = None,
        engines: Sequence[str] | None = None,
        strategy: Strategy = _AT_ONCE,
        limits: RolloutLimits = _LIMITS,
    ) -> AsyncPlanRun:
        """Brings a version of weights (`policy@7`) to the engines that serve a version of them (or
        to `engines`, in this order), has them change to it as `strategy` says, and then points the
        key `policy` to it; all of it or nothing. Returns the plan that does so, at once.

        `parts` are the keys that move together, and what each points to then (a key or id); without
        it there is one, the name of the weights. Who asks for the same roll-out at the same moment
        gets the same one. Raises NotFound, InvalidArgument, and Conflict while another roll-out of
        these weights is under way.
        """
        return await _begin(
            self,
            family_of(Key(version)),
            lambda: self.plan_roll_out(
                version, parts=parts, engines=engines, strategy=strategy, limits=limits
            ),
        )

    async def plan_roll_out(
        self: _Client,
        version: str,
        *,
        parts: Mapping[str, What] | None = None,
        engines: Sequence[str] | None = None,
        strategy: Strategy = _AT_ONCE,
        limits: RolloutLimits = _LIMITS,
    ) -> PlanSpec:
        """The plan of a roll-out, which is not begun: to look at (`explain`), or to change."""
        name = family_of(parse_key(version))
        if name == version:
            raise InvalidArgument(
                f"{version!r} is no version.", hint="Give one, as `publish` returns it: policy@7."
            )
        wanted = VersionSet(
            name=name,
            version=version,
            parts=tuple(
                [
                    await _part(self.api, key, what)
                    for key, what in (parts or {name: version}).items()
                ]
            ),
        )
        members = await _members(self.api, name, engines)
        late = engines is None
        return plan_rollout(wanted, members, strategy, limits=limits, late=late)

    async def roll_outs(self: _Client, name: str | None = None) -> tuple[PlanInfo, ...]:
        """The roll-outs (of these weights), the last one first."""
        return tuple(
            one
            for one in await self.api.plans(label=ROLLOUT)
            if ROLLOUT in one.labels and name in (None, one.labels[ROLLOUT])
        )

    async def move_keys(
        self: _Client, moves: Mapping[str, What], *, expect: Mapping[str, What | None] | None = None
    ) -> Executed:
        """Points several keys to artifacts, all at once or none of them. A key in `expect` must
        point to what stands there (None: to nothing); any other one may point to anything. Raises
        Conflict, NotFound, InvalidArgument."""
        if not 0 < len(moves) <= MOVES_MAX:
            raise InvalidArgument(f"1 to {MOVES_MAX} keys can move together.")
        await self.position.settled()
        wanted = dict(expect or {})
        commands = []
        for key, what in moves.items():
            if key in wanted:
                present = await self.api.expected(wanted[key])
            else:
                present = await _present(self.api, key)
            artifact = await self.api.artifact_id(what)
            commands.append(MoveKey(key=parse_key(key), artifact=artifact, expect=present))
        return await self.api.execute(commands[0], *commands[1:])

    async def read_keys(self: _Client, keys: Sequence[str]) -> dict[str, ArtifactId | None]:
        """What several keys point to at one moment (None: to nothing): never some before and some
        after a `move_keys`. Raises Conflict when they never rest, Unavailable."""
        await self.position.settled()
        seen: list[tuple[int, ArtifactId | None]] = []
        for _ in range(READS_MAX):
            # Whoever sees one move of an append is told all of them from then on: so what two
            # rounds agree on was so between them.
            found = [await _look_at(self.api, key) for key in keys]
            if found == seen:
                return {key: artifact for key, (_, artifact) in zip(keys, found, strict=True)}
            seen = found
        raise Conflict("The keys move all the time.", hint="Read them again.", retryable=True)

    async def undo_roll_out(
        self: _Client, name: str, *, strategy: Strategy = _AT_ONCE, limits: RolloutLimits = _LIMITS
    ) -> AsyncPlanRun:
        """Undoes the last roll-out of these weights: one that is under way is cancelled, and all
        engines go back; after one that is done, to what the keys pointed to before it. Returns the
        plan that does so. Raises NotFound when there is nothing to go back to, or nothing to undo:
        the last one failed and went back by itself; Conflict when the last one was an undo: that is
        never undone, but what it took back can be rolled out again."""
        found = _without_vain_undos(await self.roll_outs(name))
        if not found:
            raise NotFound(f"There was no roll-out of {name!r}.", hint="`tcctl rollout ls`.")
        _refuse_second(found[0])
        info = await self.api.plan(found[0].id)
        if info.state in OPEN:
            run = AsyncPlanRun(self.api, info)
            await run.cancel("the roll-out is undone")
            info = await run.settle(CANCEL_S)
        elif info.state == "failed":
            await _refuse_undone(self.api, name, info)
        parts = await _parts_before(self.api, info)
        version = info.labels.get(PREVIOUS) or await _version_of(self.api, name, parts)

        async def make() -> PlanSpec:
            spec = await self.plan_roll_out(version, parts=parts, strategy=strategy, limits=limits)
            labels = {**spec.labels, UNDOES: info.labels[VERSION]}
            return msgspec.structs.replace(spec, labels=labels)

        return await _begin(self, family_of(Key(version)), make)


async def _begin(
    client: _Client, name: str, make: Callable[[], Awaitable[PlanSpec]]
) -> AsyncPlanRun:
    """Begins a roll-out of these weights unless one is under way. Raises Conflict, and what `make`
    raises."""
    await client.position.settled()
    earlier = await client.roll_outs(name)
    under_way = [one for one in earlier if one.state in OPEN]
    if under_way:
        raise Conflict(
            f"A roll-out of {name} is under way: {under_way[0].labels[VERSION]}.",
            hint=f"Wait for plan {under_way[0].id}, or undo it first.",
        )
    spec = await make()
    # Whoever has seen the same last one submits under the same id: the log takes one of them.
    once = rollout_dedup(name, earlier[0].id if earlier else None)
    try:
        plan = await client.api.submit_plan(spec, dedup_id=once)
    except Conflict as error:
        raise Conflict(
            f"Another roll-out of {name} has just begun.",
            hint=f"`tcctl rollout show {name}` shows it: wait for it, or undo it first.",
        ) from error
    return AsyncPlanRun(client.api, await client.api.plan(plan))


def _without_vain_undos(found: Sequence[PlanInfo]) -> Sequence[PlanInfo]:
    """The roll-outs without the last ones that should have taken one back and did not: that one is
    still to be undone."""
    vain = ("failed", "cancelled")
    for place, one in enumerate(found):
        if UNDOES not in one.labels or one.state not in vain:
            return found[place:]
    return ()


def _refuse_second(last: PlanInfo) -> None:
    """Raises Conflict when the last roll-out took another one back: undone, it would install what
    was just taken back."""
    undone = last.labels.get(UNDOES)
    if undone is None:
        return
    version = last.labels[VERSION]
    if last.state in OPEN:
        raise Conflict(
            f"{undone} is being taken back to {version} already.",
            hint=f"`tcctl plan watch {last.id}` shows how far that is.",
        )
    raise Conflict(
        f"{undone} was taken back to {version} already.",
        hint=f"To install {undone} again: `tcctl rollout start {undone}`.",
    )


async def _refuse_undone(api: ControlPlane, name: str, info: PlanInfo) -> None:
    """Raises NotFound when a roll-out that failed has left nothing behind."""
    version = info.labels[VERSION]
    if _has_moved(info) or any(one.version == version for one in await api.engines()):
        return
    raise NotFound(
        f"There is nothing to undo: the roll-out of {version} failed, and no engine serves it.",
        hint=f"`tcctl rollout show {name}` tells why it failed, and what was undone then.",
    )


def _has_moved(info: PlanInfo) -> bool:
    return any(step.id == MOVED and step.status == "succeeded" for step in info.steps)


async def _part(api: ControlPlane, key: str, what: What) -> Part:
    artifact = await api.artifact_id(what)
    return Part(key=key, artifact=artifact, expect=await _present(api, key) or "absent")


async def _look_at(api: ControlPlane, key: str) -> tuple[int, ArtifactId | None]:
    """How often a key has moved, and what it points to."""
    try:
        info = await api.key(parse_key(key))
    except NotFound:
        return 0, None
    return info.version, info.artifact


async def _present(api: ControlPlane, key: str) -> ArtifactId | None:
    """What a key points to."""
    return (await _look_at(api, key))[1]


async def _members(
    api: ControlPlane, name: str, engines: Sequence[str] | None
) -> tuple[Member, ...]:
    """The engines that are meant. Raises NotFound for one that does not run."""
    up = {str(one.engine): one for one in await api.engines()}
    if engines is None:
        serving = [one for one in up.values() if family_of(Key(one.version)) == name]
        return tuple(member_of(one) for one in sorted(serving, key=lambda one: one.engine))
    for engine in engines:
        if engine not in up:
            raise NotFound(
                f"No engine {engine!r} runs.", hint="`tcctl engine ls` shows which there are."
            )
    return tuple(member_of(up[engine]) for engine in engines)


def member_of(info: EngineInfo) -> Member:
    """An engine, as a roll-out knows it."""
    return Member(
        engine=info.engine,
        node=info.node,
        version=info.version,
        artifact=info.artifact or "",
    )


async def _parts_before(api: ControlPlane, info: PlanInfo) -> dict[str, str]:
    """What the keys of a roll-out pointed to before it, as far as they did. Raises NotFound."""
    moved = next((step for step in info.steps if step.id == MOVED), None)
    if moved is not None and moved.status == "succeeded":
        parts = dict(previous_parts(moved.outputs.get("moves")))
    else:
        parts = {}
        for key in _keys_of(info):
            present = await _present(api, key)
            parts |= {key: present} if present else {}
    if not parts:
        raise NotFound(
            f"Before {info.labels[VERSION]} the keys pointed to nothing.",
            hint="Publish what shall serve, and roll it out.",
        )
    return parts


def _keys_of(info: PlanInfo) -> tuple[str, ...]:
    steps = all_steps(info.spec.steps) if info.spec is not None else ()
    return tuple(
        move.key for step in steps if isinstance(step, MoveKeysStep) for move in step.moves
    )


async def _version_of(api: ControlPlane, name: str, parts: Mapping[str, str]) -> str:
    """What these weights are called as a version of a name. Raises NotFound."""
    artifact = parts.get(name) or next(iter(parts.values()))
    keys = [key for key in (await api.artifact(artifact)).keys if family_of(key) == name != key]
    if not keys:
        raise NotFound(
            f"Artifact {artifact} is no version of {name!r} any more.",
            hint=f"Give it a key {name}@N, and roll that out.",
        )
    return max(keys, key=number_of)
