"""Verbs about the store itself: what is parked in it, and the long works on it."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Final

from tensorcast.controlplane.services.api_audit import require_proofs
from tensorcast.controlplane.services.api_desk import Desk
from tensorcast.controlplane.services.workers import MODULES
from tensorcast.controlplane.store.jobs import list_jobs
from tensorcast.schema.api_store import (
    DeadPage,
    DeadQuery,
    JobInfo,
    JobsQuery,
    RetryDead,
    StartJob,
)
from tensorcast.schema.errors import Conflict, InvalidArgument, Unavailable

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
    before = _started(await list_jobs(proofs.engine), request.name)
    ending = await proofs.workers.start(request.name)
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


def _started(jobs: tuple[JobInfo, ...], name: str) -> datetime | None:
    return next((job.started_at for job in jobs if job.name == name), None)
