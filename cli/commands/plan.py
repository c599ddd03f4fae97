"""`tcctl plan`: programs of operations."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tensorcast.cli.exits import Failed, Usage
from tensorcast.cli.output import Answer, Flow, Note, Result, Table
from tensorcast.cli.plans import (
    describe_forecast,
    describe_plan,
    shorten_plan,
    table_plans,
    table_steps_of,
)
from tensorcast.cli.session import Session, session_of
from tensorcast.cli.units import parse_seconds
from tensorcast.client.handles import OUTAGE_S_MAX
from tensorcast.client.plan_files import inspect_plan, parse_plan
from tensorcast.client.plan_graph import draw_dot, draw_mermaid, draw_svg, draw_text, fold_items
from tensorcast.client.plan_handles import OVER, failure_of
from tensorcast.schema.api_plans import PlanInfo, StepInfo
from tensorcast.schema.errors import (
    InvalidArgument,
    NotFound,
    TensorCastError,
    Timeout,
    Unavailable,
)
from tensorcast.schema.plan_checks import check_inputs
from tensorcast.schema.plans import PlanSpec
from tensorcast.schema.rollouts import ROLLOUT

if TYPE_CHECKING:
    from tensorcast.client import Client

app = typer.Typer(
    help="Plans: programs of operations, run step by step.",
    add_completion=False,
    rich_markup_mode=None,
)
FOR_EVER = "10d"
_UNTOLD = ("pending", 0)
File = Annotated[str, typer.Argument(metavar="FILE", help="A plan in YAML or JSON; - for stdin.")]
What = Annotated[
    str, typer.Argument(metavar="PLAN", help="Its id, the beginning of its id, or its name.")
]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="NAME=VALUE", help="An input; a value in JSON, or a text."),
]
Limit = Annotated[str, typer.Option(metavar="TIME", help="Give up after so long.")]


class Picture(StrEnum):
    TEXT = "text"
    MERMAID = "mermaid"
    DOT = "dot"
    SVG = "svg"


@app.command()
def validate(
    call: typer.Context,
    file: File,
    inputs: Inputs = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Look at the plan alone, not at the cluster.")
    ] = False,
) -> Result:
    """Check a plan: form, references, types, cycles, and what this cluster cannot do."""
    spec, faults = inspect_plan(_read(file))
    session, alone = session_of(call), ""
    given = parse_inputs(spec, inputs) if spec is not None else {}
    if spec is not None:
        faults = (*faults, *check_inputs(spec, given))
    if spec is not None and not offline:
        try:
            with session.client() as client:
                faults = tuple(dict.fromkeys((*faults, *client.api.check_plan(spec, given))))
        except Unavailable as error:
            alone = f"Only the plan itself was looked at, not the cluster: {error.message}"
            print(alone, file=session.world.err)
    count = f"{len(faults)} fault{'s' if len(faults) > 1 else ''}"
    return Answer(
        data={"ok": not faults, "faults": list(faults), **({"note": alone} if alone else {})},
        blocks=lambda: tuple(Note(one) for one in faults) or (Note("The plan makes sense."),),
        brief=faults,
        error=Failed(f"The plan has {count}.") if faults else None,
    )


@app.command()
def explain(call: typer.Context, file: File, inputs: Inputs = None) -> Result:
    """Show what a plan would do: steps, bytes, sources and the time they take. Nothing happens."""
    spec = parse_plan(_read(file))
    with session_of(call).client() as client:
        info = client.api.explain_plan(spec, parse_inputs(spec, inputs))
    return Answer(data=info, blocks=lambda: describe_forecast(info), brief=(info.state,))


@app.command()
def apply(
    call: typer.Context,
    file: File,
    inputs: Inputs = None,
    dedup_id: Annotated[
        str, typer.Option(metavar="TEXT", help="Applied again under it, it is the same plan.")
    ] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is over.")] = False,
    timeout: Limit = FOR_EVER,
) -> Result:
    """Have a plan run; it goes on without this command."""
    session = session_of(call)
    spec = parse_plan(_read(file))
    with session.client() as client:
        run = client.apply(spec, parse_inputs(spec, inputs), dedup_id=dedup_id)
        if not wait:
            return _done(run.info, "is submitted")
        with session.progress(f"plan {spec.name}") as bar:
            run.settle(
                parse_seconds(timeout),
                report=lambda info: bar.advance_to(info.steps_ended, info.steps_known),
            )
        info = run.info
    return _describe(info)


@app.command()
def ls(
    call: typer.Context,
    status: Annotated[
        str | None, typer.Option(help="running, paused, succeeded, failed or cancelled.")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="At most so many.")
    ] = 1000,
) -> Result:
    """List the plans, the last submitted first."""
    session = session_of(call)
    with session.client() as client:
        found = client.api.plans(status=status, limit=limit)
    return Answer(
        data=found,
        blocks=lambda: (table_plans(found, session.now()),),
        brief=tuple(one.id for one in found),
    )


@app.command()
def show(call: typer.Context, plan: What) -> Result:
    """Show a plan and all its steps."""
    with session_of(call).client() as client:
        info = client.api.plan(plan)
    return Answer(data=info, blocks=lambda: describe_plan(info), brief=(info.id,))


@app.command()
def watch(call: typer.Context, plan: What, timeout: Limit = FOR_EVER) -> Result:
    """Print the steps of a plan as they begin and end, until it is over."""
    session = session_of(call)
    limit_s = parse_seconds(timeout)
    return Flow(
        pages=_changes(session, plan, limit_s),
        table=_table_changes,
        brief=lambda item: f"{item.id} {item.status}" if isinstance(item, StepInfo) else "",
        empty="No steps.",
    )


def _table_changes(page: Sequence[object]) -> Table:
    rows = [
        (one.id, one.status, one.fault.detail if one.fault else one.reason)
        if isinstance(one, StepInfo)
        else (one.name, one.state, one.fault.detail if one.fault else one.reason)
        for one in page
        if isinstance(one, StepInfo | PlanInfo)
    ]
    return Table(titles=("step", "status", "why"), rows=rows, fold=frozenset({"step", "why"}))


def _changes(session: Session, plan: str, limit_s: float) -> Iterator[Sequence[object]]:
    """What is new about the steps, page by page; the plan itself last. Raises Timeout, and the
    error with which the plan ended."""
    told: dict[str, tuple[str, int]] = {}
    deadline = time.monotonic() + limit_s
    with session.client() as client:
        info = client.api.plan(plan)
        while True:
            news = [s for s in info.steps if told.get(s.id, _UNTOLD) != (s.status, s.attempt)]
            told |= {step.id: (step.status, step.attempt) for step in news}
            if news:
                yield news
            if info.state in OVER:
                yield (info,)
                break
            if time.monotonic() > deadline:
                raise Timeout(f"Plan {info.name!r} is not over.", hint="It goes on.")
            info = _wait_on(client, info, deadline)
    error = failure_of(info)
    if error is not None:
        raise Failed(error.message, hint=error.hint)


def _wait_on(client: Client, info: PlanInfo, deadline: float) -> PlanInfo:
    """The plan as it goes on. A control plane that is away is waited for, OUTAGE_S_MAX at most."""
    patience = min(deadline, time.monotonic() + OUTAGE_S_MAX)
    while True:
        try:
            return client.api.wait_plan(info.id, since=info.seq)
        except (Unavailable, Timeout):
            if time.monotonic() > patience:
                raise
            time.sleep(0.2)


@app.command()
def cancel(
    call: typer.Context,
    plan: What,
    reason: Annotated[str, typer.Option(help="Told in the log.")] = "asked by a user",
) -> Result:
    """Cancel a plan, with what it copies. What it has done stays done."""
    with session_of(call).client() as client:
        client.api.cancel_plan(plan, reason=reason)
        info = client.api.plan(plan)
    return _done(info, "is cancelled", *_left_behind(info))


@app.command()
def pause(
    call: typer.Context,
    plan: What,
    reason: Annotated[str, typer.Option(help="Told in the log.")] = "",
) -> Result:
    """Let no step of a plan begin until it is resumed; what runs goes on."""
    with session_of(call).client() as client:
        client.api.pause_plan(plan, reason=reason)
        return _done(client.api.plan(plan), "is paused")


@app.command()
def resume(call: typer.Context, plan: What) -> Result:
    """Let the steps of a paused plan begin again."""
    with session_of(call).client() as client:
        client.api.resume_plan(plan)
        return _done(client.api.plan(plan), "goes on")


@app.command()
def graph(
    call: typer.Context,
    plan: Annotated[
        str, typer.Argument(metavar="FILE|PLAN", help="A plan in a file, or one that was applied.")
    ],
    picture: Annotated[
        Picture, typer.Option("--format", help="text, mermaid, dot, or svg (needs graphviz).")
    ] = Picture.TEXT,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Write it there.")] = None,
) -> Result:
    """Draw a plan; one that was applied with how far it is."""
    spec, statuses = _find(call, plan)
    draw = {
        Picture.TEXT: draw_text,
        Picture.MERMAID: draw_mermaid,
        Picture.DOT: draw_dot,
        Picture.SVG: draw_svg,
    }[picture]
    drawn = draw(spec, statuses)
    if out is not None:
        try:
            Path(out).write_text(drawn)
        except OSError as error:
            raise InvalidArgument(f"{out} cannot be written: {error.strerror}.") from error
    note = f"{out} is written." if out is not None else drawn.rstrip("\n")
    data = {"format": picture.value, "path": out, "picture": None if out else drawn}
    return Answer(data=data, blocks=lambda: (Note(note),), brief=(note,))


def _find(call: typer.Context, plan: str) -> tuple[PlanSpec, Mapping[str, str]]:
    if plan == "-" or Path(plan).is_file():
        return parse_plan(_read(plan)), {}
    with session_of(call).client() as client:
        info = client.api.plan(plan)
    if info.spec is None:
        raise NotFound(f"Plan {plan!r} was told without its program.")
    return info.spec, fold_items(info.spec, {step.id: step.status for step in info.steps})


def _read(file: str) -> str:
    if file == "-":
        return sys.stdin.read()
    try:
        return Path(file).read_text()
    except FileNotFoundError as error:
        raise NotFound(f"There is no file {file}.", hint="Give the path of a plan.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{file} cannot be read: {error}.") from error


def parse_inputs(spec: PlanSpec, given: Sequence[str] | None) -> dict[str, object]:
    """The inputs on a command line. A value is JSON where the plan does not want a text. Raises
    Usage."""
    found: dict[str, object] = {}
    for one in given or ():
        name, equals, text = one.partition("=")
        if not equals:
            raise Usage(f"{one!r} is no input.", hint="Write --input NAME=VALUE.")
        wanted = spec.inputs.get(name)
        found[name] = _value(text, wanted.type.value if wanted else "any")
    return found


def _value(text: str, wanted: str) -> object:
    if wanted in ("integer", "number", "boolean", "list", "mapping", "nodes", "engines", "any"):
        try:
            value: object = json.loads(text)
        except ValueError:
            return text.split(",") if wanted in ("nodes", "engines", "list") else text
        return value
    return text


def _describe(info: PlanInfo) -> Answer:
    error = failure_of(info)
    told: TensorCastError | None = Failed(error.message, hint=error.hint) if error else None
    return Answer(
        data=info,
        blocks=lambda: (Note(f"{shorten_plan(info.id)} {info.state}."), table_steps_of((info,))),
        brief=(info.id,),
        error=told,
    )


def _left_behind(info: PlanInfo) -> Sequence[str]:
    """What a plan that is cancelled leaves as it is, where that matters."""
    name = info.labels.get(ROLLOUT)
    if not name:
        return ()
    return (
        "That undoes nothing: each engine keeps the weights that it has now."
        f" `tcctl rollout undo {name}` takes all of them back.",
    )


def _done(info: PlanInfo, words: str, *further: str) -> Answer:
    notes = (f"{shorten_plan(info.id)} {words}.", *further)
    return Answer(data=info, blocks=lambda: tuple(map(Note, notes)), brief=(info.id,))
