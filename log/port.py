"""The contract of a log, and of the cursors of its readers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Protocol

import msgspec

from tensorcast.schema.codec import decode
from tensorcast.schema.envelope import Draft, Recorded
from tensorcast.schema.errors import OutOfCapacity, Unavailable
from tensorcast.schema.ids import Seq

APPEND_EVENTS_MAX = 1000
"""Most events of one append: what one atomic batch of JetStream takes."""


class NoRoom(OutOfCapacity, Unavailable):
    """The log has no room for more events; nothing was appended. Who waits for the log waits for
    it as for one that is away; who is told hears that it is full."""


class Stored(msgspec.Struct, frozen=True):
    """One event as it lies in the log: its position, its subject and its bytes."""

    seq: Seq
    subject: str
    payload: bytes


class Log(Protocol):
    """An ordered, append-only record of events with gap-free positions from 1."""

    async def append(self, drafts: Sequence[Draft]) -> tuple[Seq, ...]:
        """Appends all drafts or none, in order, durably; returns their positions.

        Several drafts of one aggregate state the position before the append: each, or only the
        first. Raises Conflict when an aggregate has events after the `expected` position,
        InvalidArgument when an event is too large or there are too many, NoRoom when the log is
        full, Unavailable when it cannot be reached (the append may or may not have happened: repeat
        it with the same event ids).
        An append whose event ids are all in the log already returns their positions: safe to
        repeat. When only some of them are, it is a Conflict.
        """
        ...

    def read(
        self, *, after: Seq, batch_max: int = 1000
    ) -> AsyncGenerator[tuple[Stored, ...], None]:
        """Every event after `after`, in order, without gaps or repeats, and then each new one as
        it comes, in non-empty batches, for ever. Survives reconnects.

        Raises Corrupt when the log ends before `after` or has been replaced by another one,
        Unavailable when it is closed.
        """
        ...

    async def read_one(self, seq: Seq) -> Stored | None:
        """The event at `seq`; None when there is none. Raises Unavailable."""
        ...

    async def last_seq(self) -> Seq:
        """Position of the last event; 0 when there is none. Raises Unavailable."""
        ...

    async def aclose(self) -> None:
        """Gives up the connection. Safe to repeat."""
        ...


class Cursors(Protocol):
    """Where readers stand. A cursor only moves forward."""

    async def load(self, reader: str) -> Seq: ...

    async def store(self, reader: str, seq: Seq) -> None: ...

    async def check_room(self) -> None:
        """Raises NoRoom when nothing more can be stored where log and cursors are, Unavailable."""
        ...


async def read_records(log: Log, *, after: Seq) -> AsyncIterator[tuple[Recorded, ...]]:
    """As `Log.read`, decoded. Raises Corrupt for bytes that are no event."""
    async for batch in log.read(after=after):
        yield tuple(decode(stored.payload, stored.seq) for stored in batch)
