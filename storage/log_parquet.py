"""A copy of the log as Parquet: a row an event, for people who ask with SQL. Needs pyarrow.

The columns that show what an event says are there to be read; proofs look at its bytes, and that
these columns say the same. Archives of the history have the columns of `PLACES` as well: what an
event is about, as the database knew it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import msgspec

from tensorcast.schema.api_audit import RawEvent
from tensorcast.schema.errors import Corrupt, InvalidArgument
from tensorcast.schema.ids import Seq
from tensorcast.schema.log_copies import Heading, check_heading

if TYPE_CHECKING:
    from pyarrow import Array, RecordBatch

HEADING: Final = b"tensorcast_log"
HEADS: Final = b"tensorcast_heads"
ROWS_AT_ONCE: Final = 10_000
INTEGER_MAX: Final = (1 << 63) - 1
PROVEN: Final = ("log_epoch", "seq", "subject", "payload", "hash")
PLACES: Final = ("aggregate_kind", "aggregate_id", "artifact", "node", "previous", "seen_at")
"""What an event is about; the artifact that a key left; when an event that nobody can read was
seen."""


def load_pyarrow() -> tuple[ModuleType, ModuleType]:
    """pyarrow and its Parquet. Raises InvalidArgument when it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InvalidArgument(
            "Parquet needs pyarrow, which is not installed.",
            hint="`pip install 'tensorcast-taas[parquet]'`; an export can be JSON lines as well.",
        ) from error
    return pyarrow, pyarrow.parquet


class Shown(msgspec.Struct, frozen=True):
    """What the columns show of an event, beside its place, bytes and hash; all None for bytes that
    are no event."""

    id: str | None = None
    type: str | None = None
    v: int | None = None
    at: datetime | None = None
    actor: str | None = None
    cause: str | None = None
    data: str | None = None


SHOWN: Final = Shown.__struct_fields__


class _Wire(msgspec.Struct):
    id: str
    type: str
    v: int
    at: datetime
    actor: str
    data: msgspec.Raw
    cause: str | None = None


_wire = msgspec.json.Decoder(_Wire)


def show(payload: bytes) -> Shown:
    """What the bytes of an event say."""
    try:
        wire = _wire.decode(payload)
        data = bytes(wire.data).decode()
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return Shown()
    if abs(wire.v) > INTEGER_MAX or wire.at.tzinfo is None:
        return Shown()
    return Shown(wire.id, wire.type, wire.v, wire.at, wire.actor, wire.cause, data)


def _schema(
    pyarrow: ModuleType, heading: Heading, heads: Sequence[str], *, with_places: bool
) -> object:
    moment = pyarrow.timestamp("us", tz="UTC")
    fields = [
        ("log_epoch", pyarrow.int32()),
        ("seq", pyarrow.int64()),
        ("subject", pyarrow.string()),
        ("id", pyarrow.string()),
        ("type", pyarrow.string()),
        ("v", pyarrow.int64()),
        ("at", moment),
        ("actor", pyarrow.string()),
        ("cause", pyarrow.string()),
        ("data", pyarrow.string()),
        ("payload", pyarrow.binary()),
        ("hash", pyarrow.string()),
    ]
    if with_places:
        fields += [(name, moment if name == "seen_at" else pyarrow.string()) for name in PLACES]
    metadata = {HEADING: msgspec.json.encode(heading), HEADS: msgspec.json.encode(tuple(heads))}
    return pyarrow.schema(fields, metadata=metadata)


class ParquetWriter:
    """Writes a new file while the block lasts."""

    def __init__(
        self, path: Path, heading: Heading, heads: Sequence[str], *, with_places: bool = False
    ) -> None:
        self._pyarrow, parquet = load_pyarrow()
        self._schema = _schema(self._pyarrow, heading, heads, with_places=with_places)
        self._writer = parquet.ParquetWriter(str(path), self._schema, compression="zstd")

    def write(
        self,
        events: Sequence[RawEvent],
        places: Mapping[str, Sequence[object]] | None = None,
    ) -> None:
        """Adds events, as a group of rows; `places` are the columns of that name."""
        shown = [show(one.payload) for one in events]
        columns: dict[str, Sequence[object]] = {
            name: [getattr(one, name) for one in events] for name in PROVEN
        }
        columns |= {name: [getattr(one, name) for one in shown] for name in SHOWN}
        columns |= places or {}
        table = self._pyarrow.table(columns, schema=self._schema)
        self._writer.write_table(table, row_group_size=len(events))

    def finish(self) -> None:
        """As `LogWriter.finish`: what makes a Parquet file whole is written at its end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writer.close()


def cells(column: Array) -> list[bytes]:
    """The cells of a column of text or bytes in which none is missing: much faster than one by
    one."""
    _, offsets, data = column.buffers()
    if not len(column) or offsets is None or data is None:
        return [b""] * len(column)
    ends = memoryview(offsets).cast("i")[column.offset : column.offset + len(column) + 1]
    plain = memoryview(data)[ends[0] : ends[-1]].tobytes()
    first = ends[0]
    return [plain[start - first : end - first] for start, end in pairwise(ends)]


def numbers(column: Array, size: Literal["i", "q"]) -> list[int]:
    """The cells of a column of integers of 4 (`i`) or 8 bytes (`q`) in which none is missing."""
    _, data = column.buffers()
    if data is None:
        return []
    found = memoryview(data).cast(size)[column.offset : column.offset + len(column)]
    return found.tolist()


class ParquetReader:
    """Reads a file while the block lasts."""

    def __init__(self, path: Path) -> None:
        self._pyarrow, parquet = load_pyarrow()
        self._name = path.name
        try:
            self._file = parquet.ParquetFile(str(path))
        except (OSError, self._pyarrow.ArrowException) as error:
            raise Corrupt(f"{path.name} is not whole: {error}.", hint="Export it again.") from error
        metadata = self._file.schema_arrow.metadata or {}
        try:
            heading = msgspec.json.decode(metadata.get(HEADING, b""), type=Heading)
            self.heads = msgspec.json.decode(metadata.get(HEADS, b"[]"), type=list[str])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InvalidArgument(
                f"{path.name} is no copy of a log.", hint="`tcctl audit export` makes one."
            ) from error
        self.heading = check_heading(heading, path.name)

    def events(self) -> Iterator[RawEvent]:
        """As `LogReader.events`. Raises Corrupt for an event whose columns do not say what its
        bytes say as well."""
        for row in self.rows((*PROVEN, *SHOWN)):
            yield self.event(row)

    def event(self, row: Mapping[str, Any]) -> RawEvent:
        """The event of a row of `PROVEN` and `SHOWN`. Raises Corrupt for one whose columns do not
        say what its bytes say."""
        event = RawEvent(**{name: row[name] for name in PROVEN})
        if show(event.payload) != Shown(*(row[name] for name in SHOWN)):
            raise Corrupt(f"The columns of event {event.seq} do not say what its bytes say.")
        return event

    def agrees(self, batch: RecordBatch, payloads: Sequence[bytes]) -> bool:
        """Whether the columns of `SHOWN` say what the bytes of their events say, of a whole batch.
        False: look at each."""
        shown = [show(payload) for payload in payloads]
        for name in SHOWN:
            column = batch.column(name)
            said = self._pyarrow.array([getattr(one, name) for one in shown], column.type)
            if not said.equals(column):
                return False
        return True

    def rows(self, columns: Sequence[str], *, after: Seq | None = None) -> Iterator[dict[str, Any]]:
        """These columns of all rows, or of those after event `after`. Raises Corrupt for a file
        that cannot be read, or lacks one."""
        for batch in self.batches(columns, after=after):
            yield from batch.to_pylist()

    def batches(self, columns: Sequence[str], *, after: Seq | None = None) -> Iterator[RecordBatch]:
        """As `rows`, in batches of columns."""
        for name in columns:
            if name not in self._file.schema_arrow.names:
                raise Corrupt(f"{self._name} has no column {name!r}.")
        groups, skipped = range(self._file.num_row_groups), 0
        if after is not None and self._file.metadata.num_rows:
            groups, skipped = self._groups_after(after)
        try:
            for batch in self._file.iter_batches(
                ROWS_AT_ONCE, columns=list(columns), row_groups=list(groups)
            ):
                rows = batch.slice(skipped)
                skipped = max(0, skipped - batch.num_rows)
                yield rows
        except (OSError, self._pyarrow.ArrowException) as error:
            raise Corrupt(f"{self._name} cannot be read: {error}.") from error

    def _groups_after(self, after: Seq) -> tuple[range, int]:
        """The groups of rows that have the events after `after`, and how many rows of the first of
        them are before: positions follow each other."""
        count, place = self._file.num_row_groups, after - (self.heading.lives[0].first - 1)
        for group in range(count):
            held = self._file.metadata.row_group(group).num_rows
            if place < held:
                return range(group, count), max(0, place)
            place -= held
        return range(count, count), 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
