"""`tcctl audit`: the log of everything that happened, and why it did."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Annotated

import msgspec
import typer

from tensorcast.cli import dead
from tensorcast.cli.causes import explain_chain, explain_why, read_pages, table_why
from tensorcast.cli.events import event_flow, table_chain
from tensorcast.cli.output import Answer, Note, Result
from tensorcast.cli.proofs import bring_back, export, verify
from tensorcast.cli.session import Session, session_of
from tensorcast.cli.units import parse_time
from tensorcast.schema.api import AuditQuery, EventInfo
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.events import EVENT_TYPES
from tensorcast.schema.ids import Key, Seq, Tier, parse_node

app = typer.Typer(
    help="The log of everything that happened.", add_completion=False, rich_markup_mode=None
)
app.command()(verify)
app.command()(export)
app.command("import")(bring_back)
app.add_typer(dead.app, name="dead")
EVENTS_MAX = 10**9
FOLLOW_S = 0.5
LATE = timedelta(seconds=2)
"""An event may be in the log so much later than it happened."""


Artifact = Annotated[
    str | None,
    typer.Option(metavar="KEY|ID", help="About it, its replicas, operations, keys (key or id)."),
]
Node = Annotated[str | None, typer.Option(metavar="NODE", help="About this node.")]
What = Annotated[
    str | None,
    typer.Option(metavar="WHAT", help="About anything: key, artifact, node or operation."),
]
Actor = Annotated[str | None, typer.Option(help="By them, for example user:ada@host.")]
KeyName = Annotated[str | None, typer.Option(metavar="KEY", help="About this key.")]
OperationName = Annotated[str | None, typer.Option(metavar="ID", help="About this operation.")]
Engine = Annotated[
    str | None, typer.Option(metavar="ENGINE", help="About this engine (name or address).")
]
PlanName = Annotated[
    str | None,
    typer.Option("--plan", metavar="PLAN", help="Of this plan (id or name), and all that it did."),
]
Kinds = Annotated[
    list[str] | None,
    typer.Option(
        "--type", metavar="TYPE", help="Of this type, for example 'replica.*'; any of several."
    ),
]
TimeFrom = Annotated[
    str | None, typer.Option("--from", metavar="TIME", help="Not before (RFC 3339, or 10m).")
]
TimeTo = Annotated[
    str | None, typer.Option("--to", metavar="TIME", help="Not after (RFC 3339, or 10m).")
]
After = Annotated[
    int,
    typer.Option(
        "--after",
        "--since",
        min=0,
        metavar="CURSOR",
        help="After this position: the cursor that the page before has told.",
    ),
]


@app.callback()
def audit() -> None:
    """The log of everything that happened."""


@app.command()
def log(
    call: typer.Context,
    artifact: Artifact = None,
    node: Node = None,
    about: What = None,
    actor: Actor = None,
    key: KeyName = None,
    operation: OperationName = None,
    engine: Engine = None,
    plan: PlanName = None,
    kinds: Kinds = None,
    time_from: TimeFrom = None,
    time_to: TimeTo = None,
    since: After = 0,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most so many.")] = EVENTS_MAX,
    last: Annotated[
        int | None,
        typer.Option(min=0, max=1000, metavar="N", help="Only the last N (0: those to come)."),
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Wait for more.")] = False,
    chain: Annotated[
        str | None,
        typer.Option(
            metavar="SEQ|ID", help="Instead: this event and all that led to it, root first."
        ),
    ] = None,
) -> Result:
    """Print events, oldest first: what happened, who did it and because of what."""
    session = session_of(call)
    if chain is not None:
        return explain(session, chain)
    for kind in kinds or ():
        check_type(kind)
    now = session.now()
    query = AuditQuery(
        what=about,
        artifact=artifact,
        node=parse_node(node) if node else None,
        actor=actor,
        types=tuple(kinds or ()),
        key=Key(key) if key else None,
        operation=operation,
        engine=engine,
        plan=plan,
        time_from=parse_time(time_from, now) if time_from else None,
        time_to=parse_time(time_to, now) if time_to else None,
        since=Seq(since),
        limit=limit if last is None else max(1, last),
        newest=last is not None,
    )
    cursor = Cursor()
    pages = cursor.watch(_pages(session, query, limit, follow=follow, begins=last != 0))
    return event_flow(pages, lambda: cursor.tell(limit if last is None else None))


class Cursor:
    """How far a page went. Modified by `watch`."""

    def __init__(self) -> None:
        self._count = 0
        self._seq = 0

    def watch(self, pages: Iterator[Sequence[EventInfo]]) -> Iterator[Sequence[EventInfo]]:
        """The same pages."""
        for page in pages:
            if page:
                self._count += len(page)
                self._seq = page[-1].seq
            yield page

    def tell(self, limit: int | None) -> str:
        """What to say when there may be more than was asked for; empty when not."""
        if limit is None or self._count < limit:
            return ""
        return f"The next page: --after {self._seq}"


def check_type(pattern: str) -> None:
    """Raises InvalidArgument when no type of event is called so; `*` stands for any text."""
    if not any(fnmatchcase(name, pattern) for name in EVENT_TYPES):
        raise InvalidArgument(
            f"No event is of type {pattern!r}.", hint=f"The types are {', '.join(EVENT_TYPES)}."
        )


def is_over(time_to: datetime | None, now: datetime) -> bool:
    """Whether no event up to `time_to` will come any more."""
    return time_to is not None and now > time_to + LATE


def _pages(
    session: Session, query: AuditQuery, limit: int, *, follow: bool, begins: bool = True
) -> Iterator[Sequence[EventInfo]]:
    """The events that match; after the last ones those that come, at most `limit` in all. Without
    `begins` those that come alone."""

    def look_again() -> bool:
        if not follow or is_over(query.time_to, session.now()):
            return False
        time.sleep(FOLLOW_S)
        return True

    with session.client() as client:
        if query.node is not None:
            client.api.node(query.node)  # one that never was is told, not silence
        if query.newest and follow:
            shown = client.api.audit(query)
            since = shown[-1].seq if shown else query.since
            shown = shown if begins else ()
            yield shown
            query = msgspec.structs.replace(
                query, newest=False, since=since, limit=limit - len(shown)
            )
        elif not begins:
            return
        yield from read_pages(client.api.audit, query, follow=look_again)


def explain(session: Session, reference: str) -> Answer:
    """The chain of causes of one event. Raises NotFound, InvalidArgument."""
    with session.client() as client:
        info = client.api.why(reference, limit=0)
    links = (*info.causes, info.event)
    return Answer(
        data=links,
        blocks=lambda: (table_chain(links), Note(explain_chain(links))),
        brief=tuple(one.id for one in links),
    )


@app.command()
def why(
    call: typer.Context,
    event: Annotated[
        str | None, typer.Argument(metavar="SEQ|ID", help="An event, by its position or id.")
    ] = None,
    artifact: Annotated[
        str | None,
        typer.Option(metavar="KEY|ID", help="Instead: why there is a replica of this ..."),
    ] = None,
    node: Annotated[str | None, typer.Option(metavar="NODE", help="... on this node")] = None,
    tier: Annotated[
        str | None, typer.Option(metavar="TIER", help="(in this tier: dram, disk, object).")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=0, max=500, metavar="N", help="At most so many effects.")
    ] = 100,
) -> Result:
    """Show why something happened and what came of it: the tree of causes and effects."""
    if (event is None) == (artifact is None) or (artifact is None) != (node is None):
        raise InvalidArgument(
            "Name an event, or an artifact and a node.",
            hint="As in `tcctl audit why 42` or `tcctl audit why --artifact KEY --node n2`.",
        )
    if tier is not None and tier not in [one.value for one in Tier]:
        raise InvalidArgument(
            f"{tier!r} is no tier.", hint=f"Use one of {', '.join(one.value for one in Tier)}."
        )
    with session_of(call).client() as client:
        info = client.api.why(event, artifact=artifact, node=node, tier=tier, limit=limit)
    more = (Note(f"There are more effects than these {len(info.effects)}."),) if info.more else ()
    return Answer(
        data=info,
        blocks=lambda: (table_why(info), Note(explain_why(info)), *more),
        brief=tuple(one.id for one in (*info.causes, info.event, *info.effects)),
    )
