"""What the mover must not forget: reports that the log has not acknowledged yet, puts that it has
accepted and not sealed yet, which kept descriptor holds which replica, and which log it belongs to.

A report is a command with the id of the event that it will become. It is on disk before anything
is done because of it, goes to the log in the order in which it was recorded, and is appended once:
after a crash it is sent again under the same event id, and a report that the log shows already is
never sent again. Just before it is sent it is decided anew; one that has become illegal (the
operation was cancelled, a newer life of this mover wrote) is dropped.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from tensorcast.log.execute import Appender, foresee
from tensorcast.log.follower import Follower
from tensorcast.movers.journal_file import JournalFile, KnownLog, LastLife, Report
from tensorcast.movers.reserve import Reserve
from tensorcast.movers.seals import OUTCOMES_MAX, AcceptedSeal, SealOutcome
from tensorcast.schema.cluster import ClusterView, decide, project
from tensorcast.schema.envelope import Draft, Recorded
from tensorcast.schema.errors import (
    Conflict,
    Corrupt,
    OutOfCapacity,
    TensorCastError,
    Timeout,
    Unavailable,
)
from tensorcast.schema.events import aggregate_of
from tensorcast.schema.ids import EventId, NodeId, ReplicaId, Seq

__all__ = ["Journal", "LastLife", "Report", "plan"]

PENDING_MAX: Final = 20_000
BATCH_MAX: Final = 256
FOLLOW_TIMEOUT_S: Final = 30.0
RETRY_S: Final = 0.5
DISK_RETRY_S: Final = 0.5
DISK_WAIT_S: Final = 5.0
"""So long whoever waits for an answer waits for room on the disk; reports wait for ever."""

_logger = logging.getLogger(__name__)
T = TypeVar("T")
MaySend = Callable[[ClusterView], bool]


class Plan(msgspec.Struct, frozen=True):
    """`drafts` are to be appended in one go; `refused` are the reports that came too late."""

    drafts: tuple[Draft, ...]
    refused: tuple[tuple[Report, str], ...]


def plan(view: ClusterView, reports: Sequence[Report]) -> Plan:
    """What of the reports still has to be appended, each decided after the ones before it."""
    drafts: list[Draft] = []
    refused: list[tuple[Report, str]] = []
    touched: set[object] = set()
    for report in reports:
        try:
            events, expected = decide(view, report.command)
        except TensorCastError as error:
            refused.append((report, str(error)))
            continue
        for event in events:
            aggregate = aggregate_of(event)
            draft = Draft(
                id=report.id,
                at=report.at,
                actor=report.actor,
                event=event,
                cause=report.cause,
                expected=None if aggregate in touched else expected,
            )
            touched.add(aggregate)
            drafts.append(draft)
            view = project(view, foresee(draft, Seq(view.at + 1)))
    return Plan(tuple(drafts), tuple(refused))


class Journal:
    """See the module. Owns the file and the thread that writes it; belongs to one event loop. A
    reserve beside the file lets what is under way end when the disk is full; until there is room
    for it again nothing new may begin (`check_room`)."""

    def __init__(
        self, path: Path, node: NodeId | None = None, *, wait_s: float = DISK_WAIT_S
    ) -> None:
        """Opens or makes the file; blocks. Raises Unavailable when it cannot be read."""
        try:
            self._file = JournalFile(path)
            unsent = self._file.read_outbox()
            self.segments = self._file.read_segments()
            self.seals = self._file.read_seals()
            self._outcomes = self._file.read_outcomes()
            self._known = self._file.read_log()
            self.life = self._file.read_life()
        except (sqlite3.Error, msgspec.MsgspecError) as error:
            raise Unavailable(
                f"The journal {path} cannot be opened: {error}.",
                hint="Is its disk full or damaged? Removing the file loses unsent reports only.",
            ) from error
        self._path = path
        self._node = node
        self._wait_s = wait_s
        self._reserve = Reserve(path.with_suffix(".reserve"))
        self._full_since_s = None if self._reserve.refill() else time.monotonic()
        self._unwritable = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._pending = deque(unsent)
        self._unwritten: list[tuple[int, Report]] = []
        self._position = unsent[-1][0] if unsent else 0
        self._written = self._position
        self._drained = unsent[0][0] - 1 if unsent else 0
        self._shown: set[EventId] = set()
        self._awaited = {report.id for _, report in unsent}
        self._writing = asyncio.Lock()
        self._changed = asyncio.Condition()

    @property
    def pending(self) -> int:
        """Reports that the log has not acknowledged."""
        return len(self._pending) + len(self._unwritten)

    @property
    def trouble(self) -> str:
        """Why nothing new can begin on this node; empty while the disk has room."""
        if self._full_since_s is None:
            return ""
        what = "its journal cannot be written" if self._unwritable else "its reserve is in use"
        node, folder = self._node or "?", self._path.parent
        return f"The disk of node {node} is full ({what}): free room in {folder}."

    async def look(self) -> None:
        """Looks whether a full disk has room again."""
        if self._full_since_s is None:
            return
        loop = asyncio.get_running_loop()
        if await loop.run_in_executor(self._thread, self._reserve.refill):
            _logger.warning("the disk of the journal has room again")
            self._full_since_s, self._unwritable = None, False

    async def check_room(self) -> None:
        """Returns when new work may begin: at once, but for a full disk. Raises OutOfCapacity when
        that has been full for the short time that is waited."""
        await self.look()
        while self._full_since_s is not None:
            if time.monotonic() - self._full_since_s >= self._wait_s:
                raise self._refusal()
            await asyncio.sleep(min(DISK_RETRY_S, self._wait_s / 4))
            await self.look()

    async def stuck(self) -> OutOfCapacity:
        """Returns the error to tell those who wait, once nothing could be written for a while."""
        begun_s: float | None = None
        while True:
            await asyncio.sleep(min(DISK_RETRY_S, self._wait_s / 4))
            if not self._unwritable:
                begun_s = None
                continue
            begun_s = time.monotonic() if begun_s is None else begun_s
            if time.monotonic() - begun_s >= self._wait_s:
                return self._refusal()

    def _refusal(self) -> OutOfCapacity:
        return OutOfCapacity(self.trouble, node=self._node)

    async def record(self, reports: Sequence[Report]) -> None:
        """Puts the reports on disk, in order, and returns when they are there. Waits while the
        journal is full or its disk is. Callers at the same time share one disk write."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.pending < PENDING_MAX)
        for report in reports:
            self._position += 1
            self._unwritten.append((self._position, report))
            self._awaited.add(report.id)
        await asyncio.shield(asyncio.ensure_future(self._write(self._position)))

    async def _write(self, position: int) -> None:
        async with self._writing:
            if self._written >= position:
                return
            batch, self._unwritten = self._unwritten, []
            rows = [(at, msgspec.json.encode(report)) for at, report in batch]
            await self._surely(lambda: self._file.add(rows))
            self._pending.extend(batch)
            self._written = batch[-1][0]
        async with self._changed:
            self._changed.notify_all()

    async def check_log(
        self, cluster: str, created: str, last: Seq, restored: Seq | None = None
    ) -> None:
        """Takes the log as this node's own when it knows none, or when the control plane has put
        events back into this one since (`restored`: where that was told). Raises Corrupt when it
        knows another one, or more of this one: then its past is not in this log, and nothing may
        be written to it."""
        known = self._known
        life = created if restored is None else f"{created}, restored at {restored}"
        if known is None or (restored is not None and known.created != life):
            if known is not None:
                _logger.warning("the events of the log were put back: event %s says so", restored)
            first = self._known = KnownLog(life, Seq(0))
            await self._surely(lambda: self._file.keep_log(first))
        elif known.created != life or last < known.seq:
            what = "is another one" if known.created != life else f"ends at event {last}"
            raise Corrupt(
                f"The log of cluster {cluster} is not the one this node knows: the node has seen "
                f"{known.seq} events of its log, and this one {what}.",
                hint="Restore NATS's folder, or start anew with `tcctl down --purge`.",
            )

    async def note_life(self, life: LastLife) -> None:
        """Remembers a life of the node: before the log hears of it."""
        self.life = life
        await self._surely(lambda: self._file.keep_life(life))

    async def note_position(self, seq: Seq) -> None:
        """Remembers how far the node has seen its log."""
        if self._known is not None and seq > self._known.seq:
            known = self._known = KnownLog(self._known.created, seq)
            await self._surely(lambda: self._file.keep_log(known))

    async def keep_segment(self, replica: ReplicaId, segment: str) -> None:
        """Notes on disk that this kept descriptor holds the replica. Waits while the disk is
        full."""
        if self.segments.get(replica) == segment:
            return
        self.segments[replica] = segment
        await self._surely(lambda: self._file.keep(replica, segment))

    async def keep_segment_soon(self, replica: ReplicaId, segment: str) -> None:
        """As `keep_segment`, or raises OutOfCapacity soon; then nothing was noted."""
        if self.segments.get(replica) == segment:
            return
        await self._soon(lambda: self._file.keep(replica, segment))
        self.segments[replica] = segment

    async def forget_segment(self, replica: ReplicaId) -> None:
        """The replica is in no kept descriptor any more."""
        if self.segments.pop(replica, None) is not None:
            await self._surely(lambda: self._file.forget(replica))

    async def keep_seal(self, seal: AcceptedSeal) -> None:
        """Notes on disk that this put is accepted. Raises OutOfCapacity when it is full."""
        self.seals[seal.ticket] = seal
        written = msgspec.json.encode(seal)
        await self._soon(lambda: self._file.keep_seal(seal.ticket, written))

    async def settle_seal(self, ticket: str, outcome: SealOutcome) -> None:
        """Notes what came of an accepted put."""
        self._outcomes[ticket] = outcome
        written = msgspec.json.encode(outcome)
        await self._surely(lambda: self._file.settle_seal(ticket, written))
        self.seals.pop(ticket, None)
        while len(self._outcomes) > OUTCOMES_MAX:
            del self._outcomes[next(iter(self._outcomes))]

    def find_outcome(self, ticket: str) -> SealOutcome | None:
        """What came of an accepted put; None when it is not known, or not any more."""
        return self._outcomes.get(ticket)

    async def settled(self) -> None:
        """Returns when the log has taken (or refused) all that was recorded before the call."""
        target = self._position
        async with self._changed:
            await self._changed.wait_for(lambda: self._drained >= target)

    def observe(self, recorded: Recorded) -> None:
        """The log shows this event: if it is one of ours, it need not be sent again."""
        if recorded.id in self._awaited:
            self._shown.add(recorded.id)

    def is_awaited(self, id_: EventId) -> bool:
        """Whether a report that will be (or is) this event is still here."""
        return id_ in self._awaited

    def note_shown(self, ids: Iterable[EventId]) -> None:
        """The log shows these events already."""
        self._shown |= self._awaited & set(ids)

    async def run(
        self, log: Appender, follower: Follower, may_send: MaySend = lambda view: True
    ) -> None:
        """Sends what is recorded, in order, for ever; repeats while the log cannot be reached, and
        waits while `may_send` says so of the view."""
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: bool(self._pending))
            try:
                await follower.wait_until(may_send, FOLLOW_TIMEOUT_S)
                await self._send(log, follower)
            except (Conflict, Unavailable, Timeout) as error:
                _logger.info("reports wait: %s", error)
                if not isinstance(error, Conflict):
                    await asyncio.sleep(RETRY_S)
                await self._catch_up(log, follower)

    async def _send(self, log: Appender, follower: Follower) -> None:
        batch = [self._pending[i] for i in range(min(BATCH_MAX, len(self._pending)))]
        unseen = [report for _, report in batch if report.id not in self._shown]
        planned = plan(follower.view, unseen)
        if planned.refused:  # refused only on a view that is as new as the log
            await self._catch_up(log, follower)
            planned = plan(follower.view, [r for r in unseen if r.id not in self._shown])
        if planned.drafts:
            seqs = await log.append(planned.drafts)
            await follower.wait_for(seqs[-1], FOLLOW_TIMEOUT_S)
        for report, reason in planned.refused:
            _logger.warning("%s came too late: %s", type(report.command).__name__, reason)
        await self.note_position(follower.view.at)  # first: what is settled is remembered too
        await self._acknowledge(batch)

    async def _catch_up(self, log: Appender, follower: Follower) -> None:
        try:
            await follower.wait_for(await log.last_seq(), FOLLOW_TIMEOUT_S)
        except (Unavailable, Timeout) as error:
            _logger.info("the log cannot be read: %s", error)

    async def _acknowledge(self, batch: Sequence[tuple[int, Report]]) -> None:
        for _, report in batch:
            self._pending.popleft()
            self._awaited.discard(report.id)
            self._shown.discard(report.id)
        last = batch[-1][0]
        await self._surely(lambda: self._file.remove_up_to(last))
        self._drained = last
        async with self._changed:
            self._changed.notify_all()

    async def _surely(self, write: Callable[[], T]) -> T:
        """The write, repeated while the disk is full; other trouble with the file is raised."""
        while True:
            try:
                return await self._try(write)
            except sqlite3.OperationalError as error:
                await self._rest(error)

    async def _soon(self, write: Callable[[], T]) -> T:
        """As `_surely`, but raises OutOfCapacity when the disk stays full."""
        deadline_s = time.monotonic() + self._wait_s
        while True:
            try:
                return await self._try(write)
            except sqlite3.OperationalError as error:
                if time.monotonic() >= deadline_s:
                    raise self._refusal() from error
                await self._rest(error)

    async def _try(self, write: Callable[[], T]) -> T:
        written = await asyncio.get_running_loop().run_in_executor(self._thread, write)
        self._unwritable = False
        return written

    async def _rest(self, error: sqlite3.OperationalError) -> None:
        """After a write that failed: gives the reserve up, if there is one, or waits."""
        if self._full_since_s is None:
            self._full_since_s = time.monotonic()
            _logger.error("the journal cannot be written: %s", error)
        if not self._reserve.release():
            self._unwritable = True
            await asyncio.sleep(min(DISK_RETRY_S, self._wait_s / 4))

    def close(self) -> None:
        """Waits for writes that are under way. Safe to repeat."""
        self._thread.shutdown(wait=True)
        self._file.close()
