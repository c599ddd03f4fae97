"""`tcctl store`: the database that follows from the log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer

from tensorcast.cli.output import Answer, Note, Result, Table
from tensorcast.cli.session import session_of
from tensorcast.cli.units import format_second
from tensorcast.schema.api_store import JobInfo
from tensorcast.schema.errors import TensorCastError, Unavailable

REBUILD = "rebuild"
POLL_S = 0.5
SILENT_S_MAX = 60.0
"""A work that says nothing for so long was cut off."""

app = typer.Typer(
    help="The database: what follows from the log, made anew.",
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback()
def store() -> None:
    """The database: what follows from the log, made anew."""


@app.command()
def status(call: typer.Context) -> Result:
    """Show how far long works on the database are, and how the last ones ended."""
    with session_of(call).client() as client:
        return _answer(client.api.jobs())


@app.command()
def rebuild(
    call: typer.Context,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until it has ended.")] = True,
) -> Result:
    """Make the read models anew from the history beside the live ones, then swap them in."""
    session = session_of(call)
    with session.client() as client, session.progress("rebuild", counts=True) as bar:
        jobs = client.api.start_job(REBUILD)
        while wait and (job := _find(jobs)).ended_at is None:
            if job.silent_s > SILENT_S_MAX:
                raise Unavailable(
                    f"The rebuild has said nothing for {job.silent_s:.0f} s: it was cut off.",
                    hint="The live tables are as they were. Start it again.",
                )
            if job.total:
                bar.advance_to(job.done, job.total)
            time.sleep(POLL_S)
            jobs = client.api.jobs()
    job = _find(jobs)
    if job.problem is not None:
        raise TensorCastError(
            f"The rebuild failed: {job.problem.rstrip('.')}.",
            hint="The live tables are as they were.",
        )
    return _answer(jobs, f"The read models follow from event {job.done}." if wait else "")


def _find(jobs: Sequence[JobInfo]) -> JobInfo:
    return next(job for job in jobs if job.name == REBUILD)


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
        fold=frozenset({"problem"}),
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
