"""Where the causes of events stand in the log: a position says more to people than an id."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlalchemy import Text, cast, select
from sqlalchemy.ext.asyncio import AsyncConnection

from tensorcast.controlplane.store.cells import as_uuid
from tensorcast.controlplane.store.tables import events
from tensorcast.schema.api import EventInfo
from tensorcast.schema.ids import EventId, Seq


async def place_causes(
    connection: AsyncConnection, page: Sequence[EventInfo]
) -> tuple[EventInfo, ...]:
    """The events, each with the position of its cause: one question for those that are not on the
    page themselves. Of a cause that only an archive has it is told when it is on the page."""
    known = {one.id: one.seq for one in page}
    wanted = {one.cause for one in page if one.cause is not None} - known.keys()
    if wanted:
        name = cast(events.c.event_id, Text).label("event_id")
        statement = select(name, events.c.seq).where(
            events.c.event_id.in_([as_uuid(cause) for cause in sorted(wanted)])
        )
        for row in await connection.execute(statement):
            known[EventId(row.event_id)] = Seq(row.seq)
    return tuple(
        one if one.cause is None else msgspec.structs.replace(one, cause_seq=known.get(one.cause))
        for one in page
    )
