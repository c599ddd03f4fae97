"""What clients ask the control plane about its store; part of `ControlPlane`."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol, TypeVar

import msgspec

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
from tensorcast.schema.ids import Seq

T = TypeVar("T")
RETRY_S = 90.0
START_S = 60.0


class _Asks(Protocol):
    async def ask(
        self, verb: str, request: msgspec.Struct, answer: type[T], *, timeout: float | None = None
    ) -> T: ...

    async def ask_once(
        self, verb: str, request: msgspec.Struct, answer: type[T], *, timeout: float
    ) -> T: ...


class StoreVerbs:
    """Questions about the store itself, put by `ask`."""

    async def dead_letters(
        self: _Asks, seq: int | None = None, *, after: int = 0, limit: int = 1000
    ) -> DeadPage:
        """The events that the read models could not take, and those that wait behind them."""
        at = None if seq is None else Seq(seq)
        request = DeadQuery(seq=at, after=Seq(after), limit=limit)
        return await self.ask("audit.dead", request, DeadPage)

    async def retry_dead_letters(self: _Asks) -> DeadPage:
        """Has all of them tried again; what still waits. Raises Unavailable."""
        return await self.ask_once("store.retry", RetryDead(), DeadPage, timeout=RETRY_S)

    async def jobs(self: _Asks) -> tuple[JobInfo, ...]:
        """How far the long works on the store are, and how the last ones ended."""
        return await self.ask("audit.jobs", JobsQuery(), tuple[JobInfo, ...])

    async def archives(self: _Asks, *, moved_to: str | None = None) -> tuple[ArchiveInfo, ...]:
        """The files that hold old events, the oldest first. With `moved_to`, those of them that are
        in this folder of the control plane's machine are read there from now on. Raises NotFound
        when none is."""
        request = ArchivesQuery(folder=moved_to)
        return await self.ask("audit.archives", request, tuple[ArchiveInfo, ...])

    async def start_job(
        self: _Asks,
        name: str,
        *,
        before_seq: int | None = None,
        before_time: datetime | None = None,
        folder: str | None = None,
    ) -> tuple[JobInfo, ...]:
        """Has a work begun: `rebuild` makes the read models anew beside the live ones, and swaps
        them in; `archive` moves the events before a position or a time, whole partitions of them,
        into files in `folder` of the control plane's machine. Raises Conflict when one of its name
        is at work."""
        request = StartJob(
            name=name,
            before_seq=None if before_seq is None else Seq(before_seq),
            before_time=before_time,
            folder=folder,
        )
        return await self.ask_once("store.start", request, tuple[JobInfo, ...], timeout=START_S)
