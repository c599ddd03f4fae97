"""`tcctl up`, `down` and `status`: the embedded cluster of this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tensorcast.cli.exits import Exit
from tensorcast.cli.health import StatusInfo, find_cluster, judge
from tensorcast.cli.homes import check_context, choose_home, named_context
from tensorcast.cli.output import Answer, Block, Fields, Heading, Note, Result, Table
from tensorcast.cli.session import Session, session_of
from tensorcast.cli.tables import table_nodes
from tensorcast.cli.units import parse_size
from tensorcast.deploy.control import ServiceStatus
from tensorcast.schema.ids import Overflow
from tensorcast.schema.wording import tell_count

app = typer.Typer(add_completion=False, rich_markup_mode=None)
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Where it keeps its data (default: as the context in use, or of this machine)."
    ),
]


class UpInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What `up` and `down` print. `messages` tell what happened on the way."""

    state: str
    home: str
    services: tuple[ServiceStatus, ...] = ()
    messages: tuple[str, ...] = ()


class Teller:
    """Keeps the sentences of `deploy`, and says them at once when a person looks on."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.messages: list[str] = []

    def __call__(self, sentence: str) -> None:
        self.messages.append(sentence)
        if self._session.shows_progress:
            print(sentence, file=self._session.world.err, flush=True)

    def notes(self) -> tuple[Note, ...]:
        """The sentences that nobody has seen yet."""
        said = self._session.shows_progress
        return () if said else tuple(Note(sentence) for sentence in self.messages)


@app.command()
def up(
    call: typer.Context,
    nodes: Annotated[int, typer.Option(min=0, help="At least so many nodes.")] = 1,
    data_dir: DataDir = None,
    dram: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of each node, for example 4GiB.")
    ] = None,
    disk: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Disk of each node for replicas (default: what is free)."
        ),
    ] = None,
    overflow: Annotated[
        Overflow | None, typer.Option(help="What a node does when its memory is full.")
    ] = None,
    kv_disk: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Disk of each node for KV blocks, for example 20GiB."),
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="The name of a new cluster.")] = None,
    nats_url: Annotated[
        str | None, typer.Option(metavar="URL", help="A NATS server of your own.")
    ] = None,
    postgres_url: Annotated[
        str | None, typer.Option(metavar="URL", help="A Postgres of your own.")
    ] = None,
) -> Result:
    """Start a cluster on this machine, or what is missing of it."""
    from tensorcast.deploy import cluster as embedded
    from tensorcast.deploy.options import UpOptions

    session = session_of(call)
    home = choose_home(session, data_dir)
    options = UpOptions(
        home=home,
        nodes=nodes,
        dram_bytes=parse_size(dram) if dram else None,
        disk_bytes=parse_size(disk) if disk else None,
        overflow=overflow,
        kv_disk_bytes=parse_size(kv_disk) if kv_disk else None,
        cluster=cluster,
        context=named_context(session),
        nats_url=nats_url,
        postgres_url=postgres_url,
    )
    teller = Teller(session)
    found = embedded.up(options, teller)
    info = UpInfo(
        state=found.state,
        home=str(home),
        services=found.services,
        messages=tuple(teller.messages),
    )
    return Answer(data=info, blocks=lambda: (*teller.notes(), table_services(info.services)))


@app.command()
def down(
    call: typer.Context,
    purge: Annotated[bool, typer.Option("--purge", help="Delete all its data too.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Lose the memory that does not fit on the disk.")
    ] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    data_dir: DataDir = None,
) -> Result:
    """Stop the cluster of this machine; nothing is lost."""
    from tensorcast.deploy import cluster as embedded

    session = session_of(call)
    if data_dir is None:
        check_context(session)  # a slip must not stop the cluster of somebody else
    home = choose_home(session, data_dir)
    if purge and not yes and session.world.is_terminal and sys.stdin.isatty():
        typer.confirm(f"Delete all data of the cluster in {home}?", abort=True, err=True)
    teller = Teller(session)
    embedded.down(home, purge=purge, force=force, progress=teller)
    info = UpInfo(state="down", home=str(home), messages=tuple(teller.messages))
    return Answer(data=info, blocks=teller.notes)


@app.command()
def status(call: typer.Context, data_dir: DataDir = None) -> Result:
    """Show how the cluster is, in words."""
    session = session_of(call)
    home = choose_home(session, data_dir)
    info = judge(find_cluster(session, home, is_named=data_dir is not None))
    exits = {"up": Exit.DONE, "degraded": Exit.FAILED, "down": Exit.UNREACHABLE}
    return Answer(
        data=info,
        blocks=lambda: describe_status(info),
        brief=(info.state,),
        exit_code=exits[info.state],
    )


def table_services(services: tuple[ServiceStatus, ...]) -> Table:
    """One process a line."""
    return Table(
        titles=("service", "state", "pid", "detail"),
        rows=[(one.name, one.state, str(one.pid or ""), one.detail) for one in services],
        right=frozenset({"pid"}),
        fold=frozenset({"detail"}),
        empty="No services of its own.",
    )


def describe_log(last: int | None, committed: int | None) -> str:
    """How many events there are, and how many of them are in Postgres, as far as it is known."""
    if last is None:
        return ""
    if committed is None:
        return f"{tell_count(last, 'event')} (how many of them are in Postgres is not known)"
    return f"{tell_count(last, 'event')}, {committed} of them in Postgres"


def describe_status(info: StatusInfo) -> list[Block]:
    """State, positions, processes, nodes, and problems in words."""
    blocks: list[Block] = [
        Fields(
            (
                ("state", info.state),
                ("cluster", info.cluster or ""),
                ("home", info.home or ""),
                ("log", describe_log(info.last_seq, info.committed_seq)),
            )
        )
    ]
    if info.services:
        blocks += [Heading("Services"), table_services(info.services)]
    if info.nodes:
        blocks += [Heading("Nodes"), table_nodes(info.nodes)]
    if info.problems:
        blocks += [Heading("Problems"), *(Note(f"- {problem}") for problem in info.problems)]
    return blocks
