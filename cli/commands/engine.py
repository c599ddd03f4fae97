"""`tcctl engine`: the inference engines, and the weights that they serve."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Annotated, Final

import typer

from tensorcast.cli.engines import describe_engine, table_engines
from tensorcast.cli.output import Answer, Nothing, Result
from tensorcast.cli.session import session_of
from tensorcast.cli.units import parse_seconds
from tensorcast.schema.errors import Unavailable

WATCHER: Final = "tensorcast.engines.vllm.agent"
app = typer.Typer(
    help="Inference engines, and the weights that they serve.",
    add_completion=False,
    rich_markup_mode=None,
)


@app.command()
def ls(
    call: typer.Context,
    every: Annotated[
        bool, typer.Option("--all", help="Also those that have stopped or were lost.")
    ] = False,
    node: Annotated[
        str | None, typer.Option(metavar="NODE", help="Only those that use this node's memory.")
    ] = None,
) -> Result:
    """List the engines that run, the last changed first."""
    session = session_of(call)
    with session.client() as client:
        found = client.api.engines(status="all" if every else None, node=node)
    return Answer(
        data=found,
        blocks=lambda: (table_engines(found, session.now()),),
        brief=tuple(one.engine for one in found),
    )


@app.command()
def show(
    call: typer.Context,
    engine: Annotated[
        str, typer.Argument(metavar="ENGINE", help="Its name, or the address where it answers.")
    ],
) -> Result:
    """Show one engine, and which weights it served from when to when."""
    with session_of(call).client() as client:
        info = client.api.engine(engine)
    return Answer(data=info, blocks=lambda: describe_engine(info), brief=(info.engine,))


@app.command()
def watch(
    call: typer.Context,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The engine's server, http://host:port.")
    ],
    kv_events: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Where it publishes KV events (default: it is asked), or none."
        ),
    ] = None,
    replay: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Where it repeats them.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="NAME", help="Its name (default: as it is registered).")
    ] = None,
    node: Annotated[
        str | None, typer.Option(metavar="NODE", help="The node whose memory it uses.")
    ] = None,
    period: Annotated[
        str | None, typer.Option(metavar="T", help="Look at its load so often (default: 2s).")
    ] = None,
) -> Result:
    """Watch a vLLM engine: which blocks it holds, how busy it is. Runs until it is stopped."""
    session = session_of(call)
    if find_spec("zmq") is None:
        raise Unavailable(
            "To watch an engine the package pyzmq is needed, which is not installed here.",
            hint="Run `pip install 'tensorcast-taas[vllm]'`, or use the environment of vLLM.",
        )
    options = {
        "--kv-events": kv_events,
        "--replay": replay,
        "--engine": engine,
        "--node": node,
        "--period": None if period is None else str(parse_seconds(period)),
        "--context": session.options.context,
    }
    given = [word for name, value in options.items() if value for word in (name, value)]
    command = [sys.executable, "-m", WATCHER, url, *given]
    environ = {**session.world.environ, "PYTHONSAFEPATH": "1"}
    session.world.replace_process(sys.executable, command, environ)
    return Nothing()
