"""Long works on the store: one of each name at a time, and how far it is, for whoever asks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from tensorcast.controlplane.store.engine import connecting
from tensorcast.controlplane.store.tables import store_jobs
from tensorcast.schema.api_store import JobInfo
from tensorcast.schema.errors import Conflict

REBUILD: Final = "rebuild"
ARCHIVE: Final = "archive"
DONE: Final = "done"
LOCK: Final = 0x7463_6A6F_6273
_SAY_S: Final = 0.5


class Job:
    """What a work tells of itself, over a connection of its own."""

    def __init__(self, connection: AsyncConnection, name: str, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._name = name
        self._clock = clock
        self._said_s = clock()

    async def say(self, phase: str, done: int, total: int) -> None:
        """How far it is; written at most every half second."""
        if self._clock() - self._said_s < _SAY_S:
            return
        self._said_s = self._clock()
        await self._write(phase=phase, done=done, total=total, told_at=func.now())

    async def end(self, problem: str | None, done: int = 0, why_nothing: str = "") -> None:
        """It has ended, well (None) or not; perhaps there was nothing to do, and why."""
        phase = (why_nothing or DONE) if problem is None else "failed"
        values = {"phase": phase, "problem": problem, "ended_at": func.now()}
        await self._write(**values, told_at=func.now(), done=done, total=done)

    async def _write(self, **values: object) -> None:
        statement = update(store_jobs).where(store_jobs.c.name == self._name).values(values)
        await self._connection.execute(statement)
        await self._connection.commit()


@asynccontextmanager
async def working(engine: AsyncEngine, name: str, clock: Callable[[], float]) -> AsyncIterator[Job]:
    """The one work of this name, for as long as the block lasts. Raises Conflict when there is
    another one."""
    async with connecting(engine) as connection:
        taken = await connection.scalar(select(func.pg_try_advisory_lock(LOCK + hash_of(name))))
        await connection.commit()
        if not taken:
            raise Conflict(
                f"A {name} is at work already.", hint="`tcctl store status` says how far it is."
            )
        begun = {
            "name": name,
            "phase": "begins",
            "done": 0,
            "total": 0,
            "problem": None,
            "started_at": func.now(),
            "told_at": func.now(),
            "ended_at": None,
        }
        statement = insert(store_jobs).values(begun)
        await connection.execute(
            statement.on_conflict_do_update(index_elements=["name"], set_=begun)
        )
        await connection.commit()
        job = Job(connection, name, clock)
        try:
            yield job
        except BaseException as error:
            await job.end(str(error) or type(error).__name__)
            raise


def hash_of(name: str) -> int:
    """A small number that stands for a name."""
    return sum(name.encode())


async def list_jobs(engine: AsyncEngine) -> tuple[JobInfo, ...]:
    """What each work told last, those at work and the last one of each name."""
    silent_s = func.extract("epoch", func.now() - store_jobs.c.told_at).label("silent_s")
    async with connecting(engine) as connection:
        rows = await connection.execute(select(store_jobs, silent_s).order_by(store_jobs.c.name))
        return tuple(
            JobInfo(
                name=row.name,
                phase=row.phase,
                done=row.done,
                total=row.total,
                problem=row.problem,
                started_at=row.started_at,
                ended_at=row.ended_at,
                silent_s=float(row.silent_s),
            )
            for row in rows
        )
