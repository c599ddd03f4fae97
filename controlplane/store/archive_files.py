"""The files of an archive: Parquet, as `tcctl audit export` makes it, with what each event is about
in more columns. So such a file proves itself, and any tool reads it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tensorcast.log.port import Stored
from tensorcast.schema.api_audit import BadEvent, Life, RawEvent
from tensorcast.schema.chain import HASH_BYTES, chain_event, chain_events
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.ids import Seq
from tensorcast.schema.log_copies import FORMAT, Heading
from tensorcast.storage.log_parquet import (
    PLACES,
    PROVEN,
    SHOWN,
    ParquetReader,
    ParquetWriter,
    cells,
    numbers,
)

if TYPE_CHECKING:
    from pyarrow import RecordBatch

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
        self._places = _Places()
        self._writer = ParquetWriter(path, heading, (), with_places=True)

    def write(self, rows: Sequence[Archived]) -> None:
        """Adds rows."""
        events = [self._prove(row) for row in rows]
        places: dict[str, list[object]] = {
            name: [getattr(row, name) for row in rows] for name in PLACES[:-1]
        }
        places["seen_at"] = [row.at if row.is_unreadable else None for row in rows]
        self._places.take(places)
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
    places = _Places()
    with ParquetReader(path) as reader:
        for batch in reader.batches(PLACES):
            places.take({name: batch.column(name).to_pylist() for name in PLACES})
    return places.digest()


class _Places:
    """What vouches for the columns of `PLACES`, however they are cut into batches."""

    def __init__(self) -> None:
        self._hashers = {name: hashlib.blake2b() for name in PLACES}

    def take(self, columns: Mapping[str, Sequence[object]]) -> None:
        """More rows."""
        for name, hasher in self._hashers.items():
            hasher.update(msgspec.json.encode(columns[name])[1:-1] + b",")

    def digest(self) -> bytes:
        return b"".join(hasher.digest() for hasher in self._hashers.values())


def check_file(
    path: Path, log_epoch: int, first: int, last: int, previous: bytes, hashes: bytes
) -> tuple[int, bytes, BadEvent | None]:
    """Reads the events from `first` to `last` of a file, and compares them with the chain: how many
    are right, the hash of the last of them, and the first that is wrong."""
    check = _FileCheck(log_epoch, first, last, previous, hashes)
    try:
        with ParquetReader(path) as reader:
            for batch in reader.batches((*PROVEN, *SHOWN), after=Seq(first - 1)):
                if check.is_over:
                    break
                check.take(reader, batch)
    except Corrupt as error:
        reason = f"its archive: {error.message.rstrip('.')}"
        check.bad = BadEvent(seq=Seq(check.next), reason=reason)
    if check.bad is None and check.next <= last:
        check.bad = BadEvent(seq=Seq(check.next), reason=MISSING)
    return check.next - first, check.head, check.bad


class _FileCheck:
    """Takes batches of rows, up to the first event that is not right, or to the last that is
    asked for."""

    def __init__(
        self, log_epoch: int, first: int, last: int, previous: bytes, hashes: bytes
    ) -> None:
        self.next, self.head = first, previous
        self.bad: BadEvent | None = None
        self._log_epoch = log_epoch
        self._first, self._last = first, last
        self._hashes = hashes

    @property
    def is_over(self) -> bool:
        return self.bad is not None or self.next > self._last

    def take(self, reader: ParquetReader, batch: RecordBatch) -> None:
        """Checks the batch as a whole, by its columns; what does not fit is looked at one by one.
        Raises Corrupt for an event whose columns do not say what its bytes say."""
        count = min(batch.num_rows, self._last - self.next + 1)
        if not self._take_whole(reader, batch.slice(0, count)):
            self._take_each(reader, batch)

    def _take_whole(self, reader: ParquetReader, batch: RecordBatch) -> bool:
        count, start = batch.num_rows, HASH_BYTES * (self.next - self._first)
        if any(batch.column(name).null_count for name in PROVEN):
            return False
        payloads, seqs = cells(batch.column("payload")), range(self.next, self.next + count)
        found = chain_events(
            self.head,
            self._log_epoch,
            zip(seqs, cells(batch.column("subject")), payloads, strict=True),
        )
        is_right = (
            numbers(batch.column("seq"), "q") == list(seqs)
            and set(numbers(batch.column("log_epoch"), "i")) <= {self._log_epoch}
            and found == self._hashes[start : start + HASH_BYTES * count]
            and reader.agrees(batch, payloads)
        )
        if is_right and count:
            self.next, self.head = self.next + count, found[-HASH_BYTES:]
        return is_right

    def _take_each(self, reader: ParquetReader, batch: RecordBatch) -> None:
        for row in batch.to_pylist():
            seq = self.next
            if self.is_over:
                return
            if (row["log_epoch"], row["seq"]) != (self._log_epoch, seq):
                self.bad = BadEvent(seq=Seq(seq), reason=MISSING)
                return
            event = reader.event(row)
            subject = event.subject.encode()
            found = chain_event(self.head, self._log_epoch, seq, subject, event.payload)
            offset = HASH_BYTES * (seq - self._first)
            if found != self._hashes[offset : offset + HASH_BYTES]:
                self.bad = BadEvent(seq=Seq(seq), reason=ALTERED)
                return
            self.head, self.next = found, seq + 1


def read_stored(path: Path, after: Seq, last: Seq) -> Iterator[tuple[Stored, ...]]:
    """The events after `after` up to `last` of a file, in batches. Raises Corrupt."""
    with ParquetReader(path) as reader:
        for batch in reader.batches(("seq", "subject", "payload"), after=after):
            columns = (
                numbers(batch.column("seq"), "q"),
                cells(batch.column("subject")),
                cells(batch.column("payload")),
            )
            found = [
                Stored(Seq(seq), subject.decode(), payload)
                for seq, subject, payload in zip(*columns, strict=True)
                if seq <= last
            ]
            for start in range(0, len(found), BATCH_EVENTS):
                yield tuple(found[start : start + BATCH_EVENTS])
            if len(found) < batch.num_rows:
                return


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
