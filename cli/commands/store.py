"""`tcctl store`: the database that follows from the log, and the files with its old events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tensorcast.cli.output import Answer, Note, Result, Table
from tensorcast.cli.session import Session, session_of
from tensorcast.cli.units import format_second, format_size, parse_position
from tensorcast.schema.api_store import ArchiveInfo, JobInfo
from tensorcast.schema.errors import TensorCastError, Unavailable

if TYPE_CHECKING:
    from tensorcast.client import Client

REBUILD = "rebuild"
ARCHIVE = "archive"
AFTER_CUT = {
    REBUILD: "The live tables are as they were. Start it again.",
    ARCHIVE: "Start it again: it goes on.",
}
WHOLE = (
    "Events go by whole partitions, once all of one are old enough and a snapshot of the state"
    " after them is there."
)
POLL_S = 0.5
SILENT_S_MAX = 60.0
"""A work that says nothing for so long was cut off."""

app = typer.Typer(
    help="The database: made anew from the log, relieved of old events.",
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback()
def store() -> None:
    """The database: made anew from the log, relieved of old events."""


@app.command()
def status(call: typer.Context) -> Result:
    """Show how far long works on the database are, and how the last ones ended."""
    with session_of(call).client() as client:
        return _answer(client.api.jobs())


Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Until it has ended.")]


@app.command()
def rebuild(call: typer.Context, wait: Wait = True) -> Result:
    """Make the read models anew from the history beside the live ones, then swap them in."""
    session = session_of(call)
    with session.client() as client:
        jobs = client.api.start_job(REBUILD)
        if wait:
            jobs = _wait(session, client, jobs, REBUILD)
    job = _find(jobs, REBUILD)
    if job.problem is not None:
        raise TensorCastError(
            f"The rebuild failed: {job.problem.rstrip('.')}.",
            hint="The live tables are as they were.",
        )
    return _answer(jobs, f"The read models follow from event {job.done}." if wait else "")


@app.command()
def archive(
    call: typer.Context,
    before: Annotated[
        str,
        typer.Option(
            metavar="SEQ|TIME|AGE",
            help="Events before this position, RFC 3339 time, or how long ago (30d).",
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Folder on the control plane's machine; default: TENSORCAST_ARCHIVE_DIR there.",
        ),
    ] = None,
    wait: Wait = True,
) -> Result:
    """Move old events, whole partitions of them, from the database into files."""
    session = session_of(call)
    moment = parse_position(before, session.now())
    with session.client() as client:
        jobs = client.api.start_job(
            ARCHIVE,
            before_seq=moment if isinstance(moment, int) else None,
            before_time=None if isinstance(moment, int) else moment,
            folder=to,
        )
        if not wait:
            return _answer(jobs)
        job = _find(_wait(session, client, jobs, ARCHIVE), ARCHIVE)
        if job.problem is not None:
            raise TensorCastError(
                f"The archive failed: {job.problem.rstrip('.')}.",
                hint="What was not moved is where it was. The next one goes on.",
            )
        found = client.api.archives()
    said = f"{job.done} events were moved into files."
    if not job.done:
        said = f"The archive {job.phase}. {WHOLE}"
    return _archives(found, said)


@app.command()
def archives(
    call: typer.Context,
    moved_to: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="They are in this folder of the control plane's machine now."
        ),
    ] = None,
) -> Result:
    """Show the files that old events were moved into."""
    with session_of(call).client() as client:
        return _archives(client.api.archives(moved_to=moved_to))


def _wait(
    session: Session, client: Client, jobs: tuple[JobInfo, ...], name: str
) -> tuple[JobInfo, ...]:
    """What the jobs are when the one of this name has ended. Raises Unavailable when it was cut
    off."""
    with session.progress(name, counts=True) as bar:
        while (job := _find(jobs, name)).ended_at is None:
            if job.silent_s > SILENT_S_MAX:
                raise Unavailable(
                    f"The {name} has said nothing for {job.silent_s:.0f} s: it was cut off.",
                    hint=AFTER_CUT[name],
                )
            if job.total:
                bar.advance_to(job.done, job.total)
            time.sleep(POLL_S)
            jobs = client.api.jobs()
    return jobs


def _find(jobs: Sequence[JobInfo], name: str) -> JobInfo:
    return next(job for job in jobs if job.name == name)


def _archives(found: Sequence[ArchiveInfo], said: str = "") -> Answer:
    table = Table(
        titles=("from", "to", "happened", "size", "in the database", "file", "problem"),
        rows=[
            (
                str(one.first),
                str(one.last),
                f"{format_second(one.at_first)} to {format_second(one.at_last)}",
                format_size(one.bytes),
                "no" if one.is_dropped else "yes",
                one.path,
                one.problem or "",
            )
            for one in found
        ],
        right=frozenset({"from", "to", "size"}),
        fold=frozenset({"file", "problem"}),
        empty="No event was ever archived.",
    )
    return Answer(
        data=tuple(found),
        blocks=lambda: (Note(said),) if said else (table,),
        brief=tuple(one.path for one in found),
    )


def _answer(jobs: Sequence[JobInfo], said: str = "") -> Answer:
    table = Table(
        titles=("work", "phase", "done", "of", "started", "ended", "problem"),
        rows=[
            (
                job.name,
                _phase(job),
                str(job.done),
                str(job.total),
                format_second(job.started_at),
                format_second(job.ended_at) if job.ended_at else "",
                job.problem or "",
            )
            for job in jobs
        ],
        right=frozenset({"done", "of"}),
        fold=frozenset({"phase", "problem"}),
        empty="No work was ever begun.",
    )
    return Answer(
        data=tuple(jobs),
        blocks=lambda: (Note(said),) if said else (table,),
        brief=tuple(job.name for job in jobs if job.ended_at is None),
    )


def _phase(job: JobInfo) -> str:
    is_cut_off = job.ended_at is None and job.silent_s > SILENT_S_MAX
    return "cut off" if is_cut_off else job.phase
