"""Whether rows are what the chain says: the work of one verifier, fast enough for millions of them.

The rows come by a binary COPY and are hashed as they come; what SQL shows of an event (its columns)
is compared with its bytes as well. The columns that index an event by aggregate, artifact and node
follow from the fold, and are not looked at here.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from tensorcast.controlplane.store.archive_files import check_file
from tensorcast.controlplane.store.archives import find_segments, hold_floor, reach
from tensorcast.controlplane.store.cells import (
    as_checked_json,
    as_integer,
    as_moment,
    as_text,
    as_uuid,
)
from tensorcast.controlplane.store.chain import find_hash
from tensorcast.controlplane.store.rows import UNREADABLE, data_of, read_event
from tensorcast.controlplane.store.write import driver_of
from tensorcast.log.port import Stored
from tensorcast.schema.api_audit import BadEvent, SpanInfo, VerifySpan
from tensorcast.schema.chain import HASH_BYTES, chain_event
from tensorcast.schema.ids import Seq

_COLUMNS: Final = "seq, subject, payload, event_id, type, v, at, actor, cause, data"
_COLUMNS_COUNT: Final = 10
_HASHES: Final = text(
    "SELECT last_seq, hashes FROM chain WHERE log_epoch = :epoch AND last_seq >= :first"
    " AND last_seq <= coalesce("
    "(SELECT min(last_seq) FROM chain WHERE log_epoch = :epoch AND last_seq >= :last), :last)"
    " ORDER BY last_seq"
)
_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0"
_HEADER_BYTES: Final = len(_SIGNATURE) + 8
_LENGTH: Final = struct.Struct(">i")
_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
MISSING: Final = "it is missing"
NO_HASH: Final = "its hash is missing"
ALTERED: Final = "its bytes, its place or its subject are not those that were hashed"


async def verify_span(connection: AsyncConnection, span: VerifySpan) -> SpanInfo:
    """Checks the events of a span against the chain, which is taken to be right before it. Raises
    NotFound when some lie in an archive that is not there."""
    previous = await find_hash(connection, span.log_epoch, span.first - 1)
    if previous is None:
        bad = BadEvent(seq=Seq(span.first - 1), reason=NO_HASH)
        return SpanInfo(events=0, head="", first_bad=bad)
    hashes = await load_hashes(connection, span)
    floor = await hold_floor(connection, span.log_epoch)
    old, previous, bad = await _check_old(connection, span, floor, previous, hashes)
    if bad is not None or span.last <= floor:
        return SpanInfo(events=old, head=previous.hex(), first_bad=bad)
    live = msgspec.structs.replace(span, first=Seq(span.first + old))
    check = SpanCheck(live, previous, hashes[HASH_BYTES * old :])
    driver = await driver_of(connection)

    async def take(data: bytes) -> None:
        check.take(data)

    await driver.copy_from_query(
        f"SELECT {_COLUMNS} FROM events WHERE log_epoch = {span.log_epoch:d}"
        f" AND seq BETWEEN {live.first:d} AND {live.last:d} ORDER BY seq",
        output=take,
        format="binary",
    )
    info = check.finish()
    return msgspec.structs.replace(info, events=info.events + old)


async def _check_old(
    connection: AsyncConnection, span: VerifySpan, floor: Seq, previous: bytes, hashes: bytes
) -> tuple[int, bytes, BadEvent | None]:
    """The events of a span that only files have: how many are right, the hash of the last of them,
    and the first that is wrong. Raises NotFound for a file that is not there."""
    done, last = 0, min(floor, span.last)
    if not floor or span.first > last:
        return 0, previous, None
    for one in await find_segments(connection, span.log_epoch, span.first, last):
        start, end = span.first + done, min(one.last, last)
        rest = hashes[HASH_BYTES * done :]
        work = partial(check_file, reach(one), span.log_epoch, start, end, previous, rest)
        right, previous, bad = await asyncio.to_thread(work)
        done += right
        if bad is not None:
            return done, previous, bad
    missing = BadEvent(seq=Seq(span.first + done), reason=MISSING)
    return done, previous, None if span.first + done > last else missing


async def load_hashes(connection: AsyncConnection, span: VerifySpan) -> bytes:
    """The hashes of the span, as far as the chain has them without a gap."""
    values = {"epoch": span.log_epoch, "first": span.first, "last": span.last}
    hashes = bytearray()
    for last, block in await connection.execute(_HASHES, values):
        first = last - len(block) // HASH_BYTES + 1
        wanted = span.first + len(hashes) // HASH_BYTES
        if len(block) % HASH_BYTES or first > wanted:
            break
        hashes += block[HASH_BYTES * (wanted - first) :]
    return bytes(hashes)


class SpanCheck:
    """Takes a binary COPY piece by piece, cut anyhow, up to the first event that is not right."""

    def __init__(self, span: VerifySpan, previous: bytes, hashes: bytes) -> None:
        self._epoch = span.log_epoch
        self._first = span.first
        self._last = span.last
        self._hashes = hashes
        self._head = previous
        self._next = int(span.first)
        self._bad: BadEvent | None = None
        self._rest = b""
        self._has_begun = False

    def take(self, data: bytes) -> None:
        """Checks the rows that are complete."""
        data = self._rest + data if self._rest else data
        start = 0
        if not self._has_begun:
            if len(data) < _HEADER_BYTES:
                self._rest = data
                return
            assert data.startswith(_SIGNATURE), "Postgres sends a binary COPY"
            self._has_begun = True
            start = _HEADER_BYTES
        if self._bad is not None:
            self._rest = b""
            return
        for end, row in split_rows(data, start):
            start = end
            self._bad = self._check(row)
            if self._bad is not None:
                return
        self._rest = data[start:]

    def finish(self) -> SpanInfo:
        """What was found, after the last row."""
        if self._bad is None and self._next <= self._last:
            self._bad = BadEvent(seq=Seq(self._next), reason=MISSING)
        return SpanInfo(events=self._next - self._first, head=self._head.hex(), first_bad=self._bad)

    def _check(self, row: list[bytes]) -> BadEvent | None:
        """Takes a row, or says what is wrong with it."""
        seq_cell, subject, payload = row[0], row[1], row[2]
        seq = int.from_bytes(seq_cell, "big", signed=True)
        if seq != self._next:
            return BadEvent(seq=Seq(self._next), reason=MISSING)
        place = HASH_BYTES * (seq - self._first)
        expected = self._hashes[place : place + HASH_BYTES]
        if not expected:
            return BadEvent(seq=Seq(seq), reason=NO_HASH)
        found = chain_event(self._head, self._epoch, seq, subject, payload)
        if found != expected:
            return BadEvent(seq=Seq(seq), reason=ALTERED)
        if not agrees(row) and (difference := find_difference(row)):
            return BadEvent(seq=Seq(seq), reason=difference)
        self._head = found
        self._next = seq + 1
        return None


def split_rows(data: bytes, start: int) -> Iterator[tuple[int, list[bytes]]]:
    """The complete rows of a binary COPY from `start` on, each with where it ends. A NULL is as no
    bytes: only `cause` may be one, and no cause has no bytes."""
    unpack, size = _LENGTH.unpack_from, len(data)
    while start + 2 <= size and data[start : start + 2] != b"\xff\xff":
        at = start + 2
        row: list[bytes] = []
        for _ in range(_COLUMNS_COUNT):
            if at + 4 > size:
                return
            length = unpack(data, at)[0]
            at += 4
            row.append(data[at : at + max(length, 0)])
            at += max(length, 0)
        if at > size:
            return
        yield at, row
        start = at


# ---- columns and bytes -----------------------------------------------------------------------


class _Wire(msgspec.Struct):
    id: str
    type: str
    v: int
    at: datetime
    actor: str
    data: msgspec.Raw
    cause: str | None = None


_wire = msgspec.json.Decoder(_Wire)
_json = msgspec.json.Decoder()


def agrees(row: list[bytes]) -> bool:
    """Whether the columns of an ordinary event say what its bytes say. False: look again."""
    payload, event_id, kind, version, moment, actor, cause, data = row[2:]
    try:
        wire = _wire.decode(payload)
        return (
            bytes.fromhex(wire.id.replace("-", "")) == event_id
            and wire.type.encode() == kind
            and wire.v == int.from_bytes(version, "big", signed=True)
            and (wire.at - _EPOCH) // _MICROSECOND == int.from_bytes(moment, "big", signed=True)
            and wire.actor.encode() == actor
            and cause == (bytes.fromhex(wire.cause.replace("-", "")) if wire.cause else b"")
            and _json.decode(wire.data) == _json.decode(data[1:])
        )
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError):
        return False


def find_difference(row: list[bytes]) -> str:
    """In words which column does not say what the bytes of the event say; "" when all do."""
    payload, event_id, kind, version, moment, actor, cause, data = row[2:]
    recorded = read_event(Stored(Seq(0), "", payload), _EPOCH)
    is_event = recorded.type != UNREADABLE
    shown = (
        ("type", as_text(recorded.type).encode(), kind),
        ("v", as_integer(recorded.v), int.from_bytes(version, "big", signed=True)),
        ("actor", as_text(recorded.actor).encode(), actor),
        ("cause", as_uuid(recorded.cause).bytes if recorded.cause is not None else b"", cause),
    )
    known_by_event = (
        ("event_id", as_uuid(recorded.id).bytes, event_id),
        ("at", _as_shown(as_moment(recorded.at)), int.from_bytes(moment, "big", signed=True)),
    )
    for name, said, has in (*shown, *(known_by_event if is_event else ())):
        if said != has:
            return _differs(name)
    expected = as_checked_json(data_of(payload)).encode() if is_event else b"null"
    return "" if same_json(_json.decode(expected), _json.decode(data[1:])) else _differs("data")


def _as_shown(moment: datetime) -> int:
    """A time as Postgres sends it; the very first one stands for minus infinity."""
    if moment.replace(tzinfo=None) == datetime.min:
        return -(1 << 63)
    return (moment - _EPOCH) // _MICROSECOND


def _differs(column: str) -> str:
    return f"its column {column!r} does not say what its bytes say"


def _same_float(one: float, other: float) -> bool:
    try:
        return float(one) == float(other)
    except OverflowError:
        return False


def same_json(one: object, other: object) -> bool:
    """Whether two values of JSON are equal; numbers are, when they are the same 64-bit float."""
    match one, other:
        case dict(), dict():
            return one.keys() == other.keys() and all(same_json(one[k], other[k]) for k in one)
        case list(), list():
            return len(one) == len(other) and all(map(same_json, one, other))
        case (bool(), _) | (_, bool()):
            return one is other
        case int() | float(), int() | float():
            return one == other or _same_float(one, other)
        case _:
            return one == other
