"""Events from a copy of the log in a file, as `tcctl audit export` writes it (JSON lines)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from tensorcast.schema.codec import decode
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import Corrupt, NotFound
from tensorcast.schema.ids import Seq

LINE_BYTES_MAX: Final = 16 << 20


class _Line(msgspec.Struct):
    seq: int = 0
    log_epoch: int = 0
    event: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    bytes: str | None = None
    end: int | None = None


def read_events(path: Path) -> Iterator[Recorded]:
    """The events in the order of the file. Raises NotFound, and Corrupt for what is no copy of a
    log, or of several lives of one, or is cut off."""
    if not path.is_file():
        raise NotFound(f"There is no file {path}.", hint="`tcctl audit export FILE` writes one.")
    with path.open("rb") as file:
        heading = file.readline(LINE_BYTES_MAX)
        if b"tensorcast_log" not in heading:
            raise Corrupt(f"{path} is not a copy of a log.", hint="Use `tcctl audit export`.")
        lives: set[int] = set()
        while line := file.readline(LINE_BYTES_MAX):
            one = _read(line, path)
            if one.end is not None:
                return
            if one.event is msgspec.UNSET and one.bytes is None:
                continue
            lives.add(one.log_epoch)
            if len(lives) > 1:
                raise Corrupt(f"{path} has several lives of a log.", hint="Export one: --from.")
            yield decode(_payload(one, path), Seq(one.seq))
    raise Corrupt(f"{path} is cut off.", hint="Export the log again.")


def _read(line: bytes, path: Path) -> _Line:
    try:
        return msgspec.json.decode(line, type=_Line)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{path} has a line that is none: {error}.") from error


def _payload(line: _Line, path: Path) -> bytes:
    if line.bytes is None:
        assert not isinstance(line.event, msgspec.UnsetType)
        return bytes(line.event)
    try:
        return base64.b64decode(line.bytes, validate=True)
    except binascii.Error as error:
        raise Corrupt(f"{path} has an event that cannot be read: {error}.") from error
