"""`tcctl key`: the names of artifacts, moved by compare-and-set."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from tensorcast.cli.output import Answer, Note, Result, shorten
from tensorcast.cli.session import session_of
from tensorcast.cli.tables import describe_key, table_keys

app = typer.Typer(help="The names of artifacts.", add_completion=False, rich_markup_mode=None)
Name = Annotated[str, typer.Argument(metavar="KEY", help="The key.")]


class KeyLine(msgspec.Struct, frozen=True, kw_only=True):
    """What `ls` prints of a key; `show` has its history too."""

    key: str
    artifact: str | None
    version: int


@app.command()
def ls(
    call: typer.Context,
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", max=1000, help="At most so many.")
    ] = 1000,
) -> Result:
    """List the keys, the last moved first."""
    with session_of(call).client() as client:
        found = client.api.keys(limit=limit)
    return Answer(
        data=[KeyLine(key=one.key, artifact=one.artifact, version=one.version) for one in found],
        blocks=lambda: (table_keys(found),),
        brief=tuple(one.key for one in found),
    )


@app.command()
def show(call: typer.Context, key: Name) -> Result:
    """Show what a key points to, and everything that it pointed to before."""
    with session_of(call).client() as client:
        info = client.api.key(key)
    return Answer(
        data=info,
        blocks=lambda: describe_key(info),
        brief=(info.artifact,) if info.artifact else (),
    )


@app.command(name="set")
def set_key(
    call: typer.Context,
    key: Name,
    artifact: Annotated[str, typer.Argument(metavar="ID", help="The artifact (a key works too).")],
    expect: Annotated[
        str | None,
        typer.Option(metavar="OLD", help="What it points to now; leave out if it is new."),
    ] = None,
) -> Result:
    """Point a key to an artifact, if it still points to what you expect."""
    with session_of(call).client() as client:
        old = client.api.artifact(expect).id if expect else None
        client.api.move_key(key, artifact, expect=old)
        info = client.api.key(key)
    return Answer(
        data=info,
        blocks=lambda: (Note(f"{key} points to {shorten(info.artifact)} (move {info.version})."),),
        brief=(info.key,),
    )


@app.command()
def rm(
    call: typer.Context,
    key: Name,
    expect: Annotated[
        str | None, typer.Option(metavar="OLD", help="Only if it points to this artifact.")
    ] = None,
) -> Result:
    """Remove a key; the artifact stays."""
    with session_of(call).client() as client:
        old = client.api.artifact(expect).id if expect else None
        before = client.api.key(key)
        client.api.remove_key(key, expect=old)
    info = msgspec.structs.replace(before, artifact=None, version=before.version + 1)
    sentence = f"{key} is removed; it pointed to {shorten(before.artifact)}."
    return Answer(data=info, blocks=lambda: (Note(sentence),), brief=(info.key,))
