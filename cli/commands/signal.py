"""`tcctl signal`: say something on a topic, and listen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from tensorcast.cli.output import Answer, Fields, Note, Result
from tensorcast.cli.session import Session, session_of
from tensorcast.cli.signal_commands import (
    AGAIN_S,
    Reading,
    describe_failure,
    read_shape,
    run_command,
    split_command,
)
from tensorcast.cli.signals import (
    parse_data,
    parse_start,
    signal_flow,
    table_readers,
    table_shapes,
    table_topics,
)
from tensorcast.cli.units import parse_seconds
from tensorcast.schema.api_signals import TOPICS_SHOWN_MAX
from tensorcast.schema.signals import EVERYTHING, Signal, parse_pattern
from tensorcast.schema.system_signals import SHAPES

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
        str | None,
        typer.Option(
            metavar="T",
            help="End after so long without a signal; with --exec, also kill a command then.",
        ),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--exec", metavar="CMD", help="Run this for each signal, which is in its input."
        ),
    ] = None,
    dead_after: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="With --durable: give it up after so many tries."),
    ] = None,
) -> Result:
    """Print signals as they come; with --durable each is acknowledged once it is printed, or once
    the command for it has succeeded."""
    session = session_of(call)
    reading = Reading(
        pattern=pattern,
        start=parse_start(start, session.now()),
        durable=durable,
        count=count,
        timeout_s=None if timeout is None else parse_seconds(timeout),
        command=None if command is None else split_command(command),
        dead_after=dead_after,
    )
    return signal_flow(_pages(session, reading))


def _pages(session: Session, reading: Reading) -> Iterator[Sequence[Signal]]:
    """One signal a page: so each is printed before the next one is waited for."""
    seen = 0
    more = {} if reading.dead_after is None else {"dead_after": reading.dead_after}
    with (
        session.client() as client,
        client.signals(
            reading.pattern, durable=reading.durable, start=reading.start, **more
        ) as signals,
    ):
        while reading.count is None or seen < reading.count:
            signal = signals.next(reading.timeout_s)
            if signal is None:
                return
            seen += 1
            yield (signal.signal,)
            code = 0
            if reading.command is not None:
                code = run_command(
                    reading.command, signal.signal, session.world.environ, reading.timeout_s
                )
            if code == 0:
                signal.ack()
                continue
            print(describe_failure(reading, signal.signal, code), file=session.world.err)
            signal.retry(after=AGAIN_S)


@app.command()
def define(
    call: typer.Context,
    pattern: Annotated[
        str, typer.Argument(metavar="TOPIC", help="A topic; '*' is any word, '>' all below.")
    ],
    shape: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A JSON Schema (default: any data).")
    ] = None,
) -> Result:
    """Give topics a shape: signals whose data has not this shape are refused."""
    wanted = None if shape is None else read_shape(shape)
    with session_of(call).client() as client:
        client.define_topic(pattern, wanted)
    told = (
        f"Any data may be said on {pattern} from now on."
        if wanted is None
        else f"What is said on {pattern} must have this shape from now on."
    )
    return Answer(
        data={"topic": pattern, "shape": wanted}, blocks=lambda: (Note(told),), brief=(pattern,)
    )


@app.command()
def shapes(call: typer.Context) -> Result:
    """List the shapes of topics: those of the system, and those that were given."""
    with session_of(call).client() as client:
        given = client.topic_shapes()
    found: dict[str, object] = {str(pattern): shape for pattern, shape in SHAPES.items()}
    found.update(given)
    return Answer(
        data=found,
        blocks=lambda: (table_shapes(found, frozenset(given)),),
        brief=tuple(found),
    )


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
