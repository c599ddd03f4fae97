"""`tcctl bench`: how fast this cluster is, beside what this machine does without it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tensorcast.cli.output import Answer, Block, Note, Result, Table
from tensorcast.cli.session import Session, session_of
from tensorcast.cli.units import format_rate, format_seconds, format_size, parse_size
from tensorcast.schema.errors import InvalidArgument

if TYPE_CHECKING:
    from tensorcast.client import Client
    from tensorcast.client.trials import Trial

app = typer.Typer(add_completion=False, rich_markup_mode=None)
DEFAULT = ("share", "kv")
NOTE = "Medians; bytes were compared after every round. What was made for this is gone again."


@app.command()
def bench(
    call: typer.Context,
    kinds: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[put|get|share|p2p|kv|load]...",
            help="What to try (default: share and kv; p2p with --to, load with --path).",
            show_default=False,
        ),
    ] = None,
    node: Annotated[
        str | None, typer.Option(metavar="NODE", help="The node of this machine to try.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="NODE", help="The node that p2p moves bytes to.")
    ] = None,
    size: Annotated[
        str, typer.Option(metavar="SIZE", help="Of the artifact; of the KV blocks up to 64 MiB.")
    ] = "256MiB",
    rounds: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Rounds.")] = 5,
    path: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The checkpoint to load.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also where something else must be evicted for it.")
    ] = False,
) -> Result:
    """Measure this cluster, beside bare loops of this machine."""
    from tensorcast.client.trials import Wanted, limit_blocks, run_trials

    session = session_of(call)
    chosen = choose(kinds or (), to, path)
    if path is not None and not path.exists():
        raise InvalidArgument(f"There is nothing at {path}.", hint="Name a file or a folder.")
    size_bytes = parse_size(size) // 4096 * 4096
    wanted = Wanted(
        kinds=chosen,
        size_bytes=size_bytes,
        kv_bytes=limit_blocks(size_bytes),
        rounds=rounds,
        to=to,
        path=path,
        force=force,
    )
    with session.client(node) as client:
        name = name_node(client)
        found = run_trials(client, wanted, lambda text: tell(session, text))
    return Answer(
        data=found,
        blocks=lambda: table_trials(found, name),
        brief=tuple(f"{one.what}: {format_rate(one.bytes_per_s)}" for one in found),
    )


def choose(
    kinds: tuple[str, ...] | list[str], to: str | None, path: Path | None
) -> tuple[str, ...]:
    """The trials that the arguments ask for, each once."""
    if kinds:
        return tuple(dict.fromkeys(kinds))
    return (*DEFAULT, *(("p2p",) if to else ()), *(("load",) if path else ()))


def name_node(client: Client) -> str:
    """The node that is tried."""
    return client.context.default_node or "this node"


def tell(session: Session, text: str) -> None:
    """Progress for a person: one line that is written over."""
    if session.shows_progress:
        print(f"\r\x1b[K{text}", end="", file=session.world.err, flush=True)


def table_trials(found: tuple[Trial, ...], node: str) -> tuple[Block, ...]:
    """What people see."""
    rows = [
        (
            one.what,
            format_size(one.bytes),
            format_seconds_exactly(one.seconds),
            f"{format_seconds_exactly(one.seconds_min)} to "
            f"{format_seconds_exactly(one.seconds_max)}",
            format_rate(one.bytes_per_s),
            one.baseline,
            format_rate(one.baseline_bytes_per_s) if one.baseline else "",
            f"{one.ratio:.2f}" if one.baseline else "",
        )
        for one in found
    ]
    titles = ("WHAT", "SIZE", "TOOK", "ROUNDS", "RATE", "BASELINE", "ITS RATE", "RATIO")
    table = Table(
        titles=titles,
        rows=rows,
        right=frozenset({"SIZE", "TOOK", "ROUNDS", "RATE", "ITS RATE", "RATIO"}),
        fold=frozenset({"BASELINE"}),
    )
    return (table, Note(f"Node {node}. {NOTE}"))


def format_seconds_exactly(seconds: float) -> str:
    """As `format_seconds`, with the fraction of a small number of milliseconds."""
    return f"{seconds * 1000:.1f} ms" if seconds < 0.1 else format_seconds(seconds)
