"""The old part of the history, which lies in files: how far it goes, and which file has what.

The events up to the *floor* are in files alone. A reader learns the floor and holds it for as long
as its transaction: until then no partition can go.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from sqlalchemy import select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from tensorcast.controlplane.store.archive_files import read_stored
from tensorcast.controlplane.store.tables import archives
from tensorcast.log.port import Stored
from tensorcast.schema.api_store import ArchiveInfo
from tensorcast.schema.errors import NotFound
from tensorcast.schema.ids import Seq

# A lock on the table itself (it has no rows of its own) comes with the statement, before what the
# statement sees.
_FLOOR: Final = text(
    "SELECT coalesce(max(last), 0) + (SELECT count(*) FROM ONLY events) FROM archives"
    " WHERE log_epoch = :epoch AND dropped_at IS NOT NULL"
)


class Segment(msgspec.Struct, frozen=True):
    """A file with the events from `first` to `last`; `digest` is its SHA-256."""

    log_epoch: int
    first: Seq
    last: Seq
    folder: str
    name: str
    size_bytes: int
    digest: bytes

    @property
    def path(self) -> Path:
        """Where it should be."""
        return Path(self.folder) / self.name


ROW_COLUMNS: Final = [archives.c[name] for name in Segment.__struct_fields__]


async def hold_floor(connection: AsyncConnection, log_epoch: int) -> Seq:
    """The last event that only files have, 0 when there is none. It stays so until the caller's
    transaction ends."""
    return Seq(await connection.scalar(_FLOOR, {"epoch": log_epoch}))


async def find_segments(
    connection: AsyncConnection, log_epoch: int, first: int, last: int
) -> tuple[Segment, ...]:
    """The files that have the events from `first` to `last` that only files have, in order."""
    found = await connection.execute(
        select(*ROW_COLUMNS)
        .where(
            archives.c.log_epoch == log_epoch,
            archives.c.last >= first,
            archives.c.first <= last,
            archives.c.dropped_at.is_not(None),
        )
        .order_by(archives.c.first)
    )
    return tuple(Segment(*row) for row in found)


def reach(segment: Segment) -> Path:
    """The path of a file that is there and has its length. Raises NotFound, saying what to do."""
    path = segment.path
    try:
        size = path.stat().st_size
    except OSError:
        size = -1
    if size == segment.size_bytes:
        return path
    how = "which is not there" if size < 0 else f"which has {size} bytes of {segment.size_bytes}"
    raise NotFound(
        f"Events {segment.first} to {segment.last} lie in the archive {path}, {how}.",
        hint="Bring the file back, or say where the archives are now: `tcctl store archives"
        f" --moved-to DIR`. What came after event {segment.last} can be read without it.",
    )


def reach_all(segments: Sequence[Segment]) -> list[Path]:
    """As `reach`."""
    return [reach(one) for one in segments]


async def read_old(
    connection: AsyncConnection, log_epoch: int, after: Seq, last: Seq
) -> AsyncGenerator[tuple[Stored, ...], None]:
    """The events after `after` up to `last`, which only files have, in batches. Raises NotFound
    when a file is not there, Corrupt when one cannot be read."""
    if after >= last:
        return
    for segment in await find_segments(connection, log_epoch, after + 1, last):
        batches = read_stored(reach(segment), max(after, Seq(segment.first - 1)), last)
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            yield batch


def digest_of(path: Path) -> bytes:
    """The SHA-256 of a file. Raises OSError."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # as the disk has it
        return hashlib.file_digest(file, "sha256").digest()


async def list_archives(connection: AsyncConnection) -> tuple[ArchiveInfo, ...]:
    """All files that are known, the oldest events first, each with what is wrong with it at a
    glance."""
    rows = await connection.execute(
        select(archives).order_by(archives.c.log_epoch, archives.c.first)
    )
    return tuple(
        ArchiveInfo(
            log_epoch=row.log_epoch,
            first=Seq(row.first),
            last=Seq(row.last),
            path=str(Path(row.folder) / row.name),
            bytes=row.size_bytes,
            at_first=row.at_first,
            at_last=row.at_last,
            made_at=row.made_at,
            is_dropped=row.dropped_at is not None,
            problem=_problem(Segment(*(getattr(row, name) for name in Segment.__struct_fields__))),
        )
        for row in rows
    )


def _problem(segment: Segment) -> str | None:
    try:
        reach(segment)
    except NotFound as error:
        return error.message
    return None


async def move_archives(connection: AsyncConnection, folder: str) -> int:
    """Says that the files are in `folder` now, those of them that are; tells how many. Inside the
    caller's transaction."""
    rows = (await connection.execute(select(*ROW_COLUMNS))).all()
    moved = 0
    for row in rows:
        segment = msgspec.structs.replace(Segment(*row), folder=folder)
        if _problem(segment) is None:
            at = (archives.c.log_epoch == segment.log_epoch, archives.c.last == segment.last)
            await connection.execute(update(archives).where(*at).values(folder=folder))
            moved += 1
    return moved
