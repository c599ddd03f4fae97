"""Copies of the log in files, whole or a part: what proves it is in them.

JSON lines: the first line says what it is, the signed heads follow, then each event is a line with
its exact bytes, its place and its hash; the last line says that this is the end. Parquet: the same
in columns (optional, needs pyarrow), with the heads in the metadata of the file.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import msgspec

from tensorcast.client.proofs import Anchor
from tensorcast.schema.api_audit import RawEvent
from tensorcast.schema.errors import Corrupt, InvalidArgument, NotFound, PermissionDenied
from tensorcast.schema.log_copies import Heading, check_heading
from tensorcast.schema.wording import tell_count

LINE_BYTES_MAX: Final = 16 << 20
"""Longest line: an event has 7 MiB at most, base64 makes a third more of it."""


class LogWriter(Protocol):
    """Takes a copy, event by event."""

    def write(self, events: Sequence[RawEvent]) -> None: ...

    def finish(self) -> None:
        """The file is whole after that."""
        ...


class LogReader(Protocol):
    """A copy that is in a file, with the signed heads as they were found."""

    heading: Heading
    heads: list[str]

    def events(self) -> Iterator[RawEvent]:
        """All events, in order. Raises Corrupt for a file that is not whole."""
        ...


# ---- JSON lines ------------------------------------------------------------------------------


class _Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Any line after the first: an event (`event`, or `bytes` where the bytes are no line of JSON),
    a signed head, or the end with the number of events."""

    log_epoch: int = 0
    seq: int = 0
    subject: str = ""
    hash: str = ""
    event: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    bytes: str | None = None
    head: str | None = None
    end: int | None = None


_encode = msgspec.json.Encoder().encode
_decode_line = msgspec.json.Decoder(_Line).decode


class JsonLinesWriter:
    """Writes to an open file, which stays the caller's."""

    def __init__(self, file: BinaryIO, heading: Heading, heads: Sequence[str]) -> None:
        self._file = file
        self._count = 0
        self._put(heading)
        for head in heads:
            self._put(_Line(head=head))

    def write(self, events: Sequence[RawEvent]) -> None:
        """Adds events."""
        self._file.write(b"".join(_event_line(one) + b"\n" for one in events))
        self._count += len(events)

    def finish(self) -> None:
        """As `LogWriter.finish`."""
        self._put(_Line(end=self._count))

    def _put(self, line: msgspec.Struct) -> None:
        self._file.write(_encode(line) + b"\n")


def _event_line(one: RawEvent) -> bytes:
    line = _Line(log_epoch=one.log_epoch, seq=one.seq, subject=one.subject, hash=one.hash)
    if _is_one_line(one.payload):
        line.event = msgspec.Raw(one.payload)
    else:
        line.bytes = base64.b64encode(one.payload).decode()
    return _encode(line)


def _is_one_line(payload: bytes) -> bool:
    """Whether the bytes are an object of JSON that a line can hold as it is."""
    if not payload.startswith(b"{") or not payload.endswith(b"}") or b"\n" in payload:
        return False
    try:
        msgspec.json.decode(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return False
    return True


class JsonLinesReader:
    """Reads an open file, which stays the caller's."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        self.heads: list[str] = []
        self.heading = _parse_heading(self._line(), name)
        self._first = self._read_heads()

    def events(self) -> Iterator[RawEvent]:
        """As `LogReader.events`."""
        count = 0
        raw = self._first
        while raw:
            line = self._parse(raw)
            raw = self._line()
            if line.end is not None:
                if line.end != count or raw:
                    break
                return
            count += 1
            yield _raw_event(line, self._name)
        raise Corrupt(
            f"{self._name} is not whole: {tell_count(count, 'event')}, and no end that says so.",
            hint="Export it again.",
        )

    def _read_heads(self) -> bytes:
        """Reads them; returns the line that follows."""
        while raw := self._line():
            head = self._parse(raw).head
            if head is None:
                break
            self.heads.append(head)
        return raw

    def _line(self) -> bytes:
        line = self._file.readline(LINE_BYTES_MAX + 1)
        if len(line) > LINE_BYTES_MAX:
            raise Corrupt(f"A line of {self._name} is too long.", hint="Is it a copy of a log?")
        return line

    def _parse(self, raw: bytes) -> _Line:
        try:
            return _decode_line(raw)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Corrupt(f"{self._name} has a line that is none: {error}.") from error


def _raw_event(line: _Line, name: str) -> RawEvent:
    try:
        if line.bytes is not None:
            payload = base64.b64decode(line.bytes, validate=True)
        else:
            payload = bytes(line.event) if line.event is not msgspec.UNSET else b""
    except binascii.Error as error:
        raise Corrupt(f"The bytes of event {line.seq} in {name} are no base64.") from error
    return RawEvent(
        log_epoch=line.log_epoch,
        seq=line.seq,  # type: ignore[arg-type]  # a position
        subject=line.subject,
        payload=payload,
        hash=line.hash,
    )


def _parse_heading(raw: bytes, name: str) -> Heading:
    try:
        heading = msgspec.json.decode(raw, type=Heading)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidArgument(
            f"{name} is no copy of a log.", hint="`tcctl audit export` makes one."
        ) from error
    return check_heading(heading, name)


# ---- files -----------------------------------------------------------------------------------


def is_parquet(path: Path) -> bool:
    """Whether a file is one, by its first bytes."""
    with telling(path), path.open("rb") as file:
        return file.read(4) == b"PAR1"


@contextmanager
def open_log_file(path: Path) -> Iterator[LogReader]:
    """A copy of a log, of either format. Raises NotFound, InvalidArgument, Corrupt."""
    if is_parquet(path):
        from tensorcast.storage.log_parquet import ParquetReader

        with ParquetReader(path) as reader:
            yield reader
        return
    with telling(path):
        file = path.open("rb")
    with file:
        yield JsonLinesReader(file, path.name)


@contextmanager
def make_log_file(
    path: Path, heading: Heading, heads: Sequence[str], *, parquet: bool, force: bool
) -> Iterator[LogWriter]:
    """A new file, which appears when the block ends well. Raises InvalidArgument when it exists and
    not `force`."""
    if path.exists() and not force:
        raise InvalidArgument(f"{path} exists.", hint="Choose another name, or use --force.")
    fresh = path.with_name(path.name + ".part")
    try:
        with telling(path):
            if parquet:
                from tensorcast.storage.log_parquet import ParquetWriter

                with ParquetWriter(fresh, heading, heads) as writer:
                    yield writer
            else:
                with fresh.open("wb") as file:
                    yield JsonLinesWriter(file, heading, heads)
            _sync(fresh)
            fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def telling(path: Path) -> Iterator[None]:
    """Errors of the operating system as ours, with the path."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"There is no {path}.", hint="Check the path.") from error
    except PermissionError as error:
        raise PermissionDenied(f"Not allowed to open {path}.", hint="Check its owner.") from error
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be used: {error.strerror}.") from error


def in_batches(
    events: Iterable[RawEvent], count_max: int, bytes_max: int
) -> Iterator[list[RawEvent]]:
    """Events in lists that are neither too long nor too large; one that is larger goes alone."""
    batch: list[RawEvent] = []
    size_bytes = 0
    for one in events:
        size_bytes += len(one.payload) + len(one.subject)
        if batch and (len(batch) >= count_max or size_bytes > bytes_max):
            yield batch
            batch, size_bytes = [], len(one.payload) + len(one.subject)
        batch.append(one)
    if batch:
        yield batch


def read_anchors(path: str | os.PathLike[str]) -> list[Anchor]:
    """The signed heads in a file, one a line. Raises NotFound and the like."""
    with telling(Path(path)):
        lines = Path(path).read_text(errors="replace").splitlines()
    return [Anchor(str(path), line) for line in lines]
