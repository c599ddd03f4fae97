"""`tcctl signal`: say something on a topic, and listen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from tensorcast.cli.output import Answer, Fields, Note, Result
from tensorcast.cli.session import Session, session_of
from tensorcast.cli.signals import (
    parse_data,
    parse_start,
    signal_flow,
    table_readers,
    table_topics,
)
from tensorcast.cli.units import parse_seconds
from tensorcast.schema.api_signals import TOPICS_SHOWN_MAX
from tensorcast.schema.signals import EVERYTHING, Signal, parse_pattern

app = typer.Typer(
    help="Signals: what was said on which topic, and who listens.",
    add_completion=False,
    rich_markup_mode=None,
)
Chosen = Annotated[
    str, typer.Argument(metavar="TOPIC", help="A topic; '*' is any word, '>' all below.")
]


@app.command()
def ls(
    call: typer.Context,
    pattern: Chosen = EVERYTHING,
    limit: Annotated[
        int, typer.Option(min=1, max=TOPICS_SHOWN_MAX, metavar="N", help="At most so many.")
    ] = TOPICS_SHOWN_MAX,
) -> Result:
    """List the topics, the last used first, each with its last signal."""
    session = session_of(call)
    with session.client() as client:
        found = client.api.topics(parse_pattern(pattern), limit=limit)
    return Answer(
        data=found,
        blocks=lambda: (table_topics(found, session.now()),),
        brief=tuple(one.topic for one in found),
    )


@app.command()
def emit(
    call: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="For example weights.published.")],
    data: Annotated[str, typer.Option(metavar="JSON", help="What it says: a JSON object.")] = "{}",
) -> Result:
    """Emit a signal; it is in the log when this returns."""
    said = parse_data(data)
    with session_of(call).client() as client:
        done = client.emit(topic, said)
    return Answer(
        data={"topic": topic, "seq": done.seq, "id": done.id},
        blocks=lambda: (Fields((("topic", topic), ("seq", str(done.seq)), ("id", done.id))),),
        brief=(str(done.seq),),
    )


@app.command()
def tail(
    call: typer.Context,
    pattern: Chosen = EVERYTHING,
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="SEQ|TIME|new|first|last", help="Begin here (last: of each topic)."
        ),
    ] = "new",
    durable: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Go on where the reader of this name stopped."),
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="End after so many.")
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="T", help="End when none came for so long.")
    ] = None,
) -> Result:
    """Print signals as they come; with --durable each is acknowledged once it is printed."""
    session = session_of(call)
    timeout_s = None if timeout is None else parse_seconds(timeout)
    return signal_flow(_pages(session, pattern, start, durable, count, timeout_s))


def _pages(
    session: Session,
    pattern: str,
    start: str,
    durable: str | None,
    count: int | None,
    timeout_s: float | None,
) -> Iterator[Sequence[Signal]]:
    """One signal a page: so each is printed before the next one is waited for."""
    where = parse_start(start, session.now())
    seen = 0
    with (
        session.client() as client,
        client.signals(pattern, durable=durable, start=where) as signals,
    ):
        while count is None or seen < count:
            signal = signals.next(timeout_s)
            if signal is None:
                return
            seen += 1
            yield (signal.signal,)
            signal.ack()


@app.command()
def readers(call: typer.Context) -> Result:
    """List the durable readers, and how far they are."""
    with session_of(call).client() as client:
        found = client.signal_readers()
    return Answer(
        data=[one._asdict() for one in found],
        blocks=lambda: (table_readers(found),),
        brief=tuple(one.name for one in found),
    )


@app.command()
def forget(
    call: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The durable reader.")],
) -> Result:
    """Forget a durable reader and where it stands."""
    with session_of(call).client() as client:
        client.forget_reader(name)
    return Answer(
        data={"name": name},
        blocks=lambda: (Note(f"The reader {name} is forgotten."),),
        brief=(name,),
    )
