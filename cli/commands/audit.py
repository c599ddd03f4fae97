"""`tcctl audit`: the log of everything that happened, and why it did."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tensorcast.cli.causes import explain_chain, find_event, read_pages, trace_causes
from tensorcast.cli.events import event_flow, subject_of, table_chain
from tensorcast.cli.output import Answer, Note, Result
from tensorcast.cli.proofs import export, verify
from tensorcast.cli.session import Session, session_of
from tensorcast.cli.units import parse_time
from tensorcast.schema.api import AuditQuery, EventInfo
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.events import EVENT_TYPES
from tensorcast.schema.ids import EventId, Seq, parse_node

if TYPE_CHECKING:
    from tensorcast.client import Client

app = typer.Typer(
    help="The log of everything that happened.", add_completion=False, rich_markup_mode=None
)
app.command()(verify)
app.command()(export)
EVENTS_MAX = 10**9
FOLLOW_S = 0.5


@app.callback()
def audit() -> None:
    """The log of everything that happened."""


@app.command()
def log(
    call: typer.Context,
    artifact: Annotated[
        str | None,
        typer.Option(
            metavar="KEY|ID", help="About it, its replicas, operations, keys (key or id)."
        ),
    ] = None,
    node: Annotated[str | None, typer.Option(metavar="NODE", help="About this node.")] = None,
    about: Annotated[
        str | None,
        typer.Option(metavar="WHAT", help="About anything: key, artifact, node or operation."),
    ] = None,
    actor: Annotated[str | None, typer.Option(help="By them, for example user:ada@host.")] = None,
    kind: Annotated[
        str | None, typer.Option("--type", help="Of this type, for example replica.ready.")
    ] = None,
    time_from: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Not before (RFC 3339, or 10m).")
    ] = None,
    time_to: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Not after (RFC 3339, or 10m).")
    ] = None,
    since: Annotated[int, typer.Option(min=0, metavar="SEQ", help="After this position.")] = 0,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most so many.")] = EVENTS_MAX,
    last: Annotated[
        int | None, typer.Option(min=1, max=1000, metavar="N", help="Only the last N.")
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
    if kind is not None:
        check_type(kind)
    now = session.now()
    query = AuditQuery(
        what=about,
        artifact=artifact,
        node=parse_node(node) if node else None,
        actor=actor,
        type=kind,
        time_from=parse_time(time_from, now) if time_from else None,
        time_to=parse_time(time_to, now) if time_to else None,
        since=Seq(since),
        limit=last or limit,
        newest=last is not None,
    )
    return event_flow(_pages(session, query, limit, follow=follow))


def check_type(pattern: str) -> None:
    """Raises InvalidArgument when no type of event is called so; `*` stands for any text."""
    if not any(fnmatchcase(name, pattern) for name in EVENT_TYPES):
        raise InvalidArgument(
            f"No event is of type {pattern!r}.", hint=f"The types are {', '.join(EVENT_TYPES)}."
        )


def _pages(
    session: Session, query: AuditQuery, limit: int, *, follow: bool
) -> Iterator[Sequence[EventInfo]]:
    """The events that match; after the last ones those that come, at most `limit` in all."""

    def look_again() -> bool:
        if follow:
            time.sleep(FOLLOW_S)
        return follow

    with session.client() as client:
        if query.node is not None:
            client.api.node(query.node)  # one that never was is told, not silence
        if query.newest and follow:
            shown = client.api.audit(query)
            yield shown
            since = shown[-1].seq if shown else query.since
            query = msgspec.structs.replace(
                query, newest=False, since=since, limit=limit - len(shown)
            )
        yield from read_pages(client.api.audit, query, follow=look_again)


def explain(session: Session, reference: str) -> Answer:
    """The chain of causes of one event. Raises NotFound, InvalidArgument."""
    with session.client() as client:
        event = find_event(client.api.audit, reference)
        known = {one.id: one for one in _related(client, event)}

        def find(cause: EventId) -> EventInfo | None:
            try:
                return known.get(cause) or find_event(client.api.audit, cause)
            except NotFound:
                return None

        links = trace_causes(event, find)
    return Answer(
        data=links,
        blocks=lambda: (table_chain(links), Note(explain_chain(links))),
        brief=tuple(one.id for one in links),
    )


def _related(client: Client, event: EventInfo) -> Sequence[EventInfo]:
    """The events about the same artifact: causes are nearly always among them."""
    kind, subject = subject_of(event)
    try:
        match kind:
            case "artifact":
                return client.api.history(subject)
            case "replica":
                return client.api.history(subject.partition(":")[0])
            case "operation":
                return client.api.history(client.api.operation(subject).artifact)
            case _:
                return ()
    except NotFound:
        return ()
