"""The files of an archive: Parquet, as `tcctl audit export` makes it, with what each event is about
in more columns. So such a file proves itself, and any tool reads it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from tensorcast.log.port import Stored
from tensorcast.schema.api_audit import BadEvent, Life, RawEvent
from tensorcast.schema.chain import chain_event
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.ids import Seq
from tensorcast.schema.log_copies import FORMAT, Heading
from tensorcast.storage.log_parquet import (
    PLACES,
    PROVEN,
    SHOWN,
    ParquetReader,
    ParquetWriter,
)

FILE_EVENTS: Final = 1 << 18
GROUP_EVENTS: Final = 8192
"""Rows that are compressed together: one event is read by unpacking so many."""
BATCH_EVENTS: Final = 1000
ALTERED: Final = "its bytes, its place or its subject are not those that were hashed"
MISSING: Final = "it is missing in the archive"


class Archived(msgspec.Struct, frozen=True):
    """A row of the history, to be put into a file: the event, and what it is about. `at` is the
    time that the row has: of what nobody can read, when it was seen."""

    seq: Seq
    subject: str
    payload: bytes
    at: datetime
    is_unreadable: bool
    aggregate_kind: str
    aggregate_id: str
    artifact: str | None
    node: str | None
    previous: str | None


def name_file(cluster: str, log_epoch: int, first: int, last: int) -> str:
    """The name of a file; those of a cluster sort by their events."""
    return f"{cluster}-{log_epoch}-{first:012d}-{last:012d}.parquet"


def make_heading(cluster: str, log_epoch: int, first: int, last: int, previous: bytes) -> Heading:
    """What the file says that it is."""
    life = Life(log_epoch=log_epoch, first=Seq(first), last=Seq(last))
    return Heading(tensorcast_log=FORMAT, cluster=cluster, previous=previous.hex(), lives=(life,))


class SegmentWriter:
    """Writes one file, while the block lasts: the rows in order, each with the hash that the chain
    has for it. Raises Corrupt for a row that is not what was hashed: it is kept as it is."""

    def __init__(self, path: Path, heading: Heading, hashes: bytes) -> None:
        self.at_first: datetime | None = None
        self.at_last: datetime | None = None
        self._life = heading.lives[0]
        self._hashes = hashes
        self._head = bytes.fromhex(heading.previous)
        self._next = int(self._life.first)
        self._places = hashlib.blake2b()
        self._writer = ParquetWriter(path, heading, (), with_places=True)

    def write(self, rows: Sequence[Archived]) -> None:
        """Adds rows."""
        events = [self._prove(row) for row in rows]
        places: dict[str, list[object]] = {
            name: [getattr(row, name) for row in rows] for name in PLACES[:-1]
        }
        places["seen_at"] = [row.at if row.is_unreadable else None for row in rows]
        for values in zip(*places.values(), strict=True):
            self._places.update(_flatten(values))
        times = [row.at for row in rows]
        self.at_first = min(times + ([self.at_first] if self.at_first else []))
        self.at_last = max(times + ([self.at_last] if self.at_last else []))
        self._writer.write(events, places)

    def _prove(self, row: Archived) -> RawEvent:
        offset = 32 * (self._next - int(self._life.first))
        wanted = self._hashes[offset : offset + 32]
        epoch = self._life.log_epoch
        head = chain_event(self._head, epoch, row.seq, row.subject.encode(), row.payload)
        if row.seq != self._next or head != wanted:
            raise Corrupt(
                f"Event {self._next} is not what the chain has of it: nothing was archived.",
                hint="`tcctl audit verify` tells more.",
            )
        self._head, self._next = head, self._next + 1
        return RawEvent(
            log_epoch=epoch,
            seq=row.seq,
            subject=row.subject,
            payload=row.payload,
            hash=head.hex(),
        )

    def is_whole(self) -> bool:
        """Whether all rows came."""
        return self._next == self._life.last + 1

    def places_digest(self) -> bytes:
        """What vouches for the columns of `PLACES`."""
        return self._places.digest()

    def __enter__(self) -> SegmentWriter:
        self._writer.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._writer.__exit__(None, None, None)


def digest_places(path: Path) -> bytes:
    """What vouches for the columns of `PLACES` of a file, as it was read. Raises Corrupt."""
    hasher = hashlib.blake2b()
    with ParquetReader(path) as reader:
        for row in reader.rows(PLACES):
            hasher.update(_flatten([row[name] for name in PLACES]))
    return hasher.digest()


def _flatten(values: Sequence[object]) -> bytes:
    """The values of a row as bytes that are the same wherever they come from."""
    plain = [one.isoformat() if isinstance(one, datetime) else one for one in values]
    return repr(plain).encode()


def check_file(
    path: Path, log_epoch: int, first: int, last: int, previous: bytes, hashes: bytes
) -> tuple[int, bytes, BadEvent | None]:
    """Reads the events from `first` to `last` of a file, and compares them with the chain: how many
    are right, the hash of the last of them, and the first that is wrong."""
    head, seq = previous, first
    try:
        with ParquetReader(path) as reader:
            for row in reader.rows((*PROVEN, *SHOWN), after=Seq(first - 1)):
                if seq > last:
                    break
                if (row["log_epoch"], row["seq"]) != (log_epoch, seq):
                    return seq - first, head, BadEvent(seq=Seq(seq), reason=MISSING)
                event = reader.event(row)
                subject = event.subject.encode()
                found = chain_event(head, log_epoch, seq, subject, event.payload)
                offset = 32 * (seq - first)
                if found != hashes[offset : offset + 32]:
                    return seq - first, head, BadEvent(seq=Seq(seq), reason=ALTERED)
                head, seq = found, seq + 1
    except Corrupt as error:
        reason = f"its archive: {error.message.rstrip('.')}"
        return seq - first, head, BadEvent(seq=Seq(seq), reason=reason)
    bad = BadEvent(seq=Seq(seq), reason=MISSING) if seq <= last else None
    return seq - first, head, bad


def read_stored(path: Path, after: Seq, last: Seq) -> Iterator[tuple[Stored, ...]]:
    """The events after `after` up to `last` of a file, in batches. Raises Corrupt."""
    batch: list[Stored] = []
    with ParquetReader(path) as reader:
        for row in reader.rows(("seq", "subject", "payload"), after=after):
            if row["seq"] > last:
                break
            batch.append(Stored(Seq(row["seq"]), row["subject"], row["payload"]))
            if len(batch) == BATCH_EVENTS:
                yield tuple(batch)
                batch = []
    if batch:
        yield tuple(batch)


def seen_at(row: Mapping[str, object]) -> datetime:
    """When an event that nobody can read was seen."""
    moment = row.get("seen_at")
    return moment if isinstance(moment, datetime) else datetime.min.replace(tzinfo=UTC)


def sync(path: Path) -> None:
    """What was written there is on disk, and so is its name."""
    for one in (path, path.parent):
        descriptor = os.open(one, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
