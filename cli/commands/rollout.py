"""`tcctl rollout`: new weights to the engines that serve an older version."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final

import msgspec
import typer

from tensorcast.cli.exits import Failed, Usage
from tensorcast.cli.output import Answer, Note, Result
from tensorcast.cli.plans import describe_plan, shorten_plan, table_plans, table_steps_of
from tensorcast.cli.session import Session, session_of
from tensorcast.cli.units import parse_seconds
from tensorcast.client.plan_handles import failure_of
from tensorcast.client.plan_sync import PlanRun
from tensorcast.schema.api_plans import PlanInfo
from tensorcast.schema.errors import NotFound
from tensorcast.schema.plans import Check
from tensorcast.schema.rollouts import (
    ROLLOUT,
    AllAtOnce,
    Canary,
    Health,
    Rolling,
    RolloutLimits,
    Strategy,
)

app = typer.Typer(
    help="Roll-outs: new weights to the engines that serve them.",
    add_completion=False,
    rich_markup_mode=None,
)
FOR_EVER = "10d"
_CHECK: Final = re.compile(r"([A-Za-z0-9_.-]+)(\??)(<=|>=|!=|=|<|>)(.+)")
_OPS: Final = {"<=": "le", ">=": "ge", "!=": "ne", "=": "eq", "<": "lt", ">": "gt"}
Name = Annotated[str, typer.Argument(metavar="NAME", help="Weights without their version: policy.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until it is over.")]
Limit = Annotated[str, typer.Option(metavar="TIME", help="Give up waiting after so long.")]


class Way(StrEnum):
    ALL = "all"
    ROLLING = "rolling"
    CANARY = "canary"


Chosen = Annotated[Way, typer.Option("--strategy", help="Who changes when.")]
AtOnce = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="So many engines change at a time (rolling, canary)."),
]


@app.command()
def start(
    call: typer.Context,
    what: Annotated[str, typer.Argument(metavar="VERSION", help="As in policy@7.")],
    engines: Annotated[
        str | None,
        typer.Option(metavar="NAME[,...]", help="These, in this order; else all that serve it."),
    ] = None,
    parts: Annotated[
        list[str] | None,
        typer.Option("--part", metavar="KEY=WHAT", help="A key that moves with the others."),
    ] = None,
    strategy: Chosen = Way.ALL,
    at_once: AtOnce = None,
    canaries: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="canary: so many go first (default: 1)."),
    ] = None,
    soak: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="canary: so long they must do well (default: 60s)."),
    ] = None,
    health: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="By these signals; without --check none may come."),
    ] = None,
    checks: Annotated[
        list[str] | None,
        typer.Option(
            "--check", metavar="FIELD<=N", help="What each signal must say (FIELD?<=N: if it does)."
        ),
    ] = None,
    check_bytes: Annotated[
        bool, typer.Option(help="Engines compare all bytes with their digests once more.")
    ] = True,
    wait: Wait = False,
    timeout: Limit = FOR_EVER,
) -> Result:
    """Roll a version out; it goes on without this command. `tcctl plan watch` follows it."""
    session = session_of(call)
    canary = {"--canaries": canaries, "--soak": soak, "--health": health, "--check": checks}
    _refuse_needless(strategy, at_once, canary)
    how = _strategy(strategy, at_once, canaries, soak, _health(health, checks))
    together = dict(map(_split, parts)) if parts else None
    with session.client() as client:
        run = client.roll_out(
            what,
            parts=together,
            engines=engines.split(",") if engines else None,
            strategy=how,
            limits=RolloutLimits(check=check_bytes),
        )
        return _follow(session, run, "is begun", wait, timeout)


@app.command()
def ls(call: typer.Context, name: Annotated[str | None, typer.Argument()] = None) -> Result:
    """List the roll-outs (of these weights), the last one first."""
    session = session_of(call)
    with session.client() as client:
        found = client.roll_outs(name)
    return Answer(
        data=found,
        blocks=lambda: (table_plans(found, session.now()),),
        brief=tuple(one.id for one in found),
    )


@app.command()
def show(call: typer.Context, name: Name) -> Result:
    """Show the last roll-out of these weights, step by step."""
    with session_of(call).client() as client:
        found = client.roll_outs(name)
        if not found:
            raise NotFound(
                f"There was no roll-out of {name!r}.", hint="`tcctl rollout ls` shows which were."
            )
        info = client.api.plan(found[0].id)
    return Answer(data=info, blocks=lambda: describe_plan(info), brief=(info.id,))


@app.command()
def undo(
    call: typer.Context,
    name: Name,
    strategy: Chosen = Way.ALL,
    at_once: AtOnce = None,
    wait: Wait = False,
    timeout: Limit = FOR_EVER,
) -> Result:
    """Undo the last roll-out of these weights: the engines and keys go back to what was before."""
    session = session_of(call)
    if strategy is Way.CANARY:
        raise Usage("What was there before needs no canary.", hint="Use all or rolling.")
    _refuse_needless(strategy, at_once, {})
    with session.client() as client:
        run = client.undo_roll_out(name, strategy=_strategy(strategy, at_once, None, None, ()))
        return _follow(session, run, "undoes it", wait, timeout)


def _refuse_needless(way: Way, at_once: int | None, canary: Mapping[str, object]) -> None:
    """Raises Usage for what belongs to another strategy: whoever says it means that one."""
    needless = [option for option, given in canary.items() if given]
    if needless and way is not Way.CANARY:
        verb = "is" if len(needless) == 1 else "are"
        raise Usage(f"{', '.join(needless)} {verb} for canaries.", hint="Say --strategy canary.")
    if way is Way.ALL and at_once is not None:
        raise Usage("All change at once: --at-once is for others.", hint="Say --strategy rolling.")


def _strategy(
    way: Way,
    at_once: int | None,
    canaries: int | None,
    soak: str | None,
    health: tuple[Health, ...],
) -> Strategy:
    match way:
        case Way.ALL:
            return AllAtOnce()
        case Way.ROLLING:
            return Rolling(at_once=at_once or 1)
        case Way.CANARY:
            soak_s = parse_seconds(soak or "60s")
            return Canary(count=canaries or 1, soak_s=soak_s, health=health, at_once=at_once)


def _health(topic: str | None, checks: list[str] | None) -> tuple[Health, ...]:
    if topic is None:
        if checks:
            raise Usage("Nothing says on which signals to look.", hint="Give --health TOPIC.")
        return ()
    return (Health(topic=topic, checks=tuple(map(parse_check, checks or ()))),)


def parse_check(text: str) -> Check:
    """What `ttft_s<=0.5` says; with `ttft_s?<=0.5` it may be absent. Raises Usage."""
    found = _CHECK.fullmatch(text)
    if found is None:
        raise Usage(f"{text!r} is no check.", hint="Write FIELD<=NUMBER, or =, !=, <, >, >=.")
    field, optional, op, value = found.groups()
    said = {"field": field, "op": _OPS[op], "value": _number(value), "optional": bool(optional)}
    return msgspec.convert(said, Check)


def _number(text: str) -> object:
    try:
        number = float(text)
    except ValueError:
        return text
    if not math.isfinite(number):
        raise Usage(f"Nothing can be compared with {text!r}.", hint="Give a finite number.")
    return number


def _split(part: str) -> tuple[str, str]:
    key, equals, what = part.partition("=")
    if not equals or not key or not what:
        raise Usage(f"{part!r} is no part.", hint="Write --part KEY=WHAT.")
    return key, what


def _follow(session: Session, run: PlanRun, words: str, wait: bool, timeout: str) -> Answer:
    if wait:
        with session.progress(run.name) as bar:
            run.settle(
                parse_seconds(timeout),
                report=lambda info: bar.advance_to(info.steps_ended, info.steps_known),
            )
        return _ended(run.info)
    info = run.info
    note = f"The roll-out of {info.labels.get(ROLLOUT, '')} {words}: {shorten_plan(info.id)}."
    return Answer(data=info, blocks=lambda: (Note(note),), brief=(info.id,))


def _ended(info: PlanInfo) -> Answer:
    error = failure_of(info)
    return Answer(
        data=info,
        blocks=lambda: (Note(f"{shorten_plan(info.id)} {info.state}."), table_steps_of((info,))),
        brief=(info.id,),
        error=Failed(error.message, hint=error.hint) if error else None,
    )
