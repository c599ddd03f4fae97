"""`tcctl access`: who may do what with the keys of a namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tensorcast.cli.output import Answer, Note, Result, Table
from tensorcast.cli.session import session_of

if TYPE_CHECKING:
    from tensorcast.schema.api_access import AccessInfo

app = typer.Typer(
    help="Who may do what in which namespace.", add_completion=False, rich_markup_mode=None
)
Namespace = Annotated[
    str, typer.Argument(metavar="NAMESPACE", help="What keys begin with: team, for team/model@1.")
]
Who = Annotated[str, typer.Argument(metavar="USER", help="A user, or '*' for everybody.")]


@app.command("ls")
def list_(call: typer.Context) -> Result:
    """List the rules; a namespace without rules is open to all."""
    with session_of(call).client() as client:
        found = client.api.access()
    return _answer(found)


@app.command()
def grant(
    call: typer.Context,
    namespace: Namespace,
    user: Who,
    rights: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RIGHT]...", help="read (default), write, keys, plans, grant."),
    ] = None,
) -> Result:
    """Give rights. The first rule closes a namespace to all others, and gives you all rights."""
    with session_of(call).client() as client:
        client.api.grant_access(namespace, user, rights or ())
        found = client.api.access()
    return _answer(tuple(one for one in found if one.namespace == namespace))


@app.command()
def revoke(
    call: typer.Context,
    namespace: Namespace,
    user: Who,
    rights: Annotated[
        list[str] | None, typer.Argument(metavar="[RIGHT]...", help="Default: all.")
    ] = None,
) -> Result:
    """Take rights away. Without its last rule a namespace is open to all again."""
    with session_of(call).client() as client:
        client.api.revoke_access(namespace, user, rights or ())
        found = client.api.access()
    left = tuple(one for one in found if one.namespace == namespace)
    if left:
        return _answer(left)
    return Answer(data=left, blocks=lambda: [Note(f"Namespace {namespace} is open to all.")])


def _answer(found: tuple[AccessInfo, ...]) -> Answer:
    return Answer(
        data=found,
        blocks=lambda: [
            Table(
                titles=("namespace", "user", "rights"),
                rows=[(one.namespace, one.who, ", ".join(one.rights)) for one in found],
                empty="No rules: everything is open to all of the cluster.",
            )
        ],
        brief=tuple(f"{one.namespace} {one.who}" for one in found),
    )
