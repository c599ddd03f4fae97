"""Old events moved from the tables into files: never one that is not on disk and was read back.

Partition by partition, the oldest first: its events are written, made durable, read back and
compared with the chain, and noted in `archives`; only then the partition goes, in one transaction
with the note that it did. Killed anywhere, the next run goes on: a file that is whole is taken as
it is, one that is not is written anew. The hashes of all events stay in `chain`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
from sqlalchemy import func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from tensorcast.controlplane.core.snapshots import EVENTS_EVERY
from tensorcast.controlplane.store.archive_files import (
    FILE_EVENTS,
    GROUP_EVENTS,
    Archived,
    SegmentWriter,
    check_file,
    digest_places,
    make_heading,
    name_file,
    sync,
)
from tensorcast.controlplane.store.archives import (
    ROW_COLUMNS,
    Segment,
    digest_of,
    hold_floor,
    reach,
)
from tensorcast.controlplane.store.chain import load_hash
from tensorcast.controlplane.store.partitions import Partition, list_partitions
from tensorcast.controlplane.store.rows import UNREADABLE
from tensorcast.controlplane.store.snapshots import last_layer
from tensorcast.controlplane.store.tables import archives
from tensorcast.controlplane.store.verification import load_hashes
from tensorcast.controlplane.store.write import driver_of, load_position
from tensorcast.schema.api_audit import VerifySpan
from tensorcast.schema.errors import Conflict, Corrupt, TensorCastError, Unavailable
from tensorcast.schema.ids import Seq

DROP_TRIES_MAX: Final = 60
_LOCK_TIMEOUT: Final = "2s"
"""A reader that holds the history for long (a backup) must not hold up the persister."""
_PAUSE_S: Final = 1.0
_LOCK_NOT_AVAILABLE: Final = "55P03"
_ROWS: Final = (
    "SELECT seq, subject, payload, at, type, aggregate_kind, aggregate_id, artifact, node,"
    " data ->> 'previous' FROM events WHERE log_epoch = $1 AND seq BETWEEN $2 AND $3 ORDER BY seq"
)


class Work(msgspec.Struct, frozen=True):
    """What is to be archived: the events of `partition`, from `first` on."""

    partition: Partition
    first: Seq

    @property
    def last(self) -> Seq:
        """The last event of the partition."""
        return Seq(self.partition.end - 1)


class Limits(msgspec.Struct, frozen=True):
    """Which events are old: those before a position, those of which none of a partition is as young
    as a time, and those beyond so many bytes of younger ones; all of what is given."""

    before_seq: Seq | None = None
    before_time: datetime | None = None
    keep_bytes: int | None = None


async def plan_archive(connection: AsyncConnection, limits: Limits) -> list[Work]:
    """The partitions whose events are old, are all there, and have a snapshot after them, so that
    what is younger opens without them; the oldest first. Ends the transaction."""
    position = await load_position(connection)
    floor = await hold_floor(connection, position.log_epoch)
    layer = await last_layer(connection, position.log_epoch)
    reached = min(position.seq, layer.seq if layer else 0)
    if limits.before_seq is not None:
        reached = min(reached, limits.before_seq - 1)
    works, first = [], floor + 1
    for one in await list_partitions(connection):
        if one.log_epoch != position.log_epoch or one.end - 1 > reached:
            break
        works.append(Work(one, Seq(first)))
        first = one.end
    if limits.before_time is not None:
        works = await _older(connection, works, limits.before_time)
    if limits.keep_bytes is not None:
        works = await _beyond(connection, works, limits.keep_bytes)
    await connection.commit()
    return works


async def why_nothing(connection: AsyncConnection, limits: Limits) -> str:
    """Why `plan_archive` found nothing, in words, by the oldest partition. Ends the transaction."""
    position = await load_position(connection)
    floor = await hold_floor(connection, position.log_epoch)
    layer = await last_layer(connection, position.log_epoch)
    oldest = next(iter(await list_partitions(connection)), None)
    await connection.commit()
    if oldest is None or oldest.log_epoch != position.log_epoch:
        return "no partition is of this log"
    first, last = floor + 1, oldest.end - 1
    told = f"the oldest partition ends with event {last}"
    if position.seq < last:
        return f"{told}, and the last event is {position.seq}"
    if limits.before_seq is not None and limits.before_seq <= last:
        return f"{told}, which is not before {limits.before_seq}"
    if layer is None or layer.seq < last:
        return (
            f"the state after event {last}, the last one of the oldest partition, is in no"
            f" snapshot yet (one is made every {EVENTS_EVERY} events)"
        )
    if limits.before_time is not None:
        return f"not all of the events {first} to {last}, the oldest partition, are older"
    return "the events take no more room than they may"


async def _older(connection: AsyncConnection, works: list[Work], moment: datetime) -> list[Work]:
    old = []
    for one in works:
        newest = await connection.scalar(text(f"SELECT max(at) FROM {one.partition.name}"))
        if newest is None or newest >= moment:
            break
        old.append(one)
    return old


async def _beyond(connection: AsyncConnection, works: list[Work], keep_bytes: int) -> list[Work]:
    """As many of the oldest as must go for the others to have at most `keep_bytes`."""
    sizes = {
        one.name: await connection.scalar(text(f"SELECT pg_total_relation_size('{one.name}')"))
        for one in await list_partitions(connection)
    }
    total = sum(sizes.values())
    for count, one in enumerate(works):
        if total <= keep_bytes:
            return works[:count]
        total -= sizes[one.partition.name]
    return works


class Archiver:
    """Moves the events of partitions into `folder`. `say` hears how far it is."""

    def __init__(self, connection: AsyncConnection, cluster: str, folder: Path) -> None:
        self._connection = connection
        self._cluster = cluster
        self._folder = folder

    async def archive(self, work: Work) -> None:
        """One partition. Raises Corrupt when its rows are not what was hashed, Unavailable when
        somebody reads the history without an end, and what the disk raises."""
        await asyncio.to_thread(self._prepare)
        for first in range(work.first, work.last + 1, FILE_EVENTS):
            last = min(work.last, first + FILE_EVENTS - 1)
            await self._keep(work.partition.log_epoch, first, last)
        await self._drop(work)

    def _prepare(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self._folder.glob(f"{self._cluster}-*.part"):
            left.unlink()

    async def _keep(self, log_epoch: int, first: int, last: int) -> None:
        """Has these events in a file that is noted, whatever was done of it before."""
        if await self._is_kept(log_epoch, first, last):
            return
        path = self._folder / name_file(self._cluster, log_epoch, first, last)
        previous = await load_hash(self._connection, log_epoch, first - 1)
        span = VerifySpan(log_epoch=log_epoch, first=Seq(first), last=Seq(last))
        hashes = await load_hashes(self._connection, span)
        await self._connection.commit()
        fresh = path.with_name(path.name + ".part")
        heading = make_heading(self._cluster, log_epoch, first, last, previous)
        with SegmentWriter(fresh, heading, hashes) as writer:
            async for rows in self._rows(span):
                await asyncio.to_thread(writer.write, rows)
        await asyncio.to_thread(sync, fresh)
        await asyncio.to_thread(
            _check, fresh, span, previous, hashes, writer.places_digest(), writer.is_whole()
        )
        fresh.replace(path)
        await asyncio.to_thread(sync, path)
        row = {
            "log_epoch": log_epoch,
            "first": first,
            "last": last,
            "folder": str(self._folder),
            "name": path.name,
            "size_bytes": path.stat().st_size,
            "digest": await asyncio.to_thread(digest_of, path),
            "at_first": writer.at_first,
            "at_last": writer.at_last,
        }
        noted = insert(archives).values(row)
        await self._connection.execute(
            noted.on_conflict_do_update(index_elements=["log_epoch", "last"], set_=row)
        )
        await self._connection.commit()

    async def _is_kept(self, log_epoch: int, first: int, last: int) -> bool:
        """Whether an earlier run has noted a file with these events, and it is as it was then."""
        found = await self._connection.execute(
            select(*ROW_COLUMNS).where(
                archives.c.log_epoch == log_epoch,
                archives.c.last == last,
                archives.c.first == first,
            )
        )
        row = found.one_or_none()
        await self._connection.commit()
        if row is None:
            return False
        segment = Segment(*row)
        with suppress(TensorCastError, OSError):
            return await asyncio.to_thread(digest_of, reach(segment)) == segment.digest
        return False

    async def _rows(self, span: VerifySpan) -> AsyncIterator[list[Archived]]:
        async with self._connection.begin():
            await self._connection.execute(text("SELECT 1"))
            driver = await driver_of(self._connection)
            cursor = await driver.cursor(_ROWS, span.log_epoch, span.first, span.last)
            while rows := await cursor.fetch(GROUP_EVENTS):
                yield [
                    Archived(Seq(seq), subject, payload, at, kind == UNREADABLE, *about)
                    for seq, subject, payload, at, kind, *about in rows
                ]

    async def _drop(self, work: Work) -> None:
        for _ in range(DROP_TRIES_MAX):
            try:
                return await self._drop_once(work)
            except DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
                    raise
            await asyncio.sleep(_PAUSE_S)
        raise Unavailable(
            "The old events are in files, but could not be dropped: somebody reads the history"
            " without an end.",
            hint="Is a backup under way? Try again when it has ended.",
        )

    async def _drop_once(self, work: Work) -> None:
        """The one transaction. The persister waits for it."""
        name, epoch = work.partition.name, work.partition.log_epoch
        async with self._connection.begin():
            await self._connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'"))
            await self._connection.execute(text(f"ALTER TABLE events DETACH PARTITION {name}"))
            rows = await self._connection.scalar(text(f"SELECT count(*) FROM {name}"))
            of_work = (
                archives.c.log_epoch == epoch,
                archives.c.first >= work.first,
                archives.c.last <= work.last,
            )
            kept = await self._connection.scalar(
                select(func.sum(archives.c.last - archives.c.first + 1)).where(*of_work)
            )
            if not rows == kept == work.last - work.first + 1:
                raise Corrupt(
                    f"{name} has {rows} events, and {kept} of them are in files: it stays.",
                    hint="`tcctl audit verify` tells more.",
                )
            await self._connection.execute(text(f"DROP TABLE {name}"))
            await self._connection.execute(
                update(archives).where(*of_work).values(dropped_at=func.now())
            )


def _check(
    path: Path,
    span: VerifySpan,
    previous: bytes,
    hashes: bytes,
    places: bytes,
    is_whole: bool,
) -> None:
    """Raises Corrupt when what the disk has is not what was written."""
    _, _, bad = check_file(path, span.log_epoch, span.first, span.last, previous, hashes)
    if bad is None and is_whole and digest_places(path) == places:
        return
    told = f"event {bad.seq}: {bad.reason}" if bad else "what its events are about differs"
    raise Corrupt(
        f"{path.name} is not what was written ({told}): nothing was dropped.",
        hint="Is the disk well?",
    )


def require_folder(folder: str | None) -> Path:
    """Where archives go. Raises Conflict when nobody said so."""
    if not folder:
        raise Conflict(
            "It is not known where archives go.",
            hint="Say --to DIR, or set TENSORCAST_ARCHIVE_DIR for the control plane.",
        )
    return Path(folder).expanduser().absolute()
