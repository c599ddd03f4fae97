"""Verbs about the store itself: what is parked in it, and the long works on it."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Final

from tensorcast.controlplane.services.api_audit import Proofs, require_proofs
from tensorcast.controlplane.services.api_desk import Desk
from tensorcast.controlplane.services.workers import MODULES
from tensorcast.controlplane.store.archives import list_archives, move_archives
from tensorcast.controlplane.store.archiving import require_folder
from tensorcast.controlplane.store.engine import connecting
from tensorcast.controlplane.store.jobs import ARCHIVE, list_jobs
from tensorcast.schema.api_store import (
    ArchiveInfo,
    ArchivesQuery,
    DeadPage,
    DeadQuery,
    JobInfo,
    JobsQuery,
    RetryDead,
    StartJob,
)
from tensorcast.schema.errors import Conflict, InvalidArgument, NotFound, Unavailable

RETRY_S_MAX: Final = 60.0
START_S_MAX: Final = 30.0
_POLL_S: Final = 0.1


async def list_dead(desk: Desk, request: DeadQuery) -> DeadPage:
    """The events that a projection could not take."""
    return await desk.history.find_letters(request)


async def retry_dead(desk: Desk, request: RetryDead) -> DeadPage:
    """Has the writers try all of them again; what still waits. Raises Unavailable when no writer
    does."""
    await desk.history.want_retry()
    deadline = asyncio.get_running_loop().time() + RETRY_S_MAX
    while await desk.history.count_wanted():
        if asyncio.get_running_loop().time() > deadline:
            raise Unavailable(
                f"Nobody has tried the parked events again in {RETRY_S_MAX:g} s.",
                hint="Does the persister run? `tcctl status` says.",
            )
        await asyncio.sleep(_POLL_S)
    return await desk.history.find_letters(DeadQuery())


async def show_jobs(desk: Desk, request: JobsQuery) -> tuple[JobInfo, ...]:
    """How far the long works are."""
    return await list_jobs(require_proofs(desk).engine)


async def start_job(desk: Desk, request: StartJob) -> tuple[JobInfo, ...]:
    """Starts a work, and waits until it has begun. Raises Conflict when one of its name is at
    work."""
    if request.name not in MODULES:
        raise InvalidArgument(
            f"There is no work {request.name!r}.", hint=f"There is {', '.join(MODULES)}."
        )
    proofs = require_proofs(desk)
    arguments = archive_arguments(request, proofs) if request.name == ARCHIVE else ()
    before = _started(await list_jobs(proofs.engine), request.name)
    ending = await proofs.workers.start(request.name, *arguments)
    deadline = asyncio.get_running_loop().time() + START_S_MAX
    while True:
        jobs = await list_jobs(proofs.engine)
        if _started(jobs, request.name) != before:
            return jobs
        if ending.done() and ending.result():
            raise Conflict(
                f"The {request.name} did not begin.",
                hint="Is one at work already? `tcctl store status` says.",
            )
        if asyncio.get_running_loop().time() > deadline:
            raise Unavailable(f"The {request.name} has not begun in {START_S_MAX:g} s.")
        await asyncio.sleep(_POLL_S)


def archive_arguments(request: StartJob, proofs: Proofs) -> tuple[str, ...]:
    """What the archiver is told. Raises InvalidArgument."""
    folder = require_folder(request.folder or proofs.archive_dir)
    if (request.before_seq is None) == (request.before_time is None):
        raise InvalidArgument(
            "Say which events are old, by a position or by a time.", hint="As in --before 30d."
        )
    if request.before_seq is not None:
        return str(folder), f"--before-seq={request.before_seq:d}"
    assert request.before_time is not None
    if request.before_time.tzinfo is None:
        raise InvalidArgument("The time has no zone.", hint="As in 2026-01-31T12:00:00Z.")
    return str(folder), f"--before-time={request.before_time.isoformat()}"


async def show_archives(desk: Desk, request: ArchivesQuery) -> tuple[ArchiveInfo, ...]:
    """The files with old events. With a folder, they are in it from now on. Raises NotFound when
    none of them is."""
    async with connecting(require_proofs(desk).engine) as connection:
        if request.folder is not None:
            folder = str(require_folder(request.folder))
            moved = await move_archives(connection, folder)
            await connection.commit()
            if not moved:
                raise NotFound(
                    f"None of the archives is in {folder} of the control plane's machine.",
                    hint="`tcctl store archives` lists them.",
                )
        return await list_archives(connection)


def _started(jobs: tuple[JobInfo, ...], name: str) -> datetime | None:
    return next((job.started_at for job in jobs if job.name == name), None)
