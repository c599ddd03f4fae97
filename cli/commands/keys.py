"""`tcctl keys`: who may talk to the NATS server of this machine's cluster, and by which key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tensorcast.cli.homes import choose_home
from tensorcast.cli.output import Answer, Note, Result, Table
from tensorcast.cli.session import session_of

if TYPE_CHECKING:
    from tensorcast.deploy.identities import KeyInfo

app = typer.Typer(
    help="Keys of the cluster: who may do what.", add_completion=False, rich_markup_mode=None
)
DataDir = Annotated[
    Path | None, typer.Option(help="The home of the cluster (default: of the context in use).")
]
Name = Annotated[str, typer.Argument(metavar="USER", help="The name of the user.")]


@app.command("ls")
def list_(call: typer.Context, data_dir: DataDir = None) -> Result:
    """List the keys, and the files that hold them."""
    from tensorcast.deploy import identities

    found = identities.list_keys(choose_home(session_of(call), data_dir))
    return _answer(found)


@app.command()
def rotate(
    call: typer.Context,
    identity: Annotated[
        str | None,
        typer.Argument(
            metavar="[IDENTITY]", help="As `ls` names it, or mover or user; default: all."
        ),
    ] = None,
    data_dir: DataDir = None,
) -> Result:
    """Replace keys by new ones, while the cluster works; nothing is lost."""
    from tensorcast.deploy import identities

    said: list[str] = []
    home = choose_home(session_of(call), data_dir)
    found = identities.rotate(home, identity, said.append)
    return Answer(data=found, blocks=lambda: [Note(f"{sentence}.") for sentence in said])


@app.command()
def add(
    call: typer.Context,
    user: Name,
    reader: Annotated[
        bool, typer.Option("--reader", help="May look at everything and change nothing.")
    ] = False,
    data_dir: DataDir = None,
) -> Result:
    """Make a key for another user: give them its file, in secret."""
    from tensorcast.deploy import identities

    home = choose_home(session_of(call), data_dir)
    return _answer((identities.add_user(home, user, is_reader=reader),))


@app.command()
def remove(call: typer.Context, user: Name, data_dir: DataDir = None) -> Result:
    """Take the key of a user away: their connections are closed."""
    from tensorcast.deploy import identities

    identities.remove_user(choose_home(session_of(call), data_dir), user)
    return Answer(data={"removed": user}, blocks=lambda: [Note(f"{user} has no key any more.")])


def _answer(found: tuple[KeyInfo, ...]) -> Answer:
    return Answer(
        data=found,
        blocks=lambda: [
            Table(
                titles=("identity", "role", "file"),
                rows=[(one.identity, one.role, one.file) for one in found],
                fold=frozenset({"file"}),
                empty="No keys.",
            )
        ],
        brief=tuple(one.file for one in found),
    )
