"""`tcctl replay`: the state as it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated

import typer

from tensorcast.cli.changes import Noun, StepInfo, table_steps
from tensorcast.cli.engines import table_engines
from tensorcast.cli.output import Answer, Block, Flow, Heading, Note, Result
from tensorcast.cli.plans import table_plans, table_steps_of
from tensorcast.cli.session import Session, session_of
from tensorcast.cli.tables import table_artifacts, table_keys, table_nodes, table_operations
from tensorcast.cli.units import parse_position
from tensorcast.cli.walk import asker, walk
from tensorcast.schema.api import AuditQuery, ReplayInfo, ReplayQuery
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import Key, Seq, parse_node

STEPS_MAX = 10**9
app = typer.Typer(add_completion=False, rich_markup_mode=None)


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
        typer.Argument(metavar="artifact|engine|key|node|operation|plan", help="Only this."),
    ] = None,
    what: Annotated[str | None, typer.Argument(metavar="ID", help="Which one.")] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="At most so many things of a kind.")
    ] = 1000,
    step: Annotated[
        bool,
        typer.Option(
            "--step",
            help="Walk from there event by event, each with what it changed: forward and back on a"
            " terminal, forward to the end on a pipe.",
        ),
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="As --step, but at most so many events."),
    ] = None,
) -> Result:
    """Show the state as it was at an earlier moment."""
    if noun is not None and what is None:
        raise InvalidArgument(f"Which {noun}?", hint=f"Add an id: `tcctl replay ... {noun} ID`.")
    session = session_of(call)
    position = parse_position(to, session.now())
    if step or steps is not None:
        return _walk(session, position, noun, what, steps or STEPS_MAX)
    query = ReplayQuery(
        to_seq=Seq(position) if isinstance(position, int) else None,
        to_time=position if isinstance(position, datetime) else None,
        kind=noun.value if noun else None,
        what=what,
        limit=limit,
    )
    with session.client() as client:
        info = client.api.replay(query)
    moment = query.to_time or info.at or session.now()
    return Answer(
        data=info,
        blocks=lambda: describe_state(info, moment),
        brief=tuple(one.id for one in info.artifacts),
    )


def _walk(
    session: Session, position: int | datetime, noun: Noun | None, what: str | None, steps: int
) -> Flow:
    query = AuditQuery(
        artifact=what if noun is Noun.ARTIFACT else None,
        node=parse_node(what) if noun is Noun.NODE and what else None,
        key=Key(what) if noun is Noun.KEY and what else None,
        operation=what if noun is Noun.OPERATION else None,
        engine=what if noun is Noun.ENGINE else None,
        plan=what if noun is Noun.PLAN else None,
    )
    is_asked = session.world.is_terminal and session.world.inp.isatty()
    ask = asker(session.world.inp, session.world.err) if is_asked else None

    def pages() -> Iterator[Sequence[object]]:
        with session.client() as client:
            begin = client.api.moment(position).seq
            yield from walk(client, query, begin, steps, ask)

    return Flow(
        pages=pages(),
        table=lambda page: table_steps([one for one in page if isinstance(one, StepInfo)]),
        brief=lambda item: str(item.event.seq) if isinstance(item, StepInfo) else "",
        empty="No events.",
    )


def describe_state(info: ReplayInfo, now: datetime) -> Sequence[Block]:
    """Everything that there was at the moment `now`, noun by noun; what there was none of is left
    out."""
    parts = (
        ("Artifacts", table_artifacts(info.artifacts, now)),
        ("Keys", table_keys(info.keys)),
        ("Nodes", table_nodes(info.nodes)),
        ("Operations", table_operations(info.operations, now)),
        ("Engines", table_engines(info.engines, now)),
        ("Plans", table_plans(info.plans, now)),
        ("Steps", table_steps_of(info.plans)),
    )
    blocks: list[Block] = [Note(f"The state after event {info.at_seq}:")]
    for title, table in parts:
        total = info.totals.get(title.lower(), 0)
        if table.rows:
            few = len(table.rows)
            more = f" (the {few} that changed last, of {total})" if total > few else ""
            blocks += [Heading(title + more), table]
    if len(blocks) == 1:
        blocks.append(Note("Nothing was there."))
    if info.at_seq == info.last_seq and info.last_seq:
        blocks.append(Note("No event has come since: this is the present."))
    return blocks
