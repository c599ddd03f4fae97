"""Whether events are in the log already, asked of its leader: what a doubtful append ends with."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import msgspec

from tensorcast.log.batch import Entry
from tensorcast.log.connection import Connection, Refused, explain
from tensorcast.log.port import Stored
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.ids import EventId, Seq

WALK_EVENTS_MAX: Final = 10_000
"""Most events of one aggregate that a search looks at."""
CLOCK_SKEW_MAX: Final = timedelta(minutes=10)
"""Most that the clock of a writer may be ahead of the server's."""
_ABSENT: Final = 10037
_IN_FLIGHT_MAX: Final = 64


class _Message(msgspec.Struct, frozen=True):
    subject: str
    seq: int
    data: str = ""


class _Answer(msgspec.Struct, frozen=True):
    message: _Message


class _Identified(msgspec.Struct, frozen=True):
    id: EventId


async def locate(
    connection: Connection, name: str, entries: Sequence[Entry]
) -> tuple[Seq | None, ...]:
    """The position of each entry; None for one that is not in the log. Raises Unavailable."""
    first = await _search(connection, name, entries[0])
    if first is None and len(entries) == 1:
        return (None,)
    near = await _check_run(connection, name, entries, first) if first else [None] * len(entries)
    return tuple(
        [
            seq if seq is not None else await _search(connection, name, entry)
            for seq, entry in zip(near, entries, strict=True)
        ]
    )


async def _check_run(
    connection: Connection, name: str, entries: Sequence[Entry], first: Seq
) -> list[Seq | None]:
    """Looks where the entries are if they were appended together: one after the other."""
    gate = asyncio.Semaphore(_IN_FLIGHT_MAX)

    async def check(entry: Entry, seq: Seq) -> Seq | None:
        async with gate:
            stored = await read_message(connection, name, {"seq": seq})
        return seq if stored is not None and _id_of(stored) == entry.id else None

    return list(
        await asyncio.gather(
            *(check(entry, Seq(first + offset)) for offset, entry in enumerate(entries))
        )
    )


async def _search(connection: Connection, name: str, entry: Entry) -> Seq | None:
    """Walks the events of the entry's aggregate from where it could begin to be."""
    request: dict[str, object] = {"next_by_subj": entry.subject}
    if entry.expected is not None:
        request["seq"] = entry.expected + 1
    else:
        request["start_time"] = (entry.at - CLOCK_SKEW_MAX).isoformat()
    for _ in range(WALK_EVENTS_MAX):
        stored = await read_message(connection, name, request)
        if stored is None:
            return None
        if _id_of(stored) == entry.id:
            return stored.seq
        if entry.expected is not None:
            return None  # what was appended on that expectation would stand here
        request = {"next_by_subj": entry.subject, "seq": stored.seq + 1}
    raise Unavailable(
        f"{entry.subject} has more than {WALK_EVENTS_MAX} events since {entry.at.isoformat()}:"
        " whether this one is among them was not found out.",
    )


async def read_message(
    connection: Connection, name: str, request: dict[str, object]
) -> Stored | None:
    """One message of the log by a request of the JetStream API. Raises Unavailable."""
    try:
        answer = await connection.api(f"STREAM.MSG.GET.{name}", request, _Answer)
    except Refused as refusal:
        if refusal.error.err_code == _ABSENT:
            return None
        raise explain(refusal.error) from refusal
    message = answer.message
    return Stored(Seq(message.seq), message.subject, base64.b64decode(message.data))


def _id_of(stored: Stored) -> EventId | None:
    try:
        return msgspec.json.decode(stored.payload, type=_Identified).id
    except msgspec.MsgspecError:
        return None
