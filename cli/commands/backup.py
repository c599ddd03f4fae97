"""`tcctl backup` and `tcctl restore`: the whole cluster in one folder, and back."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tensorcast.cli.homes import choose_home
from tensorcast.cli.output import Answer, Fields, Note, Result
from tensorcast.cli.session import session_of
from tensorcast.cli.units import format_size

WITHOUT_BYTES = (
    "The bytes of artifacts are not in it: those in an object store are found again after a"
    " restore, those on disks and in memory of nodes stay with the nodes."
)
app = typer.Typer(add_completion=False, rich_markup_mode=None)
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the backup.")]
DataDir = Annotated[Path | None, typer.Option(help="Where the cluster keeps its data.")]


class BackupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What both print: the cluster, the moment of the backup, and how large it is."""

    cluster: str
    at: datetime
    bytes: int
    folder: str
    home: str


@app.command()
def backup(call: typer.Context, folder: Folder, data_dir: DataDir = None) -> Result:
    """Copy the history of the cluster of this machine into a folder, while it runs."""
    from tensorcast.deploy.backup import back_up

    session = session_of(call)
    home = choose_home(session, data_dir)
    made = back_up(home, folder)
    info = BackupInfo(
        cluster=made.cluster,
        at=made.at,
        bytes=made.dump_bytes,
        folder=str(folder),
        home=str(home),
    )
    return Answer(data=info, blocks=lambda: (_describe(info), Note(WITHOUT_BYTES)))


@app.command()
def restore(
    call: typer.Context,
    folder: Folder,
    data_dir: Annotated[Path, typer.Option(help="An empty or new folder for its data.")],
) -> Result:
    """Make the cluster of a backup anew in an empty folder; `tcctl up` starts it."""
    from tensorcast.deploy.backup import restore as make_anew

    session_of(call)
    found = make_anew(folder, data_dir)
    info = BackupInfo(
        cluster=found.cluster,
        at=found.at,
        bytes=found.dump_bytes,
        folder=str(folder),
        home=str(data_dir),
    )
    start = Note(f"Start it: tcctl up --data-dir {data_dir}")
    return Answer(data=info, blocks=lambda: (_describe(info), start))


def _describe(info: BackupInfo) -> Fields:
    return Fields(
        (
            ("cluster", info.cluster),
            ("as of", info.at.isoformat()),
            ("size", format_size(info.bytes)),
            ("folder", info.folder),
            ("home", info.home),
        )
    )
