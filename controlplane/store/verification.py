"""Whether rows are what the chain says: the work of one verifier, fast enough for millions of them.

The rows come by a binary COPY and are hashed as they come; what SQL shows of an event (its columns)
is compared with its bytes as well. The columns that index an event by aggregate, artifact and node
follow from the fold, and are not looked at here.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
from contextlib import suppress
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
from tensorcast.schema.chain import HASH_BYTES
from tensorcast.schema.ids import Seq

_COLUMNS: Final = "seq, event_id, v, at, cause, subject, payload, type, actor, data"
_HASHES: Final = text(
    "SELECT last_seq, hashes FROM chain WHERE log_epoch = :epoch AND last_seq >= :first"
    " AND last_seq <= coalesce("
    "(SELECT min(last_seq) FROM chain WHERE log_epoch = :epoch AND last_seq >= :last), :last)"
    " ORDER BY last_seq"
)
_IN_ORDER: Final = text("SET LOCAL enable_sort = off")
"""The key has the order already, also when Postgres knows nothing of the tables yet."""
_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0"
_HEADER_BYTES: Final = len(_SIGNATURE) + 8
_LENGTH: Final = struct.Struct(">i")
_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_BEGINNING: Final = struct.Struct(">hiqi16siqiqi")
"""Of a row: how many cells, and `seq`, `event_id`, `v`, `at`, each after its length; the length of
`cause`."""
_PLACE: Final = struct.Struct(">IQI")
_MASK: Final = (1 << 64) - 1
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
    old, previous, wrong = await _check_old(connection, span, floor, previous, hashes)
    if wrong is not None or (floor and span.last <= floor):
        return SpanInfo(events=old, head=previous.hex(), first_bad=wrong)
    live = msgspec.structs.replace(span, first=Seq(span.first + old))
    check = SpanCheck(live, previous, hashes[HASH_BYTES * old :])
    await connection.execute(_IN_ORDER)
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
        if self._bad is None:
            start = self._check(data, start)
        self._rest = data[start:] if self._bad is None else b""

    def finish(self) -> SpanInfo:
        """What was found, after the last row."""
        if self._bad is None and self._next <= self._last:
            self._bad = BadEvent(seq=Seq(self._next), reason=MISSING)
        return SpanInfo(events=self._next - self._first, head=self._head.hex(), first_bad=self._bad)

    def _check(self, data: bytes, start: int) -> int:
        """Checks the rows from `start` on; where the first one begins that is not complete. All in
        one loop, for there are millions of rows."""
        begin, length_at, place = _BEGINNING.unpack_from, _LENGTH.unpack_from, _PLACE.pack
        begin_bytes, sha256, join = _BEGINNING.size, hashlib.sha256, b"".join
        head, wanted, epoch, hashes = self._head, self._next, self._epoch, self._hashes
        at, size = HASH_BYTES * (wanted - self._first), len(data)
        with suppress(struct.error):  # the length of a cell has not come yet
            while True:
                _, _, seq, _, event_id, _, version, _, moment, cause_bytes = begin(data, start)
                cause_at = start + begin_bytes
                subject_at = cause_at + (cause_bytes if cause_bytes > 0 else 0) + 4
                payload_at = subject_at + length_at(data, subject_at - 4)[0] + 4
                type_at = payload_at + length_at(data, payload_at - 4)[0] + 4
                actor_at = type_at + length_at(data, type_at - 4)[0] + 4
                data_at = actor_at + length_at(data, actor_at - 4)[0] + 4
                end = data_at + length_at(data, data_at - 4)[0]
                if end > size:
                    break
                subject, payload = data[subject_at : payload_at - 4], data[payload_at : type_at - 4]
                covered = join((head, place(epoch, seq & _MASK, len(subject)), subject, payload))
                digest = sha256(covered).digest()
                row = (
                    payload,
                    event_id,
                    data[type_at : actor_at - 4],
                    version,
                    moment,
                    data[actor_at : data_at - 4],
                    data[cause_at : subject_at - 4],
                    data[data_at + 1 : end],  # after the number of its format
                )
                expected = hashes[at : at + HASH_BYTES]
                if seq != wanted or digest != expected or not agrees(*row):
                    self._bad = _explain(seq, wanted, digest, expected, row)
                    if self._bad is not None:
                        break
                head, start = digest, end
                wanted += 1
                at += HASH_BYTES
        self._head, self._next = head, wanted
        return start


Shown = tuple[bytes, bytes, bytes, int, int, bytes, bytes, bytes]
"""The bytes of an event, and what SQL shows of it, as Postgres sends it: `event_id`, `type`, `v`,
`at`, `actor`, `cause` (none is no bytes) and `data`, which is JSON."""


def _explain(seq: int, wanted: int, found: bytes, expected: bytes, row: Shown) -> BadEvent | None:
    """What is wrong with an event that stands where `wanted` should; None when nothing is."""
    if seq != wanted:
        return BadEvent(seq=Seq(wanted), reason=MISSING)
    if found != expected:
        return BadEvent(seq=Seq(seq), reason=ALTERED if expected else NO_HASH)
    difference = find_difference(row)
    return BadEvent(seq=Seq(seq), reason=difference) if difference else None


# ---- columns and bytes -----------------------------------------------------------------------


class _Wire(msgspec.Struct, gc=False):
    id: str
    type: str
    v: int
    at: datetime
    actor: str
    data: object
    cause: str | None = None


_ID_CHARS: Final = 36
_wire = msgspec.json.Decoder(_Wire).decode
_json = msgspec.json.Decoder().decode


def agrees(
    payload: bytes,
    event_id: bytes,
    kind: bytes,
    version: int,
    moment: int,
    actor: bytes,
    cause: bytes,
    data: bytes,
) -> bool:
    """Whether the columns of an ordinary event (`Shown`) say what its bytes say. False: look
    again."""
    try:
        wire = _wire(payload)
        since = wire.at - _EPOCH
        ids = wire.id + wire.cause if wire.cause else wire.id
        return (
            ids.replace("-", "") == (event_id + cause).hex()
            and len(wire.id) == _ID_CHARS
            and wire.type.encode() == kind
            and wire.v == version
            and (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds == moment
            and wire.actor.encode() == actor
            and wire.data == _json(data)
        )
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError):
        return False


def find_difference(row: Shown) -> str:
    """In words which column does not say what the bytes of the event say; "" when all do."""
    payload, event_id, kind, version, moment, actor, cause, data = row
    recorded = read_event(Stored(Seq(0), "", payload), _EPOCH)
    is_event = recorded.type != UNREADABLE
    shown = (
        ("type", as_text(recorded.type).encode(), kind),
        ("v", as_integer(recorded.v), version),
        ("actor", as_text(recorded.actor).encode(), actor),
        ("cause", as_uuid(recorded.cause).bytes if recorded.cause is not None else b"", cause),
    )
    known_by_event = (
        ("event_id", as_uuid(recorded.id).bytes, event_id),
        ("at", _as_shown(as_moment(recorded.at)), moment),
    )
    for name, said, has in (*shown, *(known_by_event if is_event else ())):
        if said != has:
            return _differs(name)
    expected = as_checked_json(data_of(payload)).encode() if is_event else b"null"
    return "" if same_json(_json(expected), _json(data)) else _differs("data")


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
