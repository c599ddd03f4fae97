"""The log on NATS JetStream: atomic batches, expected positions, ordered reading.

What the server guarantees, found by trying (2.15): an atomic batch gets contiguous positions or
none; only the first message of a subject in a batch may state its expected position; a known
message id refuses a whole batch (10201), but a stale expectation of a single message is found
first (10071). So any of these refusals is followed by the question whether the events are there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final

from nats.aio.client import Client

from tensorcast.log.batch import Entry, prepare, raw_entry, stale
from tensorcast.log.connection import FULL_DISK, Connection, Refused, explain
from tensorcast.log.creation import DUPLICATE_WINDOW_S, State, check_identity, open_log, read_state
from tensorcast.log.cursors import JetStreamCursors
from tensorcast.log.identity import now
from tensorcast.log.lookup import locate, read_message
from tensorcast.log.ordered import read_ordered
from tensorcast.log.port import Stored
from tensorcast.log.publish import publish
from tensorcast.log.restore import put_back
from tensorcast.schema.access import Access
from tensorcast.schema.codec import EVENT_BYTES_MAX, decode
from tensorcast.schema.envelope import Draft
from tensorcast.schema.errors import Conflict, Corrupt, Unavailable
from tensorcast.schema.events import AggregateKind, OperationIssued, OperationRetried
from tensorcast.schema.ids import EventId, OperationId, Seq, parse_cluster
from tensorcast.schema.signals import Pattern
from tensorcast.schema.subjects import log_name, log_subject, signal_subjects

__all__ = ["CONNECT_S_MAX", "JetStreamCursors", "JetStreamLog", "await_log", "connect_log"]

CONNECT_S_MAX: Final = 10.0
_LOOK_S: Final = 0.2
_HEADER_BYTES_MAX: Final = 1024
_ELSEWHERE: Final = frozenset({10070, 10071, 10201})
_STALE_OR_KNOWN: Final = frozenset({10071, 10164, 10201})
_NOBODY: Final = Access()
_WINDOW: Final = timedelta(seconds=DUPLICATE_WINDOW_S / 2)


async def connect_log(
    url: str,
    cluster: str,
    *,
    name: str,
    timeout_s: float = CONNECT_S_MAX,
    access: Access = _NOBODY,
) -> JetStreamLog:
    """Connects to the log of a cluster and makes it when it is not there. `name` tells operators
    who is connected, `access` is who one is. Raises Unavailable, PermissionDenied, and
    InvalidArgument when the server or an existing log cannot keep the contract."""
    connection = Connection(url, access)
    await connection.open(name, timeout_s)
    try:
        created = await open_log(connection, parse_cluster(cluster))
    except BaseException:
        await connection.aclose()
        raise
    return JetStreamLog(connection, cluster, created)


def await_log(url: str, cluster: str, *, name: str, access: Access = _NOBODY) -> JetStreamLog:
    """The log of a cluster that cannot be reached yet: it is connected to as soon as it can be.
    Until it was found (`find`) and opened (`open`), it is as one that is away."""
    connection = Connection(url, access)
    connection.begin(name)
    return JetStreamLog(connection, parse_cluster(cluster), "", is_open=False)


class JetStreamLog:
    """Keeps the contract of `Log` on one stream of JetStream. `created` tells two logs of the
    same name apart; it is empty until the log was found. Only one that is open can be appended to
    or followed."""

    def __init__(
        self, connection: Connection, cluster: str, created: str, *, is_open: bool = True
    ) -> None:
        self.cluster = cluster
        self.created = created
        self._is_open = is_open
        self._connection = connection
        self._name = log_name(cluster)

    @property
    def nats(self) -> Client:
        """The client, for what is not in the log: requests, heartbeats, renewals."""
        return self._connection.nats

    @property
    def connection(self) -> Connection:
        return self._connection

    @property
    def is_open(self) -> bool:
        """Whether it was found and is used."""
        return self._is_open

    @property
    def is_away(self) -> bool:
        """Whether nothing can be appended now."""
        return not (self._is_open and self.nats.is_connected)

    async def find(self) -> None:
        """Returns when the server answers and has the log; `created` is known then. Raises as
        `connect_log`, but for Unavailable."""
        while not self.created:
            try:
                self._connection.check_connected()
                self.created = await open_log(self._connection, self.cluster)
            except Unavailable:
                await asyncio.sleep(_LOOK_S)

    def open(self) -> None:
        """The log that was found is the right one: from now on it is used."""
        assert self.created, "it was found before"
        self._is_open = True

    def _check_open(self) -> None:
        if not self._is_open:
            raise self._connection.unavailable("it has not answered since this process started")

    async def append(self, drafts: Sequence[Draft]) -> tuple[Seq, ...]:
        """As `Log.append`."""
        if not drafts:
            return ()
        self._check_open()
        self._connection.check_connected()
        entries = prepare(self.cluster, drafts, bytes_max=self._event_bytes_max())
        if any(_is_old(draft) for draft in drafts):
            known = await locate(self._connection, self._name, entries)
            if any(known):
                return _all_or_stale(entries, known)
        try:
            last = await publish(self._connection, entries)
        except Refused as refusal:
            return await self._settle(entries, refusal)
        except Unavailable as error:
            if self.nats.is_connected:  # it answers everything but this
                raise Unavailable(error.message, hint=FULL_DISK) from error
            raise
        first = last - len(entries) + 1
        return tuple(Seq(first + offset) for offset in range(len(entries)))

    async def find_signal(self, pattern: Pattern, after: Seq) -> Stored | None:
        """The first signal after a position on a topic of the pattern. Raises Unavailable."""
        request = {"next_by_subj": signal_subjects(self.cluster, pattern), "seq": after + 1}
        return await read_message(self._connection, self._name, request)

    async def find_issue(self, operation: OperationId, until: Seq) -> EventId | None:
        """The last event up to `until` by which an operation was issued or is to be tried again;
        None when the log has none. Raises Unavailable."""
        subject = log_subject(self.cluster, AggregateKind.OPERATION, operation)
        found, after = None, 0
        while True:
            request: dict[str, object] = {"next_by_subj": subject, "seq": after + 1}
            stored = await read_message(self._connection, self._name, request)
            if stored is None or stored.seq > until:
                return found
            with suppress(Corrupt):
                recorded = decode(stored.payload, stored.seq)
                if isinstance(recorded.event, OperationIssued | OperationRetried):
                    found = recorded.id
            after = stored.seq

    async def append_raw(self, first: Seq, events: Sequence[tuple[str, bytes]]) -> Seq:
        """Appends events as they are (subject and bytes, at most `APPEND_EVENTS_MAX`), the first
        one at position `first`; returns the position of the last one. Safe to repeat: those that
        are there already are left. Raises Conflict when the log does not end right before `first`
        and has no such events there, Unavailable."""
        entries = [raw_entry(subject, payload) for subject, payload in events]
        try:
            await publish(self._connection, entries, after=Seq(first - 1))
        except Refused as refusal:
            if refusal.error.err_code not in _STALE_OR_KNOWN:
                raise explain(refusal.error) from refusal
            known = await self._count_known(first, events)
            if known < len(events):
                await self.append_raw(Seq(first + known), events[known:])
        return Seq(first + len(events) - 1)

    async def _count_known(self, first: Seq, events: Sequence[tuple[str, bytes]]) -> int:
        """How many of the events the log has at `first` and after, at least one. Raises Conflict
        when the first or the last of these is another one there."""
        known = min(len(events), await self.last_seq() - first + 1)
        for offset in (0, known - 1):
            there = await self.read_one(Seq(first + offset)) if known > 0 else None
            if there is None or (there.subject, there.payload) != events[offset]:
                raise Conflict(
                    f"Event {first + offset} of the log is another one.",
                    hint="Somebody else writes to it, or began with another log."
                    " Bring this one into a new cluster.",
                )
        return known

    def _event_bytes_max(self) -> int:
        return min(EVENT_BYTES_MAX, self.nats.max_payload - _HEADER_BYTES_MAX)

    async def _settle(self, entries: Sequence[Entry], refusal: Refused) -> tuple[Seq, ...]:
        if refusal.error.err_code not in _STALE_OR_KNOWN:
            raise explain(refusal.error)
        return _all_or_stale(entries, await locate(self._connection, self._name, entries))

    async def read(
        self, *, after: Seq, batch_max: int = 1000
    ) -> AsyncGenerator[tuple[Stored, ...], None]:
        """As `Log.read`. Close the iterator (`aclose`) to give its place at the server up."""

        async def check() -> State:
            self._check_open()
            return await check_identity(self._connection, self._name, self.created)

        batches = read_ordered(self._connection, self._name, after, batch_max, check)
        try:
            async for batch in batches:
                yield batch
        finally:
            await batches.aclose()

    async def read_one(self, seq: Seq) -> Stored | None:
        """The event at `seq`; None when there is none. Raises Unavailable."""
        if seq < 1:
            return None
        return await read_message(self._connection, self._name, {"seq": seq})

    async def restore(self, events: Sequence[Stored]) -> None:
        """As `RestorableLog.restore`."""
        await check_identity(self._connection, self._name, self.created)
        try:
            await put_back(self._connection, events)
        except Refused as refusal:
            if refusal.error.err_code not in _ELSEWHERE:
                raise explain(refusal.error) from refusal
            raise Conflict(
                f"The log does not end before event {events[0].seq} any more.",
                hint="Another control plane puts events back.",
            ) from refusal

    async def last_seq(self) -> Seq:
        """As `Log.last_seq`, asked of the leader."""
        try:
            state = await read_state(self._connection, self._name)
        except Refused as refusal:
            raise explain(refusal.error) from refusal
        if state is None:
            raise Corrupt("The log is gone.", hint="Was it deleted? Restore it from a backup.")
        return Seq(state.last_seq)

    async def aclose(self) -> None:
        """As `Log.aclose`."""
        await self._connection.aclose()


def _is_old(draft: Draft) -> bool:
    """Whether the server may have forgotten the id of an earlier try, and nothing else would tell
    that the event is there already."""
    return draft.expected is None and now() - draft.at > _WINDOW


def _all_or_stale(entries: Sequence[Entry], known: Sequence[Seq | None]) -> tuple[Seq, ...]:
    for entry, seq in zip(entries, known, strict=True):
        if seq is None:
            raise stale(entry.subject, entry.expected)
    return tuple(seq for seq in known if seq is not None)
