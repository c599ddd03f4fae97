"""`tcctl doctor`: what is wrong with this machine, and how to mend it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tensorcast.cli.exits import Exit
from tensorcast.cli.homes import choose_home
from tensorcast.cli.output import Answer, Note, Result, Table
from tensorcast.cli.session import session_of

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class Subject(StrEnum):
    """What can be looked at more closely."""

    RDMA = "rdma"


@app.callback()
def root() -> None:
    """What is wrong with this machine."""


@app.command()
def doctor(
    call: typer.Context,
    subject: Annotated[
        Subject | None,
        typer.Argument(
            help="`rdma`: which adapters a mover would use, and why.", show_default=False
        ),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where the cluster of this machine keeps its data.")
    ] = None,
) -> Result:
    """Check this machine and say how to mend what is wrong."""
    from tensorcast.deploy.doctor import check, summarize

    if subject is Subject.RDMA:
        from tensorcast.deploy.rdma import conclude, examine

        checks = examine()
        verdict = f"{conclude(checks)} {summarize(checks)}"
    else:
        checks = check(choose_home(session_of(call), data_dir))
        verdict = summarize(checks)
    has_failed = any(one.state == "fail" for one in checks)
    table = Table(
        titles=("check", "state", "found", "mend"),
        rows=[(one.name, one.state, one.found, one.mend) for one in checks],
        fold=frozenset({"found", "mend"}),
    )
    return Answer(
        data=checks,
        blocks=lambda: (table, Note(verdict)),
        brief=tuple(one.name for one in checks if one.state == "fail"),
        exit_code=Exit.FAILED if has_failed else Exit.DONE,
    )
