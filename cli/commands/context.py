"""`tcctl context`: the clusters that this user knows, and which of them is in use."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from tensorcast.cli.completion import complete_contexts
from tensorcast.cli.output import Answer, Block, Fields, Note, Result, Table
from tensorcast.cli.session import Session, session_of
from tensorcast.client.context import (
    Context,
    config_folder,
    current_context,
    list_contexts,
    load_context,
)
from tensorcast.schema.errors import InvalidArgument, NotFound

app = typer.Typer(
    help="The clusters that you know, and which is in use.",
    add_completion=False,
    rich_markup_mode=None,
)
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The context.", autocompletion=complete_contexts)
]


class ContextLine(msgspec.Struct, frozen=True, kw_only=True):
    """A context by its name. `problem`: why it cannot be read; the rest is empty then."""

    name: str
    current: bool
    cluster: str = ""
    nats_url: str = ""
    home: str | None = None
    nodes: tuple[str, ...] = ()
    default_node: str | None = None
    problem: str = ""


@app.command()
def ls(call: typer.Context) -> Result:
    """List the contexts; the one in use has a star."""
    session = session_of(call)
    found = [_line(session, name) for name in list_contexts(session.world.environ)]
    return Answer(
        data=found,
        blocks=lambda: (_table(found),),
        brief=tuple(one.name for one in found),
    )


@app.command()
def use(call: typer.Context, name: Name) -> Result:
    """Make a context the one that is used when none is named."""
    from tensorcast.deploy.context import use_context

    environ = session_of(call).world.environ
    load_context(name, environ)
    use_context(config_folder(environ), name)
    line = _line(session_of(call), name)
    note = f"{name} is in use: cluster {line.cluster}."
    if environ.get("TENSORCAST_CONTEXT") or environ.get("TENSORCAST_NATS_URL"):
        note += " The environment of this shell names another cluster, and comes first."
    return Answer(data=line, blocks=lambda: (Note(note),), brief=(name,))


@app.command()
def show(
    call: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="The context (default: the one in use).",
            autocompletion=complete_contexts,
        ),
    ] = None,
) -> Result:
    """Show where a context leads."""
    session = session_of(call)
    chosen = name or session.options.context or current_context(session.world.environ)
    if not chosen:
        raise NotFound("No context is in use.", hint="`tcctl context use NAME` chooses one.")
    load_context(chosen, session.world.environ)
    line = _line(session, chosen)
    return Answer(data=line, blocks=lambda: _describe(line), brief=(line.name,))


def _line(session: Session, name: str) -> ContextLine:
    is_current = name == current_context(session.world.environ)
    try:
        found: Context = load_context(name, session.world.environ)
    except (InvalidArgument, NotFound) as error:
        return ContextLine(name=name, current=is_current, problem=error.message)
    return ContextLine(
        name=name,
        current=is_current,
        cluster=found.cluster,
        nats_url=found.nats_url,
        home=found.home,
        nodes=tuple(sorted(found.nodes)),
        default_node=found.default_node,
    )


def _table(found: list[ContextLine]) -> Table:
    return Table(
        titles=("name", "cluster", "nodes here", "home"),
        rows=[
            (
                f"{one.name} *" if one.current else one.name,
                one.cluster,
                ", ".join(one.nodes),
                one.problem or one.home or one.nats_url,
            )
            for one in found
        ],
        fold=frozenset({"nodes here", "home"}),
        empty="No context. `tcctl up` writes one.",
    )


def _describe(line: ContextLine) -> tuple[Block, ...]:
    pairs = (
        ("name", line.name),
        ("in use", "yes" if line.current else "no"),
        ("cluster", line.cluster),
        ("nats", line.nats_url),
        ("home", line.home or ""),
        ("nodes here", ", ".join(line.nodes)),
        ("default node", line.default_node or ""),
    )
    return (Fields(pairs),)
