"""Events that a log has lost, put back where they were: the same bytes at the same positions.

Only the control plane does that, from Postgres, and says so in the log: a signal on `TOPIC`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, Protocol

import msgspec

from tensorcast.log.connection import Connection, parse_answer
from tensorcast.log.lookup import read_message
from tensorcast.log.port import Log, Stored
from tensorcast.schema.codec import decode
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.events import SignalEmitted
from tensorcast.schema.ids import Seq
from tensorcast.schema.signals import Topic
from tensorcast.schema.subjects import log_name, subject_of

TOPIC: Final = Topic("tensorcast.log.restored")
RESTORE_EVENTS_MAX: Final = 500
RESTORE_BYTES_MAX: Final = 4 << 20


class RestorableLog(Log, Protocol):
    """A log into which lost events can be put back."""

    @property
    def created(self) -> str:
        """Tells two logs of one name apart."""
        ...

    async def restore(self, events: Sequence[Stored]) -> None:
        """Puts the events back at their own positions, all or none. Raises Conflict when the first
        does not come right after the last event of the log (any more), Unavailable when it may or
        may not have happened."""
        ...


class Restored(msgspec.Struct, frozen=True):
    """What the signal says: the log that was `created` then had lost what came after event `kept`,
    and has all up to event `restored` again. What it had acknowledged after that is lost."""

    created: str
    kept: int
    restored: int


def split_events(events: Sequence[Stored]) -> Iterator[Sequence[Stored]]:
    """The events in parts that one append takes."""
    start = size_bytes = 0
    for place, one in enumerate(events):
        size_bytes += len(one.payload)
        is_full = place - start >= RESTORE_EVENTS_MAX or size_bytes > RESTORE_BYTES_MAX
        if is_full and place > start:
            yield events[start:place]
            start, size_bytes = place, len(one.payload)
    if events:
        yield events[start:]


async def put_back(connection: Connection, events: Sequence[Stored]) -> None:
    """One atomic batch, which must begin at the position of its first event. Raises Refused,
    Unavailable."""
    batch = secrets.token_hex(16)
    for number, one in enumerate(events[:-1], 1):
        await connection.send(one.subject, one.payload, _headers(events, batch, number))
    headers = _headers(events, batch, len(events)) | {"Nats-Batch-Commit": "1"}
    answer = await connection.ask(events[-1].subject, events[-1].payload, headers=headers)
    parse_answer(answer, msgspec.Raw)


def _headers(events: Sequence[Stored], batch: str, number: int) -> dict[str, str]:
    one = events[number - 1]
    headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
    if number == 1:
        headers["Nats-Expected-Last-Sequence"] = str(one.seq - 1)
    with suppress(Corrupt):  # bytes that are no event have no id
        headers["Nats-Msg-Id"] = decode(one.payload, one.seq).id
    return headers


async def find_restored(connection: Connection, cluster: str) -> tuple[Seq, Restored] | None:
    """The last signal that says that events were put back, and its position. Raises
    Unavailable."""
    subject = subject_of(cluster, SignalEmitted(topic=TOPIC))
    stored = await read_message(connection, log_name(cluster), {"last_by_subj": subject})
    if stored is None:
        return None
    event = decode(stored.payload, stored.seq).event
    if not isinstance(event, SignalEmitted):
        return None
    try:
        return stored.seq, msgspec.convert(event.data, Restored)
    except msgspec.ValidationError:
        return None  # anybody may say anything on any topic
