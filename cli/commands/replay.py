"""`tcctl replay`: the state as it was."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from tensorcast.cli.engines import table_engines
from tensorcast.cli.output import Answer, Block, Heading, Note, Result
from tensorcast.cli.session import session_of
from tensorcast.cli.tables import table_artifacts, table_keys, table_nodes, table_operations
from tensorcast.cli.units import parse_position
from tensorcast.schema.api import AuditQuery, ReplayInfo, ReplayQuery
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import Seq

if TYPE_CHECKING:
    from tensorcast.client import Client

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class Noun(StrEnum):
    ARTIFACT = "artifact"
    ENGINE = "engine"
    NODE = "node"
    OPERATION = "operation"
    PLAN = "plan"


@app.callback()
def root() -> None:
    """The state as it was."""


@app.command()
def replay(
    call: typer.Context,
    to: Annotated[
        str,
        typer.Option(metavar="SEQ|TIME", help="A position in the log, an RFC 3339 time, or 10m."),
    ],
    noun: Annotated[
        Noun | None,
        typer.Argument(metavar="artifact|engine|node|operation|plan", help="Only this."),
    ] = None,
    what: Annotated[str | None, typer.Argument(metavar="ID", help="Which one.")] = None,
) -> Result:
    """Show the state as it was at an earlier moment."""
    if noun is not None and what is None:
        raise InvalidArgument(f"Which {noun}?", hint=f"Add an id: `tcctl replay ... {noun} ID`.")
    session = session_of(call)
    position = parse_position(to, session.now())
    query = ReplayQuery(
        to_seq=Seq(position) if isinstance(position, int) else None,
        to_time=position if isinstance(position, datetime) else None,
        kind=noun.value if noun else None,
        what=what,
    )
    with session.client() as client:
        info = client.api.replay(query)
        moment = query.to_time or find_moment(client, info.at_seq) or session.now()
    return Answer(
        data=info,
        blocks=lambda: describe_state(info, moment),
        brief=tuple(one.id for one in info.artifacts),
    )


def find_moment(client: Client, seq: Seq) -> datetime | None:
    """When the event at a position happened: ages are told as they were then."""
    found = client.api.audit(AuditQuery(since=Seq(seq - 1), limit=1)) if seq > 0 else ()
    return found[0].at if found else None


def describe_state(info: ReplayInfo, now: datetime) -> Sequence[Block]:
    """Everything that there was at the moment `now`, noun by noun; what there was none of is left
    out."""
    parts = (
        ("Artifacts", table_artifacts(info.artifacts, now)),
        ("Keys", table_keys(info.keys)),
        ("Nodes", table_nodes(info.nodes)),
        ("Operations", table_operations(info.operations, now)),
        ("Engines", table_engines(info.engines, now)),
    )
    blocks: list[Block] = [Note(f"The state after event {info.at_seq}:")]
    for title, table in parts:
        if table.rows:
            blocks += [Heading(title), table]
    if len(blocks) == 1:
        blocks.append(Note("Nothing was there."))
    return blocks
