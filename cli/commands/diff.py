"""`tcctl diff`: what changed between two moments."""

from __future__ import annotations

from typing import Annotated

import typer

from tensorcast.cli.changes import Noun, describe_diff
from tensorcast.cli.output import Answer, Result
from tensorcast.cli.session import session_of
from tensorcast.cli.units import parse_position
from tensorcast.schema.errors import InvalidArgument

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback()
def root() -> None:
    """What changed between two moments."""


@app.command()
def diff(
    call: typer.Context,
    since: Annotated[
        str,
        typer.Option(
            "--from", metavar="SEQ|TIME", help="A position in the log, an RFC 3339 time, or 10m."
        ),
    ],
    to: Annotated[
        str, typer.Option("--to", metavar="SEQ|TIME", help="The later moment; now unless given.")
    ] = "now",
    noun: Annotated[
        Noun | None,
        typer.Argument(metavar="artifact|engine|key|node|operation|plan", help="Only about this."),
    ] = None,
    what: Annotated[str | None, typer.Argument(metavar="ID", help="Which one.")] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="At most so many things.")
    ] = 1000,
) -> Result:
    """Show what was added, removed and changed between two moments."""
    if noun is not None and what is None:
        raise InvalidArgument(f"Which {noun}?", hint=f"Add an id: `tcctl diff ... {noun} ID`.")
    session = session_of(call)
    now = session.now()
    with session.client() as client:
        info = client.api.diff(
            parse_position(since, now),
            parse_position(to, now),
            kind=noun.value if noun else None,
            what=what,
            limit=limit,
        )
    return Answer(
        data=info,
        blocks=lambda: describe_diff(info),
        brief=tuple(one.id for one in info.changes),
    )
