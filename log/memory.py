"""A log in memory: for tests, for simulation, and for what is never to be kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

from tensorcast.log.batch import Entry, prepare, stale
from tensorcast.log.blocks import READ_EVENTS_MAX, Reach, pack_drafts
from tensorcast.log.port import Stored
from tensorcast.schema.block_events import BlockDraft
from tensorcast.schema.codec import decode
from tensorcast.schema.envelope import Draft
from tensorcast.schema.errors import Conflict, Corrupt, Unavailable
from tensorcast.schema.events import AggregateKind
from tensorcast.schema.ids import EventId, NodeId, Seq
from tensorcast.schema.signals import Pattern, Topic, matches
from tensorcast.schema.subjects import kv_cleared, parse_log_subject


class MemoryLog:
    """Keeps the contract of `Log` inside one process; nothing survives it."""

    def __init__(self, cluster: str = "default") -> None:
        self.created = "in memory"
        self._cluster = cluster
        self._stored: list[Stored] = []
        self._seqs: dict[EventId, Seq] = {}
        self._last: dict[str, Seq] = {}
        self._grown = asyncio.Event()
        self._closed = False

    async def append(self, drafts: Sequence[Draft]) -> tuple[Seq, ...]:
        """As `Log.append`."""
        self._check_open()
        entries = prepare(self._cluster, drafts)
        known = [self._seqs.get(entry.id) for entry in entries]
        if all(seq is not None for seq in known):
            return tuple(seq for seq in known if seq is not None)
        for entry, seq in zip(entries, known, strict=True):
            if seq is not None or not self._fits(entry):
                raise stale(entry.subject, entry.expected)
        return tuple(self._store(entry) for entry in entries)

    def _fits(self, entry: Entry) -> bool:
        return entry.expected is None or entry.expected == self._last.get(entry.subject, Seq(0))

    def _store(self, entry: Entry) -> Seq:
        seq = Seq(len(self._stored) + 1)
        self._stored.append(Stored(seq, entry.subject, entry.payload))
        self._seqs[entry.id] = seq
        self._last[entry.subject] = seq
        self._wake()
        return seq

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()

    async def read(
        self, *, after: Seq, batch_max: int = 1000
    ) -> AsyncGenerator[tuple[Stored, ...], None]:
        """As `Log.read`."""
        if after > len(self._stored):
            raise Corrupt(f"The log ends at {len(self._stored)}, before event {after}.")
        while True:
            self._check_open()
            if len(self._stored) > after:
                batch = tuple(self._stored[after : after + batch_max])
                after = batch[-1].seq
                yield batch
            else:
                await self._grown.wait()

    async def read_one(self, seq: Seq) -> Stored | None:
        """The event at `seq`; None when there is none."""
        return self._stored[seq - 1] if 1 <= seq <= len(self._stored) else None

    async def find_signal(self, pattern: Pattern, after: Seq) -> Stored | None:
        """The first signal after a position on a topic of the pattern."""
        for stored in self._stored[after:]:
            kind, topic = parse_log_subject(stored.subject)
            if kind is AggregateKind.SIGNAL and matches(pattern, Topic(topic)):
                return stored
        return None

    async def restore(self, events: Sequence[Stored]) -> None:
        """As `RestorableLog.restore`."""
        self._check_open()
        if events[0].seq != len(self._stored) + 1:
            raise Conflict(f"The log does not end before event {events[0].seq}.")
        for one in events:
            self._stored.append(one)
            self._last[one.subject] = one.seq
            with suppress(Corrupt):
                self._seqs[decode(one.payload, one.seq).id] = one.seq
        self._wake()

    async def last_seq(self) -> Seq:
        """As `Log.last_seq`."""
        self._check_open()
        return Seq(len(self._stored))

    async def aclose(self) -> None:
        """As `Log.aclose`; readers that wait end with Unavailable."""
        self._closed = True
        self._wake()

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("The log is closed.", hint="Connect again.")


class MemoryCursors:
    """Keeps the contract of `Cursors` inside one process."""

    def __init__(self) -> None:
        self._seqs: dict[str, Seq] = {}

    async def load(self, reader: str) -> Seq:
        """Where `reader` stands; 0 when it is new."""
        return self._seqs.get(reader, Seq(0))

    async def store(self, reader: str, seq: Seq) -> None:
        """Moves `reader` forward to `seq`; never back."""
        self._seqs[reader] = max(seq, self._seqs.get(reader, Seq(0)))

    async def check_room(self) -> None:
        """There is always room."""


class MemoryBlocks:
    """Keeps the contract of `BlockLog` inside one process; nothing survives it. `forget` drops
    the oldest events, `replace` makes it another log, `away` makes it unreachable."""

    def __init__(self, cluster: str = "default") -> None:
        self.away = False
        self._cluster = cluster
        self._created = 1
        self._stored: list[Stored] = []
        self._first = 1
        self._seqs: dict[EventId, Seq] = {}
        self._grown = asyncio.Event()

    async def append(self, drafts: Sequence[BlockDraft]) -> Seq:
        """As `BlockLog.append`."""
        self._check()
        entries = pack_drafts(self._cluster, drafts)
        known = self._seqs.get(entries[-1].id)
        if known is not None:
            return known
        for entry in entries:
            seq = Seq(self._last + 1)
            self._stored.append(Stored(seq, entry.subject, entry.payload))
            self._seqs[entry.id] = seq
        self._wake()
        return Seq(self._last)

    @property
    def _last(self) -> int:
        return self._first - 1 + len(self._stored)

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()

    def _check(self) -> None:
        if self.away:
            raise Unavailable("The KV log cannot be reached.")

    def forget(self, seq: Seq) -> None:
        """Drops the events up to `seq`."""
        count = max(0, min(seq, self._last) - self._first + 1)
        del self._stored[:count]
        self._first += count

    def replace(self) -> None:
        """Is another, empty log from now on."""
        self._created += 1
        self._stored, self._seqs, self._first = [], {}, 1
        self._wake()

    async def read(
        self, created: str, *, after: Seq, batch_max: int = READ_EVENTS_MAX
    ) -> AsyncGenerator[tuple[Stored, ...], None]:
        """As `BlockLog.read`."""
        while True:
            self._check()
            if created != str(self._created) or after > self._last:
                raise Corrupt("The KV log was made anew.")
            after = max(after, Seq(self._first - 1))
            start = after - self._first + 1
            batch = tuple(self._stored[start : start + batch_max])
            if batch:
                after = batch[-1].seq
                yield batch
            else:
                await self._grown.wait()

    async def reach(self) -> Reach:
        """As `BlockLog.reach`."""
        self._check()
        return Reach(str(self._created), Seq(self._first), Seq(self._last))

    async def last_cleared(self, node: NodeId) -> Seq:
        """As `BlockLog.last_cleared`."""
        self._check()
        subject = kv_cleared(self._cluster, node)
        found = [one.seq for one in self._stored if one.subject == subject]
        return max(found, default=Seq(0))
