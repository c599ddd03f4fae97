"""A copy of the log as Parquet: a row an event, for people who ask with SQL. Needs pyarrow.

The columns that show what an event says are there to be read; proofs look at its bytes, and that
these columns say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, Self

import msgspec

from tensorcast.client.log_files import Heading, check_heading
from tensorcast.schema.api_audit import RawEvent
from tensorcast.schema.errors import Corrupt, InvalidArgument
from tensorcast.schema.ids import Seq

HEADING: Final = b"tensorcast_log"
HEADS: Final = b"tensorcast_heads"
ROWS_AT_ONCE: Final = 10_000
INTEGER_MAX: Final = (1 << 63) - 1


def load_pyarrow() -> tuple[ModuleType, ModuleType]:
    """pyarrow and its Parquet. Raises InvalidArgument when it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InvalidArgument(
            "Parquet needs pyarrow, which is not installed.",
            hint="`pip install 'tensorcast-taas[parquet]'`, or use --format jsonl.",
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


def _schema(pyarrow: ModuleType, heading: Heading, heads: Sequence[str]) -> object:
    fields = [
        ("log_epoch", pyarrow.int32()),
        ("seq", pyarrow.int64()),
        ("subject", pyarrow.string()),
        ("id", pyarrow.string()),
        ("type", pyarrow.string()),
        ("v", pyarrow.int64()),
        ("at", pyarrow.timestamp("us", tz="UTC")),
        ("actor", pyarrow.string()),
        ("cause", pyarrow.string()),
        ("data", pyarrow.string()),
        ("payload", pyarrow.binary()),
        ("hash", pyarrow.string()),
    ]
    metadata = {HEADING: msgspec.json.encode(heading), HEADS: msgspec.json.encode(tuple(heads))}
    return pyarrow.schema(fields, metadata=metadata)


class ParquetWriter:
    """Writes a new file while the block lasts."""

    def __init__(self, path: Path, heading: Heading, heads: Sequence[str]) -> None:
        self._pyarrow, parquet = load_pyarrow()
        self._schema = _schema(self._pyarrow, heading, heads)
        self._writer = parquet.ParquetWriter(str(path), self._schema, compression="zstd")

    def write(self, events: Sequence[RawEvent]) -> None:
        """Adds events, as a group of rows."""
        shown = [show(one.payload) for one in events]
        columns: dict[str, list[object]] = {
            name: [getattr(one, name) for one in events]
            for name in ("log_epoch", "seq", "subject", "payload", "hash")
        }
        columns |= {name: [getattr(one, name) for one in shown] for name in Shown.__struct_fields__}
        self._writer.write_table(self._pyarrow.table(columns, schema=self._schema))

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
        try:
            for batch in self._file.iter_batches(ROWS_AT_ONCE):
                for row in batch.to_pylist():
                    yield self._event(row)
        except (OSError, self._pyarrow.ArrowException) as error:
            raise Corrupt(f"{self._name} cannot be read: {error}.") from error

    def _event(self, row: dict[str, Any]) -> RawEvent:
        try:
            event = RawEvent(
                log_epoch=row["log_epoch"],
                seq=Seq(row["seq"]),
                subject=row["subject"],
                payload=row["payload"],
                hash=row["hash"],
            )
            has = Shown(*(row[name] for name in Shown.__struct_fields__))
        except KeyError as error:
            raise Corrupt(f"{self._name} has no column {error}.") from error
        if show(event.payload) != has:
            raise Corrupt(f"The columns of event {event.seq} do not say what its bytes say.")
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
