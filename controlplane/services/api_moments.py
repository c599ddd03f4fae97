"""Moments of the past as people name them: positions and times, and which of them make no sense."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from tensorcast.controlplane.services.api_desk import Desk
from tensorcast.log.identity import now
from tensorcast.schema.api import AuditQuery
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import Seq

CLOCK_SLACK: Final = timedelta(minutes=1)
"""A client's clock may be so far ahead of ours: a time is in the future only beyond that."""


async def check_span(desk: Desk, query: AuditQuery) -> None:
    """Raises InvalidArgument for a span that can hold nothing: one that stands the wrong way round,
    or begins at a moment that is yet to come. It may end later than now."""
    check_order(query.time_from, query.time_to)
    if query.time_from is not None:
        await check_come(desk, query.time_from)
    if query.since > desk.follower.view.at:
        await check_position(desk, query.since)


def check_order(first: datetime | None, last: datetime | None) -> None:
    """Raises InvalidArgument when the first of two times is after the last, or one has no zone."""
    for moment in (first, last):
        if moment is not None and moment.tzinfo is None:
            raise InvalidArgument("The time has no zone.", hint="As in 2026-01-31T12:00:00Z.")
    if first is not None and last is not None and first > last:
        raise InvalidArgument(
            f"The first moment ({first.isoformat()}) is after the last ({last.isoformat()}).",
            hint="Give the earlier one first.",
        )


async def check_come(desk: Desk, moment: datetime) -> None:
    """Raises InvalidArgument for a time that is yet to come, or has no zone."""
    check_order(moment, None)
    if moment > now() + CLOCK_SLACK:
        raise InvalidArgument(
            f"{moment.isoformat()} is yet to come.",
            hint=f"The last event is {await desk.writer.last_seq()}; for the present say 'now'.",
        )


async def check_position(desk: Desk, seq: Seq) -> None:
    """Raises InvalidArgument for a position that no event of the log has."""
    if seq < 0:
        raise InvalidArgument(f"{seq} is not a position in the log.", hint="They count from 1.")
    last = await desk.writer.last_seq()
    if seq > last:
        raise InvalidArgument(f"There is no event {seq} yet.", hint=f"The last one is {last}.")


async def find_seq(desk: Desk, seq: Seq | None, moment: datetime | None) -> Seq:
    """The position that is meant by a position or a time: the last event not later than that.
    Raises InvalidArgument for a moment that is yet to come, or for none or two."""
    if (seq is None) == (moment is None):
        raise InvalidArgument("Say either a position or a time.", hint="As in --to 42.")
    if seq is not None:
        await desk.check_reached(seq)
        return seq
    assert moment is not None
    await check_come(desk, moment)
    return await desk.history.seq_at(moment)


async def time_of(desk: Desk, seq: Seq) -> datetime | None:
    """When an event happened; None for position 0."""
    if seq == 0:
        return None
    query = AuditQuery(since=Seq(seq - 1), before=Seq(seq + 1), limit=1)
    found = await desk.history.find_events(query, None)
    return found[0].at if found else None
