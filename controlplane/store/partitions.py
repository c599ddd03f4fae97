"""The partitions of the history: which there are, and how the next ones come to be.

Each holds the events of a range of positions, and they follow each other without a gap. Indexes and
row triggers come with the table that they are attached to; the trigger that keeps a partition from
being truncated is its own.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from sqlalchemy import text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from tensorcast.controlplane.store.tables import cursors
from tensorcast.schema.errors import Corrupt

FIRST_EVENTS: Final = 1 << 18
"""For so many events the migration makes the first partition."""
_BOUNDS: Final = text(
    """
    SELECT c.relname AS name, pg_get_expr(c.relpartbound, c.oid) AS bound
    FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
    WHERE i.inhparent = to_regclass('events')
    """
)
_RANGE: Final = re.compile(r"FOR VALUES FROM \((.+), (.+)\) TO \('?(\d+)'?, '?(\d+)'?\)")
_STAY: Final = (
    "CREATE TRIGGER events_stay_all BEFORE TRUNCATE ON {name}"
    " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change_of_events()",
    "ALTER TABLE {name} ENABLE ALWAYS TRIGGER events_stay_all",
)


class Partition(msgspec.Struct, frozen=True):
    """A table that holds the events before position `end` of life `log_epoch`, from the end of the
    partition before it on."""

    log_epoch: int
    end: int
    name: str


async def list_partitions(connection: AsyncConnection) -> list[Partition]:
    """All partitions, in the order of the log. Raises Corrupt for one that is not by range."""
    found = []
    for name, bound in await connection.execute(_BOUNDS):
        match = _RANGE.fullmatch(bound)
        if match is None:
            raise Corrupt(
                f"The partition {name} of the history holds {bound}, which is no range.",
                hint="Detach it: only the control plane makes partitions of `events`.",
            )
        found.append(Partition(int(match[3]), int(match[4]), name))
    return sorted(found, key=lambda one: (one.log_epoch, one.end))


async def make_room(
    connection: AsyncConnection, cursor: str, log_epoch: int, seq: int, partition_events: int
) -> None:
    """Makes partitions for the events up to `seq`, inside the caller's transaction, which holds the
    row of `cursor`, and notes there how far they reach. Readers are not waited for."""
    partitions = await list_partitions(connection)
    if len(partitions) == 1 and await _is_as_made(connection, partitions[0]):
        partitions = [await _cut_anew(connection, partitions[0], partition_events)]
    last = partitions[-1] if partitions else Partition(0, 0, "")
    while (last.log_epoch, last.end) <= (log_epoch, seq):
        place = last.end - 1 if last.log_epoch == log_epoch else 0
        end = (place // partition_events + 1) * partition_events + 1
        made = Partition(log_epoch, end, f"events_to_{log_epoch}_{end - 1}")
        await _attach(connection, last, made)
        last = made
    await connection.execute(
        update(cursors).where(cursors.c.name == cursor).values(room=last.end - 1)
    )


async def _is_as_made(connection: AsyncConnection, first: Partition) -> bool:
    """Whether the first partition holds nothing yet, and ends where the migration ended it."""
    is_empty = not await connection.scalar(text(f"SELECT EXISTS (SELECT FROM {first.name})"))
    return is_empty and first.end == FIRST_EVENTS + 1


async def _cut_anew(
    connection: AsyncConnection, first: Partition, partition_events: int
) -> Partition:
    """The first partition of a new cluster, for so many events."""
    end = partition_events + 1
    for statement in (
        f"ALTER TABLE events DETACH PARTITION {first.name}",
        f"ALTER TABLE events ATTACH PARTITION {first.name}"
        f" FOR VALUES FROM (MINVALUE, MINVALUE) TO ({first.log_epoch:d}, {end:d})",
    ):
        await connection.execute(text(statement))
    return Partition(first.log_epoch, end, first.name)


async def _attach(connection: AsyncConnection, before: Partition, made: Partition) -> None:
    """A new partition: to attach one does not wait for those who read the others."""
    first = f"{before.log_epoch:d}, {before.end:d}" if before.name else "MINVALUE, MINVALUE"
    for statement in (
        f"CREATE TABLE {made.name} (LIKE events INCLUDING ALL)",
        *(one.format(name=made.name) for one in _STAY),
        f"ALTER TABLE events ATTACH PARTITION {made.name}"
        f" FOR VALUES FROM ({first}) TO ({made.log_epoch:d}, {made.end:d})",
    ):
        await connection.execute(text(statement))
