"""`tcctl engine`: the inference engines, and the weights that they serve."""

from __future__ import annotations

from typing import Annotated

import typer

from tensorcast.cli.engines import describe_engine, table_engines
from tensorcast.cli.output import Answer, Result
from tensorcast.cli.session import session_of

app = typer.Typer(
    help="Inference engines, and the weights that they serve.",
    add_completion=False,
    rich_markup_mode=None,
)


@app.command()
def ls(
    call: typer.Context,
    every: Annotated[
        bool, typer.Option("--all", help="Also those that have stopped or were lost.")
    ] = False,
    node: Annotated[
        str | None, typer.Option(metavar="NODE", help="Only those that use this node's memory.")
    ] = None,
) -> Result:
    """List the engines that run, the last changed first."""
    session = session_of(call)
    with session.client() as client:
        found = client.api.engines(status="all" if every else None, node=node)
    return Answer(
        data=found,
        blocks=lambda: (table_engines(found, session.now()),),
        brief=tuple(one.engine for one in found),
    )


@app.command()
def show(
    call: typer.Context,
    engine: Annotated[
        str, typer.Argument(metavar="ENGINE", help="Its name, or the address where it answers.")
    ],
) -> Result:
    """Show one engine, and which weights it served from when to when."""
    with session_of(call).client() as client:
        info = client.api.engine(engine)
    return Answer(data=info, blocks=lambda: describe_engine(info), brief=(info.engine,))
