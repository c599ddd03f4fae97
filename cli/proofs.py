"""`tcctl audit verify`, `export` and `import`: the log as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tensorcast.cli.exits import Exit
from tensorcast.cli.output import Answer, Block, Fields, Note, Result
from tensorcast.cli.session import session_of
from tensorcast.schema.api_audit import VerifyInfo
from tensorcast.schema.wording import tell_count

First = Annotated[
    int | None, typer.Option("--from", min=1, metavar="SEQ", help="From this position on.")
]
Last = Annotated[
    int | None, typer.Option("--to", min=1, metavar="SEQ", help="Up to this position.")
]


class FileFormat(StrEnum):
    JSONL = "jsonl"
    PARQUET = "parquet"


class CopyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What `export` and `import` print: the file, its events, and the hash of the last one."""

    path: str
    events: int
    head: str


def verify(
    call: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="An exported log, instead.")
    ] = None,
    first: First = None,
    last: Last = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PUBLIC",
            help="Only heads signed by this key count (hexadecimal; may be repeated).",
        ),
    ] = None,
    anchors: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Compare with the signed heads in this file."),
    ] = None,
) -> Result:
    """Check that no event was altered, removed, added or moved since it was written."""
    session = session_of(call)
    with session.progress("verify", counts=True) as bar:
        if file is None:
            with session.client() as client:
                info = client.verify_log(
                    first=first,
                    last=last,
                    keys=key or (),
                    anchors=anchors,
                    progress=bar.advance_to,
                )
        else:
            from tensorcast.client import verify_log_file

            info = verify_log_file(
                file,
                first=first,
                last=last,
                keys=key or (),
                anchors=anchors,
                progress=bar.advance_to,
            )
    return Answer(
        data=info,
        blocks=lambda: describe_proof(info),
        brief=("ok" if info.ok else "bad",),
        exit_code=Exit.DONE if info.ok else Exit.FAILED,
    )


def describe_proof(info: VerifyInfo) -> Sequence[Block]:
    """The verdict in words."""
    if info.strange_key is not None:
        verdict = (
            f"The {tell_count(info.events, 'event')} fit the signed heads, but {info.strange_key}"
            " signed some of them, a key that does not count. Either the key of this control plane"
            " was lost and made anew, or somebody else signed. If you know the key (a copy of"
            " heads.pub), repeat with --key for it and for each key that counts; a line with it in"
            " heads.former, beside heads.pub, makes it count for good."
        )
    elif info.first_bad is not None:
        bad = info.first_bad
        verdict = f"The log is NOT what it was. Event {bad.seq}: {bad.reason}."
    elif info.anchors:
        verdict = f"All {tell_count(info.events, 'event')} are as they were written."
    else:
        verdict = (
            f"All {tell_count(info.events, 'event')} follow each other. No signed head was there to"
            " show that they are the ones that were written."
        )
    fields = (
        ("events", str(info.events)),
        ("signed heads", str(info.anchors)),
        ("head", info.head),
    )
    return (Note(verdict), Fields(fields))


def export(
    call: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")],
    first: First = None,
    last: Last = None,
    form: Annotated[
        FileFormat | None,
        typer.Option("--format", show_default=False, help="By default what the name ends with."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file.")] = False,
) -> Result:
    """Copy the log to a file, with all that proves it."""
    session = session_of(call)
    is_parquet = (form or guess_format(file)) is FileFormat.PARQUET
    with session.client() as client, session.progress("export", counts=True) as bar:
        copied = client.export_log(
            file, first=first, last=last, parquet=is_parquet, force=force, progress=bar.advance_to
        )
    info = CopyInfo(path=str(file), events=copied.events, head=copied.head)
    return _answer(info, f"{file} holds {tell_count(info.events, 'event')}.")


def guess_format(file: Path) -> FileFormat:
    """Parquet for a name that ends so, else JSON lines."""
    return FileFormat.PARQUET if file.suffix == ".parquet" else FileFormat.JSONL


def bring_back(
    call: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An exported log, from event 1 on.")],
) -> Result:
    """Bring an exported log into a cluster that has no events yet (`tcctl up --nodes 0`)."""
    session = session_of(call)
    with session.client() as client, session.progress("import", counts=True) as bar:
        copied = client.import_log(file, progress=bar.advance_to)
    info = CopyInfo(path=str(file), events=copied.events, head=copied.head)
    return _answer(info, f"The log holds {tell_count(info.events, 'event')}.")


def _answer(info: CopyInfo, sentence: str) -> Answer:
    return Answer(data=info, blocks=lambda: (Note(sentence),), brief=(info.path,))
